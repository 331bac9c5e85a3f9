"""Batches, and what every source of them promises.

A `DataConfig` says which data; `config.build(tokenizer)` gives a `Data`, whose `batch(step, split)` is a pure function
of the config, the split and the step. A run that stops and resumes therefore sees the same batches, bit for bit.

Axes: `batch pos`; an encoder-decoder batch adds `batch source_pos`.
"""

import dataclasses
import hashlib
import inspect
from collections.abc import Iterator
from typing import Any, Literal, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from glassformer.arguments import Count, fits, refusal
from glassformer.config import Config, require
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError, TokenOutOfRange, nearest

Split = Literal["train", "heldout"]
# in a batch; the largest that language models were trained on have some sixty million
MOST_TOKENS = 1 << 28
SPLITS: tuple[Split, ...] = ("train", "heldout")


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """What one training step reads.

    Args:
        tokens: Input of the decoder, int64 `batch pos`; of what reads images these, `batch channel row column`.
        targets: The token that follows each input, int64 `batch pos`; or the one that stands there, of tokens that are
            hidden; or what is to be said of the text up to it, an id of another vocabulary; or the class of each image,
            `batch 1`; or, of images with noise in them, numbers like theirs, `batch channel row column`.
        weight: True where the target counts in the loss, `batch pos`.
        documents: Document of each input position, counted from 0 in each row; None if a row is one document.
        lengths: Real input positions per row; what lies beyond is padding. None if every row is full.
        source: Input of the encoder, int64 `batch source_pos`; None for decoders.
        source_lengths: Real positions per source row.
        times: How much noise each image has, from 0 to 1, float `batch`; None for what has none.
        classes: The class that a generator is told, int64 `batch`.
    """

    tokens: Tensor
    targets: Tensor
    weight: Tensor
    documents: Tensor | None = None
    lengths: Tensor | None = None
    source: Tensor | None = None
    source_lengths: Tensor | None = None
    times: Tensor | None = None
    classes: Tensor | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """The batch on another device; `non_blocking` does not wait for copies out of pinned memory."""
        moved = {name: value.to(device, non_blocking=non_blocking) for name, value in self.tensors().items()}
        return dataclasses.replace(self, **moved)

    def pinned(self) -> Self:
        """The batch in memory that an accelerator copies from by itself."""
        return dataclasses.replace(self, **{name: value.pin_memory() for name, value in self.tensors().items()})

    def rows(self, count: int) -> Self:
        """The first `count` rows."""
        return dataclasses.replace(self, **{name: value[:count] for name, value in self.tensors().items()})

    def check_targets(self, size: int) -> None:
        """Raise `TokenOutOfRange` for a target that a model with so many outputs has no logit of; numbers are none."""
        if not self.targets.numel() or self.targets.is_floating_point():
            return
        low, high = int(self.targets.min()), int(self.targets.max())
        if low < 0 or high >= size:
            raise TokenOutOfRange(
                f"the batch has target {low if low < 0 else high}, outside what the model predicts: 0 to {size - 1}."
            )

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are present, by name."""
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: value for name, value in fields if value is not None}


@runtime_checkable
class Data(Protocol):
    """A source of batches.

    `tokenizer` is the one that was passed in, or the one built in its place; None of images, which have none. Where
    targets, or sources, are tokens of another vocabulary, an attribute more names them: `output_tokenizer`,
    `source_tokenizer`. `documents` yields token ids without specials and is empty for data without documents.
    """

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    vocab_size: int

    def batch(self, step: int, split: Split = "train") -> Batch: ...
    def documents(self, split: Split) -> Iterator[list[int]]: ...
    def describe(self) -> dict[str, Any]: ...


def vocabularies_of(data: Data) -> dict[str, Tokenizer | None]:
    """Return what names a source's tokens, targets (`output`) and sources: one tokenizer, but for what has its own."""
    own = {side: getattr(data, f"{side}_tokenizer", data.tokenizer) for side in ("output", "source")}
    return {"input": data.tokenizer} | own


class DataConfig(Config, family=True):
    """Which data, how many rows per batch, how long, and with which seed."""

    batch_size: int
    length: int
    seed: int

    def check_sizes(self) -> None:
        for name in ("batch_size", "length"):
            value = getattr(self, name)
            require(fits(value, Count), f"{self.kind}: {name} {refusal(value, Count)}, found {str(value)[:60]}.")
        tokens, least = self.batch_size * self.length, {"batch_size": self.length, "length": self.batch_size}
        smaller = [f"{name}={MOST_TOKENS // other:,}" for name, other in least.items() if other <= MOST_TOKENS]
        require(
            tokens <= MOST_TOKENS,
            f"{self.kind}: a batch of batch_size={self.batch_size:,} rows of length={self.length:,} has {tokens:,} "
            f"tokens, and {MOST_TOKENS:,} are the most there may be. {' or '.join(smaller)} would do.",
        )

    def build(self, tokenizer: Tokenizer | None = None) -> Data:
        """Read or prepare the data; without a tokenizer, one that fits is built."""
        raise NotImplementedError

    def symbols(self) -> list[str] | None:
        """Return the vocabulary that the data bring, in id order; None for data that read with any tokenizer."""
        return None

    def check(self) -> None:
        """Raise what `build` would for text that is not there, as far as that shows before any is read.

        Raises:
            DataError: No file of that name, or a package that is not installed at that version.
            MissingExtra: A source needs a library that is not installed.
        """

    def origins(self) -> tuple[str, ...]:
        """Origins of rows: sources of text as they are named, and kinds of what is made up."""
        return (self.kind or type(self).__name__,)

    def synthetic(self) -> dict[str, float]:
        """Synthetic share of a training batch's rows: made up, rather than text that somebody wrote."""
        about = (inspect.getdoc(type(self)) or type(self).__name__).split("\n")[0]
        return {about.rstrip("."): 1.0}

    def on_text(self, sources: tuple[str, ...]) -> Self:
        """The same reading other text; data that read none as they are."""
        return self

    def texts(self) -> Iterator[str]:
        """Yield training text that a tokenizer can be learned from; none if rows are no text."""
        yield from ()


def check_split(split: str) -> None:
    """Raise `DataError` unless the split exists."""
    if split not in SPLITS:
        raise DataError(f'no split "{split}".{nearest(split, SPLITS)} Splits: {", ".join(SPLITS)}.')


def generator(*key: object) -> torch.Generator:
    """Return a generator seeded by the whole key, such as (seed, split, step)."""
    return torch.Generator().manual_seed(hash64(*key) >> 1)


def hash64(*key: object) -> int:
    """Return a 64-bit hash that is the same in every process and on every machine."""
    text = "\x1f".join(map(str, key))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def is_heldout(share: float, *key: object) -> bool:
    """Decide by hash whether the thing with this key is held out; true for about `share` of all keys."""
    return hash64(*key) < share * 2**64


def next_token_batch(sequence: Tensor, weight: Tensor | None = None, **fields: Tensor | None) -> Batch:
    """Split rows of length + 1 tokens into inputs and next tokens; without a weight, every position counts."""
    tokens, targets = sequence[:, :-1].contiguous(), sequence[:, 1:].contiguous()
    if weight is None:
        weight = torch.ones_like(targets, dtype=torch.bool)
    return Batch(tokens, targets, weight, **fields)
