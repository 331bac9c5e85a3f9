"""Entries of an axis, as a caller asks for them: an index, a slice, several indices, or a mask.

    asked([True, False, True], "head")        a mask stays one until the axis it is of is known
    located(mask, 3, "head")                  [0, 2]; a mask has one truth for each entry

A mask is a list or an array of booleans. Lists that mix booleans with numbers are refused: read as indices they would
stand for entries 0 and 1.
"""

# torch does not type `tolist`
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import ShapeMismatch

# a tensor holds indices, the booleans of a mask are a list
Where = int | slice | Sequence[int] | Tensor


def asked(where: Any, axis: str) -> Where:
    """Return what was asked for along an axis as an index, a slice, a list of indices or of booleans, or a tensor.

    Raises:
        ShapeMismatch: It is none of these.
    """
    if isinstance(where, Tensor) and where.dtype != torch.bool:
        return _tensor(where, axis)
    if isinstance(where, slice):
        return _slice(where, axis)
    if isinstance(where, str | bytes | bool):
        raise _refused(where, axis)
    if isinstance(where, int):
        return where
    if hasattr(where, "tolist"):
        where = where.tolist()
    if isinstance(where, Sequence):
        return _several(where, axis)
    return _one(where, axis)


def located(where: Where, size: int, axis: str) -> Where:
    """Return what was asked for as places of an axis of some length: a mask becomes the indices it is true at.

    Raises:
        ShapeMismatch: An index lies outside, or a mask is not as long as the axis.
    """
    if isinstance(where, slice):
        # torch knows no step backwards
        return where if where.step is None or where.step > 0 else list(range(size)[where])
    if isinstance(where, int):
        outside = [] if -size <= where < size else [where]
    elif isinstance(where, Tensor):
        # a compiled graph cannot look at the entries; its kernel refuses them
        looked = not torch.compiler.is_compiling() and where.numel() > 0
        outside = [] if not looked else [i for i in map(int, where.aminmax()) if not -size <= i < size]
    elif is_mask(where):
        if len(where) != size:
            raise ShapeMismatch(
                f"{axis}: a mask of {len(where)} truths, and the axis has {size} entries; give one truth for each."
            )
        return true_entries(where)
    else:
        outside = [i for i in where if not -size <= i < size]
    if outside:
        raise ShapeMismatch(f"{axis}={outside[0]}: the axis has {size} entries, 0 to {size - 1}.")
    return where


def entries(where: Where, size: int, axis: str) -> list[int]:
    """Return the entries that were asked for, counted from 0, as often and in the order they were; raises `located`."""
    found = located(where, size, axis)
    if isinstance(found, int):
        return [found % size]
    if isinstance(found, slice):
        return list(range(size)[found])
    return [int(i) % size for i in (found.tolist() if isinstance(found, Tensor) else found)]


def true_entries(where: Sequence[int] | Tensor) -> Sequence[int] | Tensor:
    """Return a mask as the indices it is true at, and indices as they are."""
    return [i for i, chosen in enumerate(where) if chosen] if is_mask(where) else where


def one(where: Any, axis: str) -> int:
    """Return the one index that was asked for; raises `ShapeMismatch` for anything else."""
    # numpy's and torch's as Python's: their booleans and fractions may have an `__index__`
    found = where.tolist() if hasattr(where, "tolist") else where
    if isinstance(found, bool) or not hasattr(found, "__index__"):
        raise ShapeMismatch(f"{axis}: one index is asked for, found {_shown(where)}.")
    return operator.index(found)


def is_mask(where: Any) -> bool:
    """Whether what `asked` returned is a mask."""
    return isinstance(where, list) and len(where) > 0 and isinstance(where[0], bool)


def is_empty(where: Where) -> bool:
    """Whether what `asked` returned chooses no entry, however long the axis is."""
    if isinstance(where, Tensor):
        return where.numel() == 0
    if isinstance(where, slice):
        start, stop, forward = where.start or 0, where.stop, where.step is None or where.step > 0
        # from the other end it depends on how long the axis is
        return stop is not None and forward and (start >= 0) == (stop >= 0) and start >= stop
    return isinstance(where, list) and (not where or (is_mask(where) and not any(where)))


def _several(where: Sequence[Any], axis: str) -> list[int]:
    # numpy's booleans and numbers, and tensors of one entry, as Python's
    found = [i.item() if hasattr(i, "item") else i for i in where]
    truths = sum(isinstance(i, bool) for i in found)
    if 0 < truths < len(found):
        raise ShapeMismatch(
            f"{axis}: {_shown(where)} mixes truths with numbers. Give a mask, one truth for each entry, or indices."
        )
    return found if truths else [_one(i, axis) for i in found]


def _one(where: Any, axis: str) -> int:
    if isinstance(where, bool) or not hasattr(where, "__index__"):
        raise _refused(where, axis)
    return operator.index(where)


def _tensor(where: Tensor, axis: str) -> Tensor:
    if where.is_floating_point() or where.is_complex() or where.ndim > 1:
        kind = f"{str(where.dtype).removeprefix('torch.')} with {where.ndim} axes"
        raise ShapeMismatch(f"{axis}: indices are integers along one axis, or a mask; found a tensor of {kind}.")
    return where


def _slice(where: slice, axis: str) -> slice:
    parts = (where.start, where.stop, where.step)
    if where.step == 0 or not all(part is None or hasattr(part, "__index__") for part in parts):
        raise _refused(where, axis)
    return where


def _refused(where: Any, axis: str) -> ShapeMismatch:
    return ShapeMismatch(
        f"{axis}={_shown(where)} is no place. Give an index, a slice, several indices, or a mask (a list or tensor of "
        "truths, one for each entry)."
    )


def _shown(where: Any) -> str:
    text = repr(where)
    return text if len(text) <= 60 else f"{text[:57]}…"
