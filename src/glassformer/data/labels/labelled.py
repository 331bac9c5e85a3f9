"""Labelled text: for every token the class it has of each property, and the document it stands in.

Labels are of characters first, and of tokens by one rule: a token has the class of its first character that is no white
space, or of its first if it is nothing else. `straddles` says of which tokens that hides another class.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.arguments import Count
from glassformer.data.labels.tree import Phrase, Span, Tree
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError, nearest

Class = str | None


class Property(NamedTuple):
    """What is told of tokens: its name, how often each class occurs, the commonest first, and that one's share."""

    name: str
    counts: dict[str, int]
    majority: float


class Column(NamedTuple):
    """One property of all tokens that have it, a row each: document, token within it, and class as a number.

    `text` is what they are of, so that a probe finds the same tokens where a model read them.
    """

    document: Int[Tensor, " row"]
    token: Int[Tensor, " row"]
    label: Int[Tensor, " row"]
    classes: tuple[str, ...]
    text: "LabelledText"

    def one_vs_rest(self, name: str) -> "Column":
        """One class, as 1, against all others, as 0: what a sparse probe asks.

        Args:
            name: Of the class.

        Raises:
            DataError: There is no such class.
        """
        if name not in self.classes:
            told = ", ".join(self.classes) or "none"
            raise DataError(f'no class "{name}".{nearest(name, self.classes)} Classes: {told}.')
        is_it = (self.label == self.classes.index(name)).long()
        return self._replace(label=is_it, classes=(f"not {name}", name))


@dataclass(frozen=True, eq=False)
class LabelledDocument:
    """A text as tokens, each with its classes.

    Args:
        text: The text.
        ids: Its token ids, no special ones around them.
        spans: The characters of each token, as (first, behind the last).
        classes: Of each property, the class of each token; None where it has none.
        straddles: Of each property, whether a token holds characters of other classes too.
        tree: What stands within what, if that is known.
    """

    text: str
    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    classes: Mapping[str, tuple[Class, ...]]
    straddles: Mapping[str, tuple[bool, ...]]
    tree: Tree | None = None

    @cached_property
    def words(self) -> tuple[Span, ...]:
        """The characters of each token, white space around them left out; empty for one that is nothing else."""
        return tuple(_stripped(self.text, span) for span in self.spans)

    @cached_property
    def phrases(self) -> tuple[Phrase, ...]:
        """The tree's nodes as tokens, those that begin or end within a token, or are cut off, left out.

        Raises:
            DataError: The text has no tree.
        """
        return tuple(self._tree.phrases(self.words, self._whole_until))

    @cached_property
    def constituents(self) -> tuple[Phrase, ...]:
        """Those of its phrases that have parts, the whole text left out; of several over the same tokens the innermost.

        Raises:
            DataError: The text has no tree.
        """
        return tuple(self._tree.constituents(self.words, self._whole_until))

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The deepest node of the tree over each token's first character that is no white space."""
        return tuple(self._tree.deepest[_told_by(span, word)] for span, word in zip(self.spans, self.words))

    @property
    def depths(self) -> tuple[int, ...]:
        """How deep in the tree each token stands, the root being 0."""
        return tuple(self._tree.depths[node] for node in self.nodes)

    def distances(self, first: int = 0, end: int | None = None) -> Int[Tensor, "pos pos"]:
        """Distances in the tree between tokens, in edges; tokens of one node have none.

        Args:
            first: First token.
            end: The one behind the last; all that follow by default.
        """
        return self._tree.distances(self.nodes[first:end])

    def cut(self, longest: int) -> "LabelledDocument":
        """The first tokens, so many at most; text and tree stay whole."""
        if len(self.ids) <= longest:
            return self
        here = slice(longest)
        return dataclasses.replace(
            self,
            ids=self.ids[here],
            spans=self.spans[here],
            classes={name: told[here] for name, told in self.classes.items()},
            straddles={name: told[here] for name, told in self.straddles.items()},
        )

    @property
    def _whole_until(self) -> int:
        """Where the tokens end, behind white space that no token may hold."""
        end = self.spans[-1][1] if self.spans else 0
        return end + len(self.text[end:]) - len(self.text[end:].lstrip())

    @property
    def _tree(self) -> Tree:
        if self.tree is None:
            raise DataError("this text has labels but no tree, so its tokens have no phrases, depths or distances.")
        return self.tree


class LabelledText(tuple[LabelledDocument, ...]):
    """Documents with labels, in order. Probes are split by document."""

    @property
    def properties(self) -> tuple[Property, ...]:
        """The properties told of any token, with the share of the commonest class among tokens that have one."""
        return tuple(self.describe(name) for name in self._names)

    def describe(self, name: str) -> Property:
        """How often each class of a property occurs; raises `DataError` for one that is not told."""
        self._check(name)
        counts = Counter(one for document in self for one in document.classes[name] if one is not None)
        total = counts.total()
        return Property(name, dict(counts.most_common()), max(counts.values()) / total if total else float("nan"))

    def cut(self, longest: Count) -> "LabelledText":
        """The first tokens of each document, for a model that reads no more at once.

        Args:
            longest: So many tokens of a document, at most.
        """
        return LabelledText(document.cut(longest) for document in self)

    def column(self, name: str, *, straddling: bool = True) -> Column:
        """One property of all tokens that have it.

        Args:
            name: Of the property.
            straddling: With tokens that hold characters of more than one class.

        Raises:
            DataError: It is not told of these texts.
        """
        self._check(name)
        rows = [
            (d, i, one)
            for d, document in enumerate(self)
            for i, (one, several) in enumerate(zip(document.classes[name], document.straddles[name]))
            if one is not None and (straddling or not several)
        ]
        classes = tuple(sorted({one for _, _, one in rows}))
        place = {one: i for i, one in enumerate(classes)}
        table = torch.tensor([(d, i, place[one]) for d, i, one in rows], dtype=torch.long).view(-1, 3)
        documents, tokens, labels = table.mT.contiguous()
        return Column(documents, tokens, labels, classes, self)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for document in self for name in document.classes))

    def _check(self, name: str) -> None:
        if name not in self._names:
            told = ", ".join(self._names) or "none"
            raise DataError(f'no property "{name}".{nearest(name, self._names)} Properties: {told}.')


def by_token(
    text: str, tokenizer: Tokenizer, characters: Mapping[str, Sequence[Class]], tree: Tree | None = None
) -> LabelledDocument:
    """Return a text as tokens with the classes of their characters.

    Args:
        text: The text.
        tokenizer: Splits it.
        characters: Of each property, the class of each character.
        tree: What stands within what.
    """
    ids, spans = tokenizer.encode(text), tokenizer.spans(text)
    words = [_stripped(text, span) for span in spans]
    classes = {
        name: tuple(told[_told_by(span, word)] for span, word in zip(spans, words)) for name, told in characters.items()
    }
    straddles = {
        name: tuple(len({*told[slice(*(word if word[0] < word[1] else span))]}) > 1 for span, word in zip(spans, words))
        for name, told in characters.items()
    }
    return LabelledDocument(text, tuple(ids), tuple(spans), classes, straddles, tree)


def _stripped(text: str, span: Span) -> Span:
    first, end = span
    held = text[first:end]
    first = first + len(held) - len(held.lstrip())
    return first, max(first, end - (len(held) - len(held.rstrip())))


def _told_by(span: Span, word: Span) -> int:
    """Return the character whose class a token has."""
    return word[0] if word[0] < word[1] else span[0]
