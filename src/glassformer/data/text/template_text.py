"""Sentences drawn from the templates of prompt pairs: text of which every answer is known.

    When Mary and John went to the market, John gave a lamp to Mary.

A model that is trained on them can be asked what it has learned: `indirect_objects(split="heldout")` and its like draw
from frames, words and combinations of words that no row of training holds; `new=` says which of these.
"""

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

from glassformer.config import require
from glassformer.data.batch import Batch, DataConfig, Split, check_split, hash64
from glassformer.data.pairs.templates import TEMPLATES, draw, heldout_words
from glassformer.data.text.corpus import Row, pack
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError, nearest

_MOST = 4  # sentences in a document
_TEXTS = 50_000  # pairs to learn a tokenizer from: three million characters


@dataclasses.dataclass(frozen=True)
class TemplateText(DataConfig, kind="template_text"):
    """Sentences from templates, with the answer in its place.

    Rows hold documents of one to four sentences, each of any of the templates. What counts is every token: names and
    things are drawn, so that their loss has a floor, and answers are determined.

    Args:
        templates: Which of those that write prompt pairs.
    """

    batch_size: int = 16
    length: int = 128
    seed: int = 0
    templates: tuple[str, ...] = (
        "indirect_objects", "greater_than", "subject_verb_agreement", "colours_of_things", "word_senses",
    )  # fmt: skip

    def __post_init__(self) -> None:
        require(self.batch_size >= 1 and self.length >= 1, "batch_size and length must be at least 1.")
        require(len(self.templates) > 0, f"templates is empty. Templates: {', '.join(TEMPLATES)}.")
        for name in self.templates:
            require(
                name in TEMPLATES, f'no template "{name}".{nearest(name, TEMPLATES)} Templates: {", ".join(TEMPLATES)}.'
            )

    def build(self, tokenizer: Tokenizer | None = None) -> "TemplateTextData":
        return TemplateTextData(self, tokenizer)

    def texts(self) -> Iterator[str]:
        random = Random(hash64("template_text", self.seed, "texts"))
        # in no sentence, but of every word a tokenizer has to know how it is written
        unasked = [f" {word}" for word in heldout_words(dict.fromkeys(self.templates))] or [""]
        for index in range(_TEXTS):
            told = " ".join(map("".join, self.sentences("train", random)))
            yield told + unasked[index % len(unasked)]

    def sentences(self, split: Split, random: Random) -> list[tuple[str, str, str]]:
        """Sentences about one thing, each as prompt, answer and full stop; the first is a pair of the split."""
        drawn = draw(random.choice(self.templates), random, split)
        assert isinstance(drawn.pair.clean, str), "text templates write text"
        return [(clean, answer, ".") for clean, answer in ((drawn.pair.clean, str(drawn.pair.answer)), *drawn.more)]


class TemplateTextData:
    """Rows of sentences, drawn afresh for every step; in "heldout" those of which something is held out."""

    def __init__(self, config: TemplateText, tokenizer: Tokenizer | None = None) -> None:
        if tokenizer is None:
            raise DataError('"template_text" needs a tokenizer: mix it with text, which brings one, or give one.')
        self.config, self.tokenizer, self.vocab_size = config, tokenizer, tokenizer.vocab_size

    def batch(self, step: int, split: Split = "train") -> Batch:
        check_split(split)
        random = Random(hash64("template_text", self.config.seed, split, step))
        bos = self.tokenizer.bos
        return pack([self._row(split, random) for _ in range(self.config.batch_size)], None, bos)

    def documents(self, split: Split) -> Iterator[list[int]]:
        check_split(split)
        yield from ()

    def describe(self) -> dict[str, Any]:
        return {"templates": list(self.config.templates), "vocab_size": self.vocab_size}

    def _row(self, split: Split, random: Random) -> Row:
        tokens, documents = list[int](), list[int]()
        while len(tokens) <= self.config.length:
            new = [] if self.tokenizer.bos is None else [self.tokenizer.bos]
            for place in range(random.randint(1, _MOST)):
                for number, (prompt, answer, stop) in enumerate(self.config.sentences(split, random)):
                    # apart, as pairs are read
                    for part in (f" {prompt}" if place or number else prompt, answer, stop):
                        new += self.tokenizer.encode(part)
            documents += [documents[-1] + 1 if documents else 0] * len(new)
            tokens += new
        end = self.config.length + 1
        return Row(np.array(tokens[:end], dtype=np.int32), np.array(documents[:end]), end)
