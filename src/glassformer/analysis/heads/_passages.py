"""Documents cut into passages that a model reads one by one, some of them held out: a stream, however long the corpus.

A passage is at most `length` tokens of one document, between the specials that the tokenizer puts around a text. The
last one of a document is left out if it is shorter than half of the others. Whole documents are held out, by a hash of
their text; where there are few, passages are. Passages of one window are read in batches of like length.
"""

import dataclasses
import hashlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from glassformer.arguments import shown
from glassformer.data import TextConfig
from glassformer.data.batch import is_heldout
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, TextError
from glassformer.models import Model

FEW = 20  # documents, below which passages are held out in their place
WINDOW = 32  # batches whose passages are put in order of length


@dataclasses.dataclass(frozen=True)
class Passage:
    """Some consecutive tokens of a document, with the specials around them.

    Args:
        document: Which one, counted from 0.
        start: Where in the document they begin, in tokens.
        ids: What the model reads.
        held_out: Whether claims are tested on it, and not made from it.
    """

    document: int
    start: int
    ids: tuple[int, ...]
    held_out: bool


@dataclasses.dataclass(frozen=True)
class CutCorpus:
    """How the passages of a corpus are cut; they are read from it as often as asked.

    Args:
        model: What reads them.
        texts: A `TextConfig`, whose documents are read one by one; or texts, or rows of ids, each a document.
        length: Tokens of a passage, at most.
        tokens: Tokens in all, from which on nothing more is read.
        heldout: Share of documents that are held out.
        seed: Of which.
        by_passage: Hold out passages and no documents.
    """

    model: Model
    texts: Any
    length: int
    tokens: int
    heldout: float
    seed: int
    by_passage: bool = False

    @property
    def room(self) -> int:
        """How many tokens of a text a passage has room for."""
        return self.length - sum(map(len, self._around()))

    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the specials around each passage of a text; rows of ids are taken as they are."""
        tokenizer = self.model.tokenizer
        return ((), ()) if tokenizer is None else tokenizer.around()

    def passages(self) -> Iterator[Passage]:
        """Yield the passages in order."""
        around, read = self._around(), 0
        for number, text in enumerate(self._documents()):
            ids = _ids(text, self.model.tokenizer)
            before, behind = around if isinstance(text, str) else ((), ())
            room = self.room if isinstance(text, str) else self.length
            for start in range(0, len(ids), room):
                if start and len(ids) - start < room / 2:
                    break
                piece = (*before, *ids[start : start + room], *behind)
                if len(piece) < 2:
                    continue
                yield Passage(number, start, piece, self._is_held_out(text, start))
                read += len(piece)
                if read >= self.tokens:
                    return

    def batches(self, rows: int) -> Iterator[list[Passage]]:
        """Yield them in batches, those of like length of one window together."""
        passages = self.passages()
        while window := list(islice(passages, rows * WINDOW)):
            window.sort(key=lambda one: -len(one.ids))
            yield from (window[first : first + rows] for first in range(0, len(window), rows))

    def measured(self) -> "tuple[CutCorpus, CorpusExtent]":
        """Return the corpus, with passages held out where documents are few, and how much of it there is.

        Raises:
            AnalysisUnavailable: There is nothing to read.
        """
        extent = self._extent()
        if extent.documents >= FEW:
            return self, extent
        few = dataclasses.replace(self, by_passage=True)
        return few, few._extent()

    def _extent(self) -> "CorpusExtent":
        told, passages, tokens, documents, last = hashlib.sha256(), [0, 0], [0, 0], 0, -1
        for one in self.passages():
            passages[one.held_out] += 1
            tokens[one.held_out] += len(one.ids)
            documents += one.document != last
            last = one.document
            told.update(array("q", (one.document, one.start, one.held_out, *one.ids)).tobytes())
        if not documents:
            raise AnalysisUnavailable("heads_over_corpus: the texts hold no passage of two tokens or more.")
        return CorpusExtent(documents, (passages[0], passages[1]), (tokens[0], tokens[1]), told.hexdigest())

    def _documents(self) -> Iterator[Any]:
        if isinstance(self.texts, TextConfig):
            yield from (document.text for document in self.texts.read())
            return
        yield from self.texts

    def _is_held_out(self, text: Any, start: int) -> bool:
        key = text if isinstance(text, str) else tuple(int(i) for i in text)
        return is_heldout(self.heldout, "head claims", self.seed, key, *([start] if self.by_passage else []))


@dataclasses.dataclass(frozen=True)
class CorpusExtent:
    """How much there is to read.

    Args:
        documents: Documents with passages.
        passages: Those that claims are made from, and those held out.
        tokens: Of each.
        digest: Of all that is read.
    """

    documents: int
    passages: tuple[int, int]
    tokens: tuple[int, int]
    digest: str


def require_texts(texts: Any) -> Any:
    """Return texts that can be gone through twice; raises `ShapeMismatch` for others."""
    if isinstance(texts, TextConfig):
        texts.check()
        return texts
    rows = list(texts) if isinstance(texts, Tensor) and texts.ndim == 2 else texts
    if isinstance(rows, Sequence) and not isinstance(rows, str) and rows and all(map(_is_document, rows)):
        return rows
    raise ShapeMismatch(
        "heads_over_corpus: texts= takes a TextConfig, a list of texts, or rows of ids, each a document; found "
        f"{shown(texts)}."
    )


def _is_document(one: Any) -> bool:
    if isinstance(one, Tensor):
        return one.ndim == 1 and not one.is_floating_point()
    return isinstance(one, str) or (isinstance(one, list | tuple) and all(isinstance(i, int) for i in one))


def _ids(text: Any, tokenizer: Tokenizer | None) -> list[int]:
    if not isinstance(text, str):
        return torch.as_tensor(text).tolist()
    if tokenizer is None:
        raise TextError("this model has no tokenizer, so its corpus is rows of ids, and no texts.")
    return tokenizer.encode(text)
