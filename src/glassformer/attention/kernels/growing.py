"""Rows that grow at the end without being copied each time.

`append` returns a view on the front of a larger store, and notes on that tensor object how much of the store is taken;
the rows behind the view are room for later positions. Nothing that a view shows is ever written again, and a second
continuation of the same rows finds its room taken and copies: states stay values, as if every step concatenated. Any
tensor made from the view (rows selected, cropped, edited) is another object without the note, and starts a store of
its own. Rows that lie in pages are continued there, see `paged`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.kernels.paged import PagedRows

SPARE = 64  # least room added when a store is made


@dataclass(eq=False)
class _Room:
    """A store and how many of its rows are taken."""

    store: Tensor
    taken: int


def append(
    rows: Float[Tensor, "*batch n width"] | PagedRows, new: Float[Tensor, "*batch m width"], keep: int | None = None
) -> tuple[Float[Tensor, "*batch all width"], Any]:
    """Return `rows` followed by `new`, and the last `keep` of them (all by default) to append to later.

    With gradients on, or while compiling, this is a plain concatenation.
    """
    if isinstance(rows, PagedRows):
        return rows.append(new, keep)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        whole = torch.cat((rows, new), -2)
        return whole, _last(whole, keep)
    n, m = rows.shape[-2], new.shape[-2]
    room: _Room | None = getattr(rows, "room", None)
    if room is None or not _continues(rows, room) or room.taken + m > room.store.shape[-2]:
        # half as much again: the cost of all copies stays proportional to the length
        capacity = n + m + max(SPARE, n // 2)
        room = _Room(rows.new_empty(*rows.shape[:-2], capacity, rows.shape[-1]), n)
        room.store[..., :n, :] = rows
    start, room.taken = room.taken - n, room.taken + m
    room.store[..., room.taken - m : room.taken, :] = new
    whole = room.store[..., start : room.taken, :]
    kept = _last(whole, keep)
    kept.room = room  # type: ignore[attr-defined]
    return whole, kept


def _last(rows: Tensor, keep: int | None) -> Tensor:
    return rows if keep is None else rows[..., max(rows.shape[-2] - keep, 0) :, :]


def _continues(rows: Tensor, room: _Room) -> bool:
    """Whether `rows` still are the last ones taken: not so once they were continued, or copied with their note."""
    store, start = room.store, room.taken - rows.shape[-2]
    if start < 0 or rows.shape[:-2] != store.shape[:-2] or rows.stride() != store.stride():
        return False
    return rows.is_meta or rows.data_ptr() == store[..., start:, :].data_ptr()
