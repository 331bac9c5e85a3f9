"""Structural probes: whether a tree over a text lies in vectors, as distances after a linear map of low rank.

    distance:  |B (h_i - h_j)| squared  is the number of edges between two words
    depth:     |D h_i| squared          is how deep a word stands

B and D are fitted to the mean absolute difference, each document's pairs (words) counting as much as another's, and
tried on documents left out. Beside them stand the same site of an untrained model, a random vector for each token, and
a chain, which says that near words stand near: what follows from order alone.

Source: Hewitt and Manning 2019, "A Structural Probe for Finding Syntax in Word Representations" (N19-1419), section 2.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.activations import StoredSite, stored
from glassformer.analysis.labelled_rows import as_read, labels_of_rows
from glassformer.analysis.probes._rows import random_rows, rows_of
from glassformer.analysis.probes._trees import Words, attached, chain, ordered, padded, shortest_edges, without_itself
from glassformer.analysis.question import question
from glassformer.analysis.uncertainty import interval
from glassformer.arguments import Count, Natural, Positive, Several
from glassformer.data.labels import LabelledText
from glassformer.errors import AnalysisUnavailable
from glassformer.fitting import Descent
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModuleLike, require_module

SITE, UNTRAINED, TOKENS, CHAIN = "the site", "untrained model", "random vector by token", "chain"
MEASURES = ("edges", "distance correlation", "depth correlation")


@dataclasses.dataclass(frozen=True, eq=False)
class StructuralProbes(Result):
    """How much of the trees over documents left out lies in a linear map of each site.

    Args:
        found: `site told_by measure`, mean over documents: the share of edges of the spanning tree of guessed distances
            that the true tree has (UUAS); Spearman's correlation of guessed and true distances; the same of depths. By
            probes of the site, of an untrained model's, of random vectors by token, and by a chain.
        bounds: 95 % interval over documents drawn again, an axis `bound` in front.
        above_chain: Edges that probes of a site get right more than a chain does, `site`.
        projection: The map of distances of each site, `rank width`.
        documents: Documents with a tree, those left out among them.
        words: Their words.
    """

    HEADLINE = ("found", "above_chain")
    SIGNED = ("above_chain",)

    found: Labelled
    bounds: Labelled
    above_chain: Labelled
    projection: tuple[Labelled, ...]
    documents: int
    words: int


@question("Is there a tree over the text at each site?", of="texts")
def structural_probe(
    model: ModuleLike,
    texts: LabelledText,
    *,
    sites: str | Several[str] = "resid_post",
    rank: Count = 32,
    steps: Natural = 200,
    lr: Positive = 0.02,
    folds: Count = 4,
    untrained: ModuleLike | None = None,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> StructuralProbes:
    """Fit structural probes of the trees over labelled text, and try them on documents left out.

    Args:
        model: One of ours that reads texts by themselves, or a module whose sites a spec names.
        texts: Labelled text with trees, of Python or of the Chinese-English grammar. A word is what stands under one
            node: the mean of its tokens.
        sites: Names, globs or short names; the stream behind each layer by default.
        rank: Directions that a probe reads, at most.
        steps: Gradient steps (Adam) on all documents at once; the rate falls linearly to zero.
        lr: Learning rate, of sites scaled to unit mean square.
        folds: Documents are dealt out to so many; the first is left out.
        untrained: A model of the same shape as it begins, `model.config.build(1)`.
        seed: Source of folds, of where maps begin, and of random vectors.
        report: Called with (done, total) sites.

    Raises:
        AnalysisUnavailable: There are fewer than two folds, or fewer documents of three words than folds; or the model
            reads pairs or images.
        DataError: A text has no tree.
        ShapeMismatch: The text is labelled with other tokens than the model reads.
        TextError: A document has more tokens than the context.
        UnknownSite: A name that no site has.
        TrainingDiverged: A loss is not finite.
    """
    require_module(model, "structural_probe")
    if isinstance(model, Model) and model.reads_pairs:
        raise AnalysisUnavailable("structural_probe is of trees over one text, and this model reads pairs of texts.")
    if folds < 2:
        raise AnalysisUnavailable("structural_probe: what is fitted is tried on other documents: folds is 2 or more.")
    words = Words.of(texts)
    if len(words.depths) < folds:
        raise AnalysisUnavailable(
            f"{folds} folds of documents, and {len(words.depths)} have three words and more: choose fewer folds, or "
            "more texts."
        )
    order = torch.randperm(len(words.depths), generator=torch.Generator().manual_seed(seed)) % folds
    held_out = [i for i, fold in enumerate(order.tolist()) if fold == 0]
    seen = [i for i in range(len(order)) if i not in held_out]
    fit = _Fit(words=words, seen=seen, held_out=held_out, rank=rank, steps=steps, lr=lr, seed=seed)
    read, told, maps = as_read(model, texts), list[Tensor](), list[Labelled]()
    by = [SITE, *([] if untrained is None else [UNTRAINED]), TOKENS, CHAIN]
    with contextlib.ExitStack() as stack:
        store, names = stack.enter_context(stored(model, read, sites))
        other = None if untrained is None else stack.enter_context(stored(untrained, read, names))[0]
        for done, name in enumerate(names):
            if report is not None:
                report(done, len(names))
            found, projection = fit.told(store.site(name), None if other is None else other.site(name))
            told.append(torch.stack([found[one] for one in by]))
            maps.append(Labelled(projection, ("rank", "width"), {}))
    if report is not None:
        report(len(names), len(names))
    coords = {"site": list(names), "told_by": by, "measure": list(MEASURES)}
    values = Labelled(torch.stack(told), ("site", "told_by", "measure", "batch"), coords)
    mean = values.values.nanmean(-1)
    return StructuralProbes(
        found=Labelled(mean, ("site", "told_by", "measure"), coords),
        bounds=interval(values, seed=seed),
        above_chain=Labelled(mean[:, 0, 0] - mean[:, -1, 0], ("site",), {"site": list(names)}),
        projection=tuple(maps),
        documents=len(words.depths),
        words=words.ends[-1],
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Fit:
    """What probes are fitted to, and what they are tried on.

    Args:
        words: Of all documents.
        seen: Documents to fit to.
        held_out: Documents to try on.
        rank: As for `structural_probe`.
        steps: The same.
        lr: The same.
        seed: The same.
    """

    words: Words
    seen: list[int]
    held_out: list[int]
    rank: int
    steps: int
    lr: float
    seed: int

    @cached_property
    def edges(self) -> dict[int, Tensor]:
        """Edges of the tree of each document left out, `word word` each."""
        return {i: shortest_edges(self.words.distances[i]) for i in self.held_out}

    def told(
        self, site: StoredSite, untrained: StoredSite | None
    ) -> "tuple[dict[str, Float[Tensor, 'measure document']], Float[Tensor, 'rank width']]":
        """Return what is told of each document left out, by what, and the map of distances of the site."""
        place = labels_of_rows(site.tokens, site.documents, site.positions, self.words.column)
        vectors = self.words.vectors(rows_of(site)(), place)
        maps = self.maps(vectors)
        found = {SITE: self.tried(vectors, *maps)}
        others = {} if untrained is None else {UNTRAINED: rows_of(untrained)}
        others[TOKENS] = random_rows(site.tokens.clamp_min(0), site.width, self.seed)
        for name, read in others.items():
            beside = self.words.vectors(read(), place)
            found[name] = self.tried(beside, *self.maps(beside))
        found[CHAIN] = torch.stack([
            self.measured(i, chain(len(self.words.depths[i])), torch.arange(len(self.words.depths[i])).float())
            for i in self.held_out
        ], -1)  # fmt: skip
        return found, maps[0]

    def maps(self, vectors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the maps of distances and of depths, fitted to the documents that are seen."""
        scale = float(torch.cat([vectors[i] for i in self.seen]).square().mean().sqrt()) or 1.0
        rows, mask = padded([vectors[i].float() / scale for i in self.seen])
        distances, _ = padded([self.words.distances[i] for i in self.seen])
        depths, _ = padded([self.words.depths[i] for i in self.seen])
        pairs, counts = (mask[:, :, None] & mask[:, None]).float(), mask.sum(-1)
        random, width = torch.Generator().manual_seed(self.seed), rows.shape[-1]
        begin = torch.randn(2, min(self.rank, width), width, generator=random) / width
        parameters = [part.clone().requires_grad_() for part in begin]

        def losses(step: int) -> Iterator[Tensor]:
            off = (_distances(rows, parameters[0]) - distances).abs() * pairs
            yield (off.sum((1, 2)) / counts**2).mean()
            off = (_depths(rows, parameters[1]) - depths).abs() * mask
            yield (off.sum(1) / counts).mean()

        descent = Descent(
            parameters, torch.optim.Adam(parameters, self.lr), losses, steps=self.steps, name="structural_probe",
            rate=lambda step: self.lr * (1 - (step - 1) / self.steps), way_on=lambda: "Fit it with a smaller lr.",
        )  # fmt: skip
        for _ in descent:
            pass
        return parameters[0].detach() / scale, parameters[1].detach() / scale

    def tried(self, vectors: Sequence[Tensor], distance: Tensor, depth: Tensor) -> Float[Tensor, "measure document"]:
        """Return what two maps get right of each document left out."""
        return torch.stack([
            self.measured(i, _distances(vectors[i].float(), distance), _depths(vectors[i].float(), depth))
            for i in self.held_out
        ], -1)  # fmt: skip

    def measured(
        self, document: int, distances: Float[Tensor, "word word"], depths: Float[Tensor, " word"]
    ) -> Float[Tensor, " measure"]:
        """Return what guessed distances and depths of a document are worth."""
        true = self.words.distances[document]
        return torch.tensor([
            attached(distances, self.edges[document]),
            ordered(without_itself(distances), without_itself(true)),
            ordered(depths, self.words.depths[document]),
        ], dtype=torch.float64)  # fmt: skip


def _distances(
    rows: Float[Tensor, "*batch word width"], by: Float[Tensor, "rank width"]
) -> Float[Tensor, "*batch word word"]:
    mapped = rows @ by.mT
    products = mapped @ mapped.mT
    lengths = products.diagonal(dim1=-2, dim2=-1)
    # of numbers whose difference is rounded
    return (lengths[..., :, None] + lengths[..., None, :] - 2 * products).clamp_min(0)


def _depths(rows: Float[Tensor, "*batch word width"], by: Float[Tensor, "rank width"]) -> Float[Tensor, "*batch word"]:
    return (rows @ by.mT).square().sum(-1)
