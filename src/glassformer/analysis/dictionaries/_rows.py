"""Where the rows that a dictionary is trained on come from: a store of activations, or a tensor of them.

A source says how many rows there are, their mean, variance and scale, and gives batches in an order that is a function
of seed and step. A site of a store is one: `ActivationStore.open(folder).site("blocks.2.resid_post")`.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownMemberType=false

from collections.abc import Iterator
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.data.batch import generator
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.numerics.decompositions import is_finite

BLOCK = 4096  # rows that are summed at once


@runtime_checkable
class RowSource(Protocol):
    """Rows of one site."""

    def __len__(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def mean(self) -> Float[Tensor, " width"]: ...

    @property
    def variance(self) -> Float[Tensor, " width"]: ...

    @property
    def scale(self) -> float:
        """Mean norm of rows over the square root of their width."""
        ...

    def shuffled(self, batch_size: int, *, seed: int = 0) -> Any:
        """Batches in random order: `batch(step)`, counted from 0 through all epochs, has rows under `values`."""
        ...

    def batches(self, batch_size: int) -> Iterator[Any]:
        """All rows in order, so many at a time, under `values`."""
        ...


class GivenRows:
    """Rows that are in memory, as a source.

    Args:
        values: All of them.
    """

    def __init__(self, values: Float[Tensor, "row width"]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        return self.values.shape[1]

    @property
    def mean(self) -> Float[Tensor, " width"]:
        return torch.stack([block.sum(0) for block in self._blocks()]).sum(0) / len(self)

    @property
    def variance(self) -> Float[Tensor, " width"]:
        mean = self.mean
        return torch.stack([(block - mean).square().sum(0) for block in self._blocks()]).sum(0) / len(self)

    @property
    def scale(self) -> float:
        return float(sum(block.norm(dim=-1).sum() for block in self._blocks())) / len(self) / self.width**0.5

    def _blocks(self) -> Iterator[Float[Tensor, "row width"]]:
        """Yield the rows in double precision, a few at a time: all of them would be twice what they are or more."""
        return (values.double() for values in self.values.split(BLOCK))

    def shuffled(self, batch_size: int, *, seed: int = 0) -> "ShuffledGivenRows":
        return ShuffledGivenRows(self.values, batch_size, seed)

    def batches(self, batch_size: int) -> Iterator["GivenRows"]:
        return (GivenRows(values) for values in self.values.split(batch_size))


class ShuffledGivenRows:
    """Batches of rows in memory, every row once an epoch; the last of an epoch has what is left."""

    def __init__(self, values: Float[Tensor, "row width"], batch_size: int, seed: int) -> None:
        self.values, self.batch_size, self.seed = values, batch_size, seed
        self._order: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return -(-len(self.values) // self.batch_size)

    def batch(self, step: int) -> GivenRows:
        epoch, within = divmod(step, len(self))
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, torch.randperm(len(self.values), generator=generator("rows", self.seed, epoch))
        places = self._order[1][within * self.batch_size : (within + 1) * self.batch_size]
        return GivenRows(self.values[places.to(self.values.device)])


def row_source(rows: Any, analysis: str) -> RowSource:
    """Return rows as a source.

    Raises:
        ShapeMismatch: A tensor is no matrix of numbers, or some are not finite.
        AnalysisUnavailable: There are no rows, or it is neither a tensor nor a site of a store.
    """
    if isinstance(rows, Tensor):
        if rows.ndim != 2 or not rows.is_floating_point():
            found = " ".join(map(str, rows.shape))
            raise ShapeMismatch(f"{analysis} takes rows of numbers, `row width`; found {found} of {rows.dtype}.")
        if not is_finite(rows):
            raise ShapeMismatch(f"{analysis}: some rows hold numbers that are not finite.")
        rows = GivenRows(rows.detach())
    # of its type: a mean is worked out when it is asked for
    if not all(hasattr(type(rows), name) for name in ("shuffled", "batches", "mean", "variance", "scale", "width")):
        raise AnalysisUnavailable(
            f"{analysis} takes a tensor of rows or a site of a store of activations; found {type(rows).__name__}.\n"
            '    Of a store: store.site("blocks.2.resid_post").'
        )
    if not len(rows):
        raise AnalysisUnavailable(f"{analysis}: there are no rows.")
    return cast(RowSource, rows)
