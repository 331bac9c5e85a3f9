"""Where the positions of texts lie in the chunks of a memory that takes its gradients chunk by chunk.

A chunk is so many positions of a text, counted from where it begins: part of what the memory is, and not of how it is
worked out. Rows that are padded on the left, or packed of documents, have their chunks in different places; here they
are laid into chunks of one length, with slots left empty.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.attention.context import Context


class ChunkLayout(NamedTuple):
    """Chunks of equal length, in which the new positions of a pass lie in their order.

    Args:
        n_chunks: Chunks of a row.
        length: Slots of a chunk.
        skipped: Empty slots before the first position, where positions of all rows lie one behind another.
        slots: The slot of each position, the last of all for padding; None where they lie one behind another.
        filled: Which slots hold a position that is no padding; None for all.
        fresh: Of each chunk, whether its gradients are of the memory as it finds it; not so of one that was open.
        begins: Of each chunk, which rows begin a text with it; None for none.
    """

    n_chunks: int
    length: int
    skipped: int
    slots: Int[Tensor, "batch pos"] | None
    filled: Bool[Tensor, "#batch slot"] | None
    fresh: Sequence[bool | Tensor]
    begins: Sequence[Tensor] | None

    def laid(self, x: Tensor, axis: int) -> Tensor:
        """Return rows in their slots, zeros in empty ones: the axis of positions becomes those of chunks and rows."""
        n = x.shape[axis]
        if self.slots is not None:
            x = x.movedim(axis, -1)
            shape = (*x.shape[:-1], self.n_chunks * self.length + 1)
            index = self.slots.view(len(self.slots), *[1] * (x.ndim - 2), n).expand_as(x)
            x = x.new_zeros(shape).scatter(-1, index, x)[..., :-1].movedim(-1, axis)
        elif (empty := self.n_chunks * self.length - n) > 0:
            x = F.pad(x, (*[0] * (2 * (-axis - 1)), self.skipped, empty - self.skipped))
        return x.unflatten(axis, (self.n_chunks, self.length))

    def taken(self, z: Tensor, n: int) -> Tensor:
        """Return what lies in the slots of positions, `… chunk row width`; zeros for padding."""
        z = z.flatten(-3, -2)
        if self.slots is None:
            return z[..., self.skipped : self.skipped + n, :]
        index = self.slots[:, None, :, None].expand(-1, z.shape[1], -1, z.shape[-1])
        return F.pad(z, (0, 0, 0, 1)).gather(-2, index)


def chunk_layout(context: Context, n: int, batch: int, size: int, real: Bool[Tensor, "b pos"] | None) -> ChunkLayout:
    """Return the layout of the last positions of a pass.

    Args:
        context: Facts of the pass.
        n: How many positions are new.
        batch: Rows.
        size: Positions of a chunk.
        real: Which of them are no padding; None for all.
    """
    if context.first is not None and context.documents is None:
        return _in_order(context.first, n, size, real, context.positions.device)
    positions = text_positions(context, n).expand(batch, -1)
    there = torch.ones_like(positions, dtype=torch.bool) if real is None else real.expand(batch, -1)
    opens, starts = (positions % size == 0) & there, (positions == 0) & there
    if n == 1:
        return ChunkLayout(
            n_chunks=1, length=1, skipped=0, slots=None, filled=real, fresh=[opens[:, 0]], begins=[starts[:, 0]]
        )
    # the chunk that was open is the first, unless a new one begins with a row's first position
    place = torch.arange(n, device=positions.device).expand_as(positions)
    leading = there & (there.cumsum(-1) == 1)
    anew = (opens & leading).any(-1)
    chunk = opens.cumsum(-1) - anew.long()[:, None]
    row = place - torch.where(opens | leading, place, 0).cummax(-1).values
    n_chunks, length = _extent(chunk, row, there, context, size)
    slots = torch.where(there, chunk * length + row, n_chunks * length)
    empty = positions.new_zeros(batch, n_chunks * length + 1, dtype=torch.bool)
    filled, first = (empty.scatter(-1, slots, there & flags)[:, :-1] for flags in (there, starts))
    used, begins = (x.unflatten(-1, (n_chunks, length)).any(-1) for x in (filled, first))
    fresh = [used[:, 0] & anew, *used.unbind(-1)[1:]]
    return ChunkLayout(
        n_chunks=n_chunks, length=length, skipped=0, slots=slots, filled=filled, fresh=fresh, begins=begins.unbind(-1)
    )


def text_positions(context: Context, n: int) -> Int[Tensor, "b pos"]:
    """Return where the last positions of a pass are in their texts; what lies behind a text's end counts on."""
    if (documents := context.documents) is None:
        return context.positions[:, -n:]
    number = documents.number
    place = torch.arange(number.shape[1], device=number.device)
    begins = F.pad(number[:, 1:] != number[:, :-1], (1, 0), value=True)
    return (place - torch.where(begins, place, 0).cummax(-1).values)[:, -n:]


def _in_order(first: int, n: int, size: int, real: Tensor | None, device: torch.device) -> ChunkLayout:
    """Return the layout where all rows begin with the same position, and count on from it."""
    behind = first % size
    if behind + n <= size:
        return ChunkLayout(n_chunks=1, length=n, skipped=0, slots=None, filled=real, fresh=[behind == 0], begins=None)
    n_chunks = -(-(behind + n) // size)
    fresh = [behind == 0, *[True] * (n_chunks - 1)]
    empty = n_chunks * size - n
    filled = None
    if empty > 0 or real is not None:
        there = torch.ones(1, n, dtype=torch.bool, device=device) if real is None else real
        filled = F.pad(there, (behind, empty - behind))
    return ChunkLayout(
        n_chunks=n_chunks, length=size, skipped=behind, slots=None, filled=filled, fresh=fresh, begins=None
    )


def _extent(chunk: Tensor, row: Tensor, there: Tensor, context: Context, size: int) -> tuple[int, int]:
    """Return how many chunks there are, and slots in each; a compiled graph takes as many as there may be."""
    n = chunk.shape[-1]
    if torch.compiler.is_compiling():
        return (n if context.documents is not None else (n - 1) // size + 2), min(size, n)
    return int((chunk * there).max()) + 1, int((row * there).max()) + 1
