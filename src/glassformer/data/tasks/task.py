"""Synthetic tasks with answer keys: what a model can know is known, position by position.

Each config writes rows of length + 1 tokens and marks in `weight` the positions whose next token counts: those that the
row so far determines, or, where nothing is certain, those whose best loss is known. `optimal_loss()` is the mean loss
in nats over these positions of a model that knows the task perfectly.

Tasks over arbitrary tokens (repeat, induction) use the tokenizer they are given; the others bring their own symbols,
and are built with a tokenizer that has these among others, as that of a mixture of tasks has.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.config import require
from glassformer.data.batch import Batch, DataConfig, Split, check_split, generator, next_token_batch
from glassformer.data.tokenizer import Tokenizer, symbol_tokenizer
from glassformer.errors import DataError


class Rows(NamedTuple):
    """What a task writes.

    `sequence` is `batch length+1`; `weight[:, i]` says whether the prediction of `sequence[:, i + 1]` counts;
    `lengths` counts real inputs where rows are padded. Where the answers are a vocabulary of their own, `targets` are
    the answers, `batch length`, and `sequence` is as long.
    """

    sequence: Tensor
    weight: Tensor
    lengths: Tensor | None = None
    targets: Tensor | None = None


class Alphabet(NamedTuple):
    """Token ids a task may draw from, and the id that starts a row."""

    ids: Tensor
    bos: int | None


class TaskConfig(DataConfig):
    """A task: its symbols, its rows, its best loss."""

    def outputs(self) -> list[str] | None:
        """Return the vocabulary of the answers in id order, or None if they are tokens that are read."""
        return None

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
        self.tokenizer, self.vocab_size = tokenizer, tokenizer.vocab_size
        outputs = config.outputs()
        self.output_tokenizer = tokenizer if outputs is None else symbol_tokenizer(outputs)
        # rows are written in the task's own ids, which are places among its symbols
        own = tokenizer if symbols is None else symbol_tokenizer(symbols)
        free = [id for id in range(own.vocab_size) if id not in own.specials]
        self.alphabet = Alphabet(torch.tensor(free), own.bos)
        self.ids = torch.tensor(range(own.vocab_size) if symbols is None else self._ids_of(symbols))

    def batch(self, step: int, split: Split = "train") -> Batch:
        check_split(split)
        rows = self.config.rows(self.alphabet, split, generator(self.config.seed, split, step))
        sequence = self.ids[rows.sequence]
        if rows.targets is not None:
            return Batch(sequence, rows.targets, rows.weight, lengths=rows.lengths)
        return next_token_batch(sequence, rows.weight, lengths=rows.lengths)

    def _ids_of(self, symbols: list[str]) -> list[int]:
        """Return the tokenizer's ids of the task's symbols."""
        ids = [id for id in map(self.tokenizer.id, symbols) if id is not None]
        if len(ids) < len(symbols):
            config = self.config
            raise DataError(
                f'"{config.kind}" brings its own {len(symbols)} symbols, which are not among those of '
                f"{self.tokenizer}. Build it without a tokenizer"
                + (", or leave vocab_size out." if hasattr(config, "vocab_size") else ".")
            )
        return ids

    def optimal_loss(self) -> float:
        return self.config.optimal_loss()

    def documents(self, split: Split) -> Iterator[list[int]]:
        check_split(split)
        yield from ()

    def describe(self) -> dict[str, Any]:
        return {"task": self.config.to_dict(), "vocab_size": self.vocab_size, "optimal_loss": self.optimal_loss()}


def check_shape(config: DataConfig, least: int = 2) -> None:
    """Raise `ConfigError` if the batch is empty or its rows too short for the task."""
    require(config.batch_size >= 1, "batch_size must be at least 1.")
    require(config.length >= least, f'length={config.length} is too short for "{config.kind}": at least {least}.')


def last_position(config: DataConfig) -> Tensor:
    """Return a weight under which only the last token of each row counts."""
    return (torch.arange(config.length) == config.length - 1).expand(config.batch_size, -1).clone()
