"""Padding: which tokens of a batch are real, on whichever side the others are.

    Padding.of(ids, lengths), Padding.masked(ids, mask)      checked; `lengths` and `start` are what models take

On the right, `lengths` says where each row ends; on the left, `start` where it begins. A mask in which no row has both
says the same.
"""

# torch does not type `tolist`
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.errors import ShapeMismatch


@dataclass(frozen=True, eq=False)
class Padding:
    """Where the real tokens of each row are.

    Args:
        lengths: How many there are in each row; None if all are.
        start: Where they begin, if padding is on the left; None if at the first position.
    """

    lengths: Int[Tensor, " batch"] | None = None
    start: Int[Tensor, " batch"] | None = None

    @classmethod
    def of(cls, ids: Tensor, lengths: Any) -> Self:
        """Return padding on the right; raises `ShapeMismatch` unless there is a length of 1 or more for each row."""
        if lengths is None:
            return cls()
        counts = _integers(lengths, "lengths").to(ids.device)
        batch, length = ids.shape
        if counts.shape != (batch,):
            raise ShapeMismatch(f"lengths have shape {tuple(counts.shape)}; give one for each of {batch} rows.")
        low, high = int(counts.min()), int(counts.max())
        if low < 1 or high > length:
            raise ShapeMismatch(f"a length of {low if low < 1 else high}: rows have 1 to {length} real tokens.")
        return cls(counts)

    @classmethod
    def masked(cls, ids: Tensor, mask: Any) -> Self:
        """Return what a mask says, 1 for real tokens; raises `ShapeMismatch` for one that no padding makes."""
        real = _integers(mask, "mask").to(ids.device).bool()
        real = real[None] if real.ndim == 1 else real
        if real.shape != ids.shape:
            raise ShapeMismatch(f"mask has shape {tuple(real.shape)}, and the ids {tuple(ids.shape)}: one for each id.")
        counts, first = real.sum(-1), real.int().argmax(-1)
        if bool(real.all()):
            return cls()
        place = torch.arange(ids.shape[1], device=ids.device)
        whole = (place >= first[:, None]) & (place < (first + counts)[:, None])
        if not bool((whole == real).all()) or int(counts.min()) < 1:
            raise ShapeMismatch("mask: the real tokens of each row stand together, and there is one at least.")
        if not bool(first.any()):
            return cls(counts)
        if bool((first + counts != ids.shape[1]).any()):
            raise ShapeMismatch("mask: padding is on one side, the same for all rows: on the left, or on the right.")
        return cls(counts, first)

    @classmethod
    def said(cls, ids: Tensor, lengths: Any, mask: Any) -> Self:
        """Return padding as a caller says it; raises `ShapeMismatch` if it does not fit the ids, or is said twice."""
        if mask is None:
            return cls.of(ids, lengths)
        if lengths is not None:
            raise ShapeMismatch("lengths= and mask= say the same; give one of them.")
        return cls.masked(ids, mask)

    @property
    def is_any(self) -> bool:
        """Whether there is any padding."""
        return self.lengths is not None

    @property
    def told(self) -> tuple[Tensor | None, Tensor | None]:
        """What models are told, as `lengths` and `start`: one of the two says it all."""
        return (self.lengths, None) if self.start is None else (None, self.start)

    def real(self, ids: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
        """Return which tokens are real."""
        place = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        if self.start is not None:
            return place >= self.start[:, None]
        return torch.ones_like(ids, dtype=torch.bool) if self.lengths is None else place < self.lengths[:, None]

    def real_rows(self, ids: Int[Tensor, "batch pos"]) -> list[list[int]]:
        """Return each row's real tokens."""
        return [row[real].tolist() for row, real in zip(ids, self.real(ids))]

    def aligned(self, values: Tensor, axis: int = 1) -> Tensor:
        """Return values whose first axis is the batch with real tokens first along another axis, padding behind."""
        if self.start is None:
            return values
        size = values.shape[axis]
        shape = [len(self.start), *[1] * (values.ndim - 1)]
        shape[axis] = size
        order = (torch.arange(size, device=values.device) + self.start.to(values.device)[:, None]) % size
        return values.gather(axis, order.view(shape).expand_as(values))


WHOLE = Padding()


def _integers(given: Any, name: str) -> Tensor:
    try:
        found = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ShapeMismatch(f"{name}: expected whole numbers ({error}).") from error
    if found.is_floating_point() or found.is_complex():
        raise ShapeMismatch(f"{name}: expected whole numbers, found {str(found.dtype).removeprefix('torch.')}.")
    return found
