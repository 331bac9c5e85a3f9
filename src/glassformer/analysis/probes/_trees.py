"""Words of labelled text as points of trees: which rows they are, how far apart they stand, what a guess gets right.

    attached   share of the edges of a minimum spanning tree of guessed distances that are edges of one of the true ones
    ordered    Spearman's correlation of guessed with true distances from a word, mean over words

Where every node of a tree is a word, its minimum spanning tree is the tree itself, and `attached` is the unlabelled
undirected attachment score. In a tree of phrases words are leaves, and several spanning trees are as short: an edge
counts if any of them has it.

Source: Hewitt and Manning 2019, "A Structural Probe for Finding Syntax in Word Representations", section 4.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis.probes._rows import means_of
from glassformer.data.labels import Column, LabelledDocument, LabelledText
from glassformer.errors import DataError

LEAST = 3  # words of a document: of fewer there is one tree


@dataclass(frozen=True, eq=False)
class Words:
    """The words of documents, one after the other, and the trees over them.

    A word is a run of tokens of one node of the tree.

    Args:
        column: Tokens that are part of a word, which is numbered through.
        ends: Where the words of each document begin, and where the last ends.
        distances: Of each document, edges between two words, `word word`.
        depths: Of each document, how deep each word stands, `word`.
    """

    column: Column
    ends: tuple[int, ...]
    # documents have different numbers of words
    distances: tuple[Tensor, ...]
    depths: tuple[Tensor, ...]

    @classmethod
    def of(cls, texts: LabelledText) -> "Words":
        """Return the words of documents; of one with fewer than three none.

        Raises:
            DataError: A text has no tree.
        """
        rows, ends, distances, depths = list[tuple[int, int, int]](), [0], list[Tensor](), list[Tensor]()
        for place, document in enumerate(texts):
            if document.tree is None:
                raise DataError(f"document {place} has labels but no tree, so there is no structure to look for in it.")
            words = [*_runs(document)]
            if len(words) < LEAST:
                continue
            rows += [(place, token, ends[-1] + i) for i, (_, tokens) in enumerate(words) for token in tokens]
            first = [tokens[0] for _, tokens in words]
            distances.append(document.distances()[first][:, first].float())
            depths.append(torch.tensor([document.depths[token] for token in first]).float())
            ends.append(ends[-1] + len(words))
        documents, tokens, labels = torch.tensor(rows, dtype=torch.long).view(-1, 3).mT.contiguous()
        return cls(Column(documents, tokens, labels, (), texts), tuple(ends), tuple(distances), tuple(depths))

    def vectors(self, read: Iterable[Float[Tensor, "row width"]], words: Int[Tensor, " row"]) -> list[Tensor]:
        """Return the mean row of each word, document by document, `word width` each.

        Args:
            read: Rows, batch by batch.
            words: Which word each row is part of, below zero for none.
        """
        mean = means_of(read, words, self.ends[-1])
        return [mean[first:end] for first, end in pairwise(self.ends)]


def _runs(document: LabelledDocument) -> Iterator[tuple[int, list[int]]]:
    """Yield the node of each word with its tokens; those of white space alone are no words."""
    held: list[int] = []
    for token, (first, end) in enumerate(document.words):
        if first == end:
            continue
        if held and document.nodes[token] != document.nodes[held[-1]]:
            yield document.nodes[held[-1]], held
            held = []
        held = [*held, token]
    if held:
        yield document.nodes[held[-1]], held


def spanning_tree(distances: Float[Tensor, "word word"]) -> list[tuple[int, int]]:
    """Return the edges of a minimum spanning tree, by Prim's algorithm."""
    n = len(distances)
    nearest, far = torch.zeros(n, dtype=torch.long), distances[0].clone()
    outside, edges = torch.ones(n, dtype=torch.bool), list[tuple[int, int]]()
    outside[0] = False
    for _ in range(n - 1):
        added = int(torch.where(outside, far, torch.inf).argmin())
        edges.append((int(nearest[added]), added))
        outside[added] = False
        closer = distances[added] < far
        far, nearest = torch.where(closer, distances[added], far), torch.where(closer, added, nearest)
    return edges


def shortest_edges(distances: Float[Tensor, "word word"]) -> Bool[Tensor, "word word"]:
    """Return which pairs are an edge of some minimum spanning tree: no way round has shorter edges alone."""
    widest = torch.full_like(distances, torch.inf)
    widest.fill_diagonal_(0.0)
    inside = [0]
    for one, other in spanning_tree(distances):
        way = widest[one, inside].clamp_min(distances[one, other])
        widest[other, inside], widest[inside, other] = way, way
        inside.append(other)
    return (distances <= widest) & ~torch.eye(len(distances), dtype=torch.bool)


def attached(guess: Float[Tensor, "word word"], true: Bool[Tensor, "word word"]) -> float:
    """Return the share of the edges of a guess's spanning tree that are among the true ones."""
    one, other = torch.tensor(spanning_tree(guess)).mT
    return float(true[one, other].double().mean())


def ordered(guess: Float[Tensor, "*row n"], true: Float[Tensor, "*row n"]) -> float:
    """Return Spearman's correlation, mean over rows; NaN if no row has two different numbers on both sides."""
    one, other = _ranks(guess), _ranks(true)
    one, other = one - one.mean(-1, keepdim=True), other - other.mean(-1, keepdim=True)
    lengths = one.square().sum(-1) * other.square().sum(-1)
    found = torch.where(lengths > 0, (one * other).sum(-1) / lengths.sqrt(), torch.nan)
    return float(found.nanmean())


def without_itself(distances: Float[Tensor, "word word"]) -> Float[Tensor, "word others"]:
    """Return distances from each word to the others."""
    n = len(distances)
    return distances[~torch.eye(n, dtype=torch.bool)].view(n, n - 1)


def _ranks(values: Float[Tensor, "*row n"]) -> Float[Tensor, "*row n"]:
    """Return the rank of each number in its row, equal ones at the mean of theirs."""
    below = (values[..., None, :] < values[..., :, None]).sum(-1)
    alike = (values[..., None, :] == values[..., :, None]).sum(-1)
    return below.double() + (alike.double() - 1) / 2


def chain(n: int) -> Float[Tensor, "word word"]:
    """Return distances in a chain, in which each word hangs on the one before."""
    place = torch.arange(n).float()
    return (place[:, None] - place[None]).abs()


def padded(parts: Sequence[Tensor]) -> tuple[Tensor, Bool[Tensor, "document word"]]:
    """Return tensors of documents as one, filled up with zeros, and where the first axis of each is."""
    shape = [max(sizes) for sizes in zip(*(part.shape for part in parts))]
    found = parts[0].new_zeros(len(parts), *shape)
    for i, part in enumerate(parts):
        found[i][tuple(map(slice, part.shape))] = part
    return found, torch.arange(shape[0]) < torch.tensor([len(part) for part in parts])[:, None]
