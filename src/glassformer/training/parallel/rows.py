"""Rows of a batch shared among ranks, and dropout that is the same whoever has which rows.

A rank draws the mask of all rows and keeps that of its own, so that what a step draws is a function of seed and step.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from glassformer.data import Batch
from glassformer.errors import ConfigError
from glassformer.training.parallel.shards import SequenceShards


def rows_between(n: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return where the rows of a rank begin and end, of n shared as evenly as they can be.

    Raises:
        ConfigError: A rank would have none.
    """
    if n < ranks:
        raise ConfigError(
            f"{n} rows cannot be shared among {ranks} ranks: each has one at least, of every part of a batch. "
            "Give data.batch_size more rows, or the mesh fewer ranks; accumulate says how many parts there are."
        )
    return n * rank // ranks, n * (rank + 1) // ranks


def shared_rows(batch: Batch, rank: int, ranks: int) -> Batch:
    """Return the rows of a batch that a rank has."""
    start, stop = rows_between(len(batch.tokens), rank, ranks)
    return dataclasses.replace(batch, **{name: value[start:stop] for name, value in batch.tensors().items()})


class DropoutOfAllRows(TorchFunctionMode):
    """Dropout, where it is on, by a mask that was drawn for all rows of a batch, and all their positions.

    Patterns, which have four axes, come with all positions; whoever shares these keeps its part of what is returned.

    Args:
        rows: How many rows all ranks have together.
        start: The first that this rank has.
        stop: The one behind its last.
        shards: Which rank has which positions; None if each has all of its rows.
        rank: This one, among those that share positions.
    """

    def __init__(self, rows: int, start: int, stop: int, shards: SequenceShards | None = None, rank: int = 0) -> None:
        super().__init__()
        self.rows, self.start, self.stop, self.shards, self.rank = rows, start, stop, shards, rank

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.dropout:
            return func(*args, **kwargs or {})
        return self._dropped(*args, **kwargs or {})

    def _dropped(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        assert not inplace and x.shape[0] == self.stop - self.start, "dropout is on rows of the batch"
        shards = None if x.ndim > 3 else self.shards
        # masks are drawn in the order of memory: that of the whole has to be laid out as x is
        order = sorted(range(x.ndim), key=lambda axis: (-x.stride(axis), axis))
        positions = x.shape[1:2] if shards is None else (shards.length,)
        shape = (self.rows, *positions, *x.shape[2:])
        ones = x.new_ones([shape[axis] for axis in order]).permute([order.index(axis) for axis in range(x.ndim)])
        mask = F.dropout(ones, p, training)[self.start : self.stop]
        return x * (mask if shards is None else shards.shard(mask, self.rank, 1))
