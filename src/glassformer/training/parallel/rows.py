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
    """Dropout, where it is on, by a mask that was drawn for all rows of a batch.

    Args:
        rows: How many rows all ranks have together.
        start: The first that this rank has.
        stop: The one behind its last.
    """

    def __init__(self, rows: int, start: int, stop: int) -> None:
        super().__init__()
        self.rows, self.start, self.stop = rows, start, stop

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.dropout:
            return func(*args, **kwargs or {})
        return self._dropped(*args, **kwargs or {})

    def _dropped(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        assert not inplace and x.shape[0] == self.stop - self.start, "dropout is on rows of the batch"
        # masks are drawn in the order of memory: that of the whole has to be laid out as x is
        order = sorted(range(x.ndim), key=lambda axis: (-x.stride(axis), axis))
        shape = (self.rows, *x.shape[1:])
        ones = x.new_ones([shape[axis] for axis in order]).permute([order.index(axis) for axis in range(x.ndim)])
        return x * F.dropout(ones, p, training)[self.start : self.stop]
