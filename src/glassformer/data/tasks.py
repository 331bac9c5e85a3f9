"""Synthetic tasks with answer keys: what a model can know is known, position by position.

Each config writes rows of length + 1 tokens and marks in `weight` the positions whose next token counts: those that the
row so far determines, or, where nothing is certain, those whose best loss is known. `optimal_loss()` is the mean loss
in nats over these positions of a model that knows the task perfectly.

Tasks over arbitrary tokens (repeat, induction) use the tokenizer they are given; the others bring their own symbols.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.config import require
from glassformer.data.batch import Batch, DataConfig, Split, check_split, generator, next_token_batch
from glassformer.data.tokenizer import Tokenizer, symbol_tokenizer
from glassformer.errors import ConfigError, DataError


class Rows(NamedTuple):
    """What a task writes.

    `sequence` is `batch length+1`; `weight[:, i]` says whether the prediction of `sequence[:, i + 1]` counts;
    `lengths` counts real inputs where rows are padded.
    """

    sequence: Tensor
    weight: Tensor
    lengths: Tensor | None = None


class Alphabet(NamedTuple):
    """Token ids a task may draw from, and the id that starts a row."""

    ids: Tensor
    bos: int | None


class TaskConfig(DataConfig):
    """A task: its symbols, its rows, its best loss."""

    def symbols(self) -> list[str] | None:
        """Return the vocabulary in id order, or None if the tokenizer's is used."""
        raise NotImplementedError

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        """Write `batch_size` rows."""
        raise NotImplementedError

    def optimal_loss(self) -> float:
        """Return the mean loss over the weighted positions, in nats, of a perfect model."""
        return 0.0

    def build(self, tokenizer: Tokenizer | None = None) -> "TaskData":
        return TaskData(self, tokenizer)


class TaskData:
    """Rows of a task, drawn afresh for every step."""

    def __init__(self, config: TaskConfig, tokenizer: Tokenizer | None = None) -> None:
        self.config = config
        symbols = config.symbols()
        if tokenizer is None:
            if symbols is None:
                raise DataError(f'"{config.kind}" needs vocab_size or a tokenizer to draw tokens from.')
            tokenizer = symbol_tokenizer(symbols)
        elif symbols is not None and tokenizer.tokens(range(tokenizer.vocab_size)) != symbols:
            raise DataError(
                f'"{config.kind}" brings its own {len(symbols)} symbols, which are not those of {tokenizer}. Build it '
                "without a tokenizer" + (", or leave vocab_size out." if hasattr(config, "vocab_size") else ".")
            )
        self.tokenizer, self.vocab_size = tokenizer, tokenizer.vocab_size
        free = [id for id in range(tokenizer.vocab_size) if id not in tokenizer.specials]
        self.alphabet = Alphabet(torch.tensor(free), tokenizer.bos)

    def batch(self, step: int, split: Split = "train") -> Batch:
        check_split(split)
        rows = self.config.rows(self.alphabet, split, generator(self.config.seed, split, step))
        return next_token_batch(rows.sequence, rows.weight, lengths=rows.lengths)

    def optimal_loss(self) -> float:
        return self.config.optimal_loss()

    def documents(self, split: Split) -> Iterator[list[int]]:
        check_split(split)
        yield from ()

    def describe(self) -> dict[str, Any]:
        return {"task": self.config.to_dict(), "vocab_size": self.vocab_size, "optimal_loss": self.optimal_loss()}


@dataclasses.dataclass(frozen=True)
class Repeat(TaskConfig, kind="repeat"):
    """Random tokens, repeated to the end of the row.

    A row is `<bos>` and a unit of `unit_min` to `unit_max` different tokens, over and over. From the second token of
    the first repetition on, everything is determined; where the unit ends is not.

    Args:
        vocab_size: Symbols and `<bos>`; None for those of the tokenizer.
        bos: Start each row with `<bos>`.
    """

    batch_size: int = 16
    length: int = 128
    seed: int = 0
    unit_min: int = 12
    unit_max: int = 60
    bos: bool = True
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        check_shape(self)
        require(1 <= self.unit_min <= self.unit_max, f"unit_min={self.unit_min} exceeds unit_max={self.unit_max}.")
        require(self.vocab_size is None or self.vocab_size > 1, "vocab_size must leave a symbol beside <bos>.")

    def symbols(self) -> list[str] | None:
        return _numbered(self.vocab_size)

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        width = self.length + 1
        longest = min(self.unit_max, width)
        units = _different(alphabet.ids, self.batch_size, longest, random)
        size = torch.randint(self.unit_min, self.unit_max + 1, (self.batch_size, 1), generator=random)
        lead = int(self.bos)
        place = (torch.arange(width - lead)[None, :] % size).clamp(max=longest - 1)
        sequence = _with_bos(units.gather(1, place), alphabet, self.bos)
        # the first token of a repetition could as well be a fresh one: only what follows it is certain
        weight = torch.arange(self.length)[None, :] >= size + lead
        return Rows(sequence, weight)


@dataclasses.dataclass(frozen=True)
class Induction(TaskConfig, kind="induction"):
    """`… A B … A` -> `B`: all tokens differ, except that the last repeats an earlier one.

    Args:
        vocab_size: Symbols and `<bos>`; None for those of the tokenizer.
    """

    batch_size: int = 16
    length: int = 32
    seed: int = 0
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        check_shape(self, least=4)

    def symbols(self) -> list[str] | None:
        return _numbered(self.vocab_size)

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        body = _different(alphabet.ids, self.batch_size, self.length - 2, random)
        place = torch.randint(self.length - 3, (self.batch_size, 1), generator=random)
        pair = torch.cat([body.gather(1, place), body.gather(1, place + 1)], 1)
        return Rows(_with_bos(torch.cat([body, pair], 1), alphabet, True), last_position(self))


def check_shape(config: DataConfig, least: int = 2) -> None:
    """Raise `ConfigError` if the batch is empty or its rows too short for the task."""
    require(config.batch_size >= 1, "batch_size must be at least 1.")
    require(config.length >= least, f'length={config.length} is too short for "{config.kind}": at least {least}.')


def last_position(config: DataConfig) -> Tensor:
    """Return a weight under which only the last token of each row counts."""
    return (torch.arange(config.length) == config.length - 1).expand(config.batch_size, -1).clone()


def _numbered(vocab_size: int | None) -> list[str] | None:
    return None if vocab_size is None else ["<bos>", *(f"t{i}" for i in range(1, vocab_size))]


def _different(ids: Tensor, rows: int, size: int, random: torch.Generator) -> Tensor:
    """Draw `size` different ids for each row."""
    if size > len(ids):
        raise DataError(f"{size} different tokens per row, but the vocabulary has {len(ids)}. Use a larger vocab_size.")
    # the places of the smallest of random numbers are a random choice without repeats
    return ids[torch.rand(rows, len(ids), generator=random).topk(size, largest=False).indices]


def _with_bos(sequence: Tensor, alphabet: Alphabet, wanted: bool) -> Tensor:
    if not wanted:
        return sequence
    if alphabet.bos is None:
        raise ConfigError("bos=True, but the tokenizer has no <bos>. Set bos=False.")
    return torch.cat([torch.full((len(sequence), 1), alphabet.bos), sequence], 1)
