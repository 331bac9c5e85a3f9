"""Spans of natural text, each repeated to the end of its row: what comes next stands in the row, in words text has.

From the second token of the first repetition on, everything is determined. A span lies within one document, and every
token counts: were the first time left out, a model would learn to expect repetition of whatever begins so. Beside text,
rows of random tokens (`Repeat`) are learned late; spans of text are learned early, and the previous-token and induction
heads that they bring serve random tokens too.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from glassformer.arguments import Kinds
from glassformer.config import require
from glassformer.data.batch import Batch, DataConfig, Split, check_split, generator, next_token_batch
from glassformer.data.text.corpus import TextConfig, TextData
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError

_DRAWS = 1000


@dataclasses.dataclass(frozen=True)
class RepeatedText(DataConfig, kind="repeated_text"):
    """Spans of text, each repeated to the end of its row.

    Args:
        text: What spans are taken from. Its batch size and length give way to those here.
        unit_min: Shortest span, in tokens.
        unit_max: Longest span, in tokens.
        bos: Put `<bos>` before each row, as before a text that is read; without, rows begin within a document.
    """

    batch_size: int = 16
    length: int = 128
    seed: int = 0
    text: TextConfig = dataclasses.field(default_factory=TextConfig)
    unit_min: Kinds = 12
    unit_max: Kinds = 60
    bos: bool = False

    def __post_init__(self) -> None:
        require(self.batch_size >= 1 and self.length >= 1, "batch_size and length must be at least 1.")
        require(1 <= self.unit_min <= self.unit_max, f"unit_min={self.unit_min} exceeds unit_max={self.unit_max}.")
        require(not self.text.streaming, "repeated_text: text must be kept in memory; set text.streaming=false.")

    def build(self, tokenizer: Tokenizer | None = None) -> "RepeatedTextData":
        return RepeatedTextData(self, tokenizer)

    def check(self) -> None:
        self.text.check()

    def origins(self) -> tuple[str, ...]:
        return self.text.origins()

    def on_text(self, sources: tuple[str, ...]) -> Self:
        return self.replace(text=self.text.on_text(sources))

    def texts(self) -> Iterator[str]:
        return self.text.texts()


class RepeatedTextData:
    """Rows that are one span of text over and over."""

    def __init__(self, config: RepeatedText, tokenizer: Tokenizer | None = None) -> None:
        self.config = config
        text = config.text.build(tokenizer)
        assert isinstance(text, TextData), "text is kept in memory"
        self.text, self.tokenizer, self.vocab_size = text, text.tokenizer, text.vocab_size
        if config.bos and text.tokenizer.bos is None:
            raise DataError(
                f"repeated_text: bos=True, and {text.tokenizer} has no token that begins a text. Leave bos out, or "
                "give a tokenizer that has one."
            )

    def batch(self, step: int, split: Split = "train") -> Batch:
        check_split(split)
        config = self.config
        random = generator(config.seed, "repeated_text", split, step)
        rows = []
        for _ in range(config.batch_size):
            span = self._span(split, random)
            row = span.repeat(-(-(config.length + 1) // len(span))).long()
            row = torch.cat((torch.tensor([self.tokenizer.bos]), row)) if config.bos else row
            rows.append(row[: config.length + 1])
        return next_token_batch(torch.stack(rows))

    def documents(self, split: Split) -> Iterator[list[int]]:
        check_split(split)
        yield from ()

    def describe(self) -> dict[str, Any]:
        units = {"unit_min": self.config.unit_min, "unit_max": self.config.unit_max}
        return {"repeated": units} | self.text.describe()

    def _span(self, split: Split, random: torch.Generator) -> Tensor:
        """Draw a span of one document; where the document ends, so does the span."""
        config, stream = self.config, self.text.stream(split)
        for _ in range(_DRAWS):
            size = int(torch.randint(config.unit_min, config.unit_max + 1, (), generator=random))
            row = stream.row(int(torch.randint(stream.size, (), generator=random)), size)
            inside = (row.documents == row.documents[0]) & (row.tokens != self.tokenizer.bos)
            span = row.tokens[: row.size][inside[: row.size]][:size]
            if len(span) >= config.unit_min:
                return torch.from_numpy(span)
        raise DataError(
            f'no document of the "{split}" split was found to hold {config.unit_min} tokens in a row. Set a smaller '
            "unit_min, or give longer documents."
        )
