"""Tasks of tokens that come again: repeated units, and a pair seen once before.

See `task` for what rows, weights and lengths mean.
"""

import dataclasses

import torch
from torch import Tensor

from glassformer.arguments import Kinds
from glassformer.config import require
from glassformer.data.batch import Split
from glassformer.data.tasks.task import Alphabet, Rows, TaskConfig, check_shape, last_position
from glassformer.errors import ConfigError, DataError


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
    unit_min: Kinds = 12
    unit_max: Kinds = 60
    bos: bool = True
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        check_shape(self)
        require(1 <= self.unit_min <= self.unit_max, f"unit_min={self.unit_min} exceeds unit_max={self.unit_max}.")
        require(self.vocab_size is None or self.vocab_size > 1, "vocab_size must leave a symbol beside <bos>.")

    def symbols(self) -> list[str] | None:
        return None if self.vocab_size is None else numbered(self.vocab_size)

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
        return None if self.vocab_size is None else numbered(self.vocab_size)

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        body = _different(alphabet.ids, self.batch_size, self.length - 2, random)
        place = torch.randint(self.length - 3, (self.batch_size, 1), generator=random)
        pair = torch.cat([body.gather(1, place), body.gather(1, place + 1)], 1)
        return Rows(_with_bos(torch.cat([body, pair], 1), alphabet, True), last_position(self))


def numbered(vocab_size: int) -> list[str]:
    """Return `<bos>` and numbered symbols, t1, t2, …"""
    return ["<bos>", *(f"t{i}" for i in range(1, vocab_size))]


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
