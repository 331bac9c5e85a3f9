"""Rows that grow at the end without being copied each time.

A state hands out a view on the front of a larger store; the rows behind it are room for later positions. Nothing that a
view shows is ever written again, and a second continuation of the same state finds its room taken and copies: states
stay values, as if every step concatenated.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

SPARE = 64  # least room added when a store is made


@dataclass(eq=False)
class Room:
    """A store and how many of its rows are taken."""

    store: Float[Tensor, "*batch capacity width"]
    taken: int


def append(
    rows: Float[Tensor, "*batch n width"], new: Float[Tensor, "*batch m width"], room: Room | None
) -> tuple[Float[Tensor, "*batch n_plus_m width"], Room | None]:
    """Return `rows` followed by `new`, and the room behind them.

    With gradients on, or while compiling, this is a plain concatenation.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return torch.cat((rows, new), -2), None
    n, m = rows.shape[-2], new.shape[-2]
    if room is None or not _continues(rows, room) or room.taken + m > room.store.shape[-2]:
        # half as much again: the cost of all copies stays proportional to the length
        capacity = n + m + max(SPARE, n // 2)
        room = Room(rows.new_empty(*rows.shape[:-2], capacity, rows.shape[-1]), n)
        room.store[..., :n, :] = rows
    start, room.taken = room.taken - n, room.taken + m
    room.store[..., room.taken - m : room.taken, :] = new
    return room.store[..., start : room.taken, :], room


def _continues(rows: Tensor, room: Room) -> bool:
    """Whether `rows` are the last ones taken of this store: not so once rows were selected, edited or continued."""
    store, start = room.store, room.taken - rows.shape[-2]
    if start < 0 or rows.shape[:-2] != store.shape[:-2] or rows.stride() != store.stride():
        return False
    same_memory = rows.is_meta or rows.data_ptr() == store[..., start:, :].data_ptr()
    return same_memory and rows.dtype == store.dtype and rows.device == store.device
