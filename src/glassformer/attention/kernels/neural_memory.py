"""A memory that learns while it reads: weights that each position moves down the gradient of what it should have given.

    S_t = eta_t S_{t-1} - theta_t grad |M(k_t) - v_t|^2,    M_t = (1 - alpha_t) M_{t-1} + S_t,    z_t = M_t(q_t)

M is a matrix, or several with an activation between. Gradients are taken of the weights with which a position's chunk
begins, so that those of a chunk are known at once; chunks of one position give the recurrence as it stands, and the
length of a chunk is part of what the memory is.

The gradient of a matrix is an outer product x_i' d_i of what it reads and of the error it is told of. With B_tj the
product of 1 - alpha behind j up to t, E_ji that of eta behind i up to j, b_t and e_t those from the start of the chunk:

    C = B E,    x M_t = b_t x M + (B e)_t x S - sum_{i<=t} 2 theta_i C_ti (x . x_i) d_i

reads a matrix of each position that is never formed; at the end of a chunk the same sum, and that with E in place of C,
make the weights and the momentum of the next. `kernels.decay` has B, E, b and e, from logarithms. Slots without a
position keep all they find, and add no momentum.

Source: Behrouz, Zhong, Mirrokni 2025, "Titans: Learning to Memorize at Test Time" (2501.00663), sections 3.1 and 3.2.
The factor 2 of the gradient is written out there and dropped on the way; here it stays.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.kernels.chunk_layout import ChunkLayout
from glassformer.attention.kernels.decay import gates_decay
from glassformer.numerics.decompositions import unit_lower_solution

Activation = Literal["silu", "gelu"]
# positions whose weights are read together: what is stacked of them stays in the cache
SPAN = 256


class Gates(NamedTuple):
    """What each position does to the memory.

    Args:
        rate: theta, step down the gradient; 0 for padding.
        log_momentum: Logarithm of eta, what is kept of the momentum; 0 for padding.
        log_keep: Logarithm of 1 - alpha, what is kept of the weights; 0 for padding.
    """

    rate: Float[Tensor, "batch head *pos"]
    log_momentum: Float[Tensor, "batch head *pos"]
    log_keep: Float[Tensor, "batch head *pos"]


class MemoryState(NamedTuple):
    """A memory between two positions: matrices `batch head in out`, in the order in which they are read.

    Args:
        opened: Weights with which the chunk began that is open, of which gradients are taken.
        weights: Weights now.
        momentum: Past gradients, fading.
    """

    opened: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    momentum: tuple[Tensor, ...]


class _Fading(NamedTuple):
    """Of chunks: what is left of weights, of momentum and of writes at each row, and of the last two at the end.

    Rows of writes are multiplied by twice their rate.
    """

    weights: Float[Tensor, "group chunk row 1"]
    momentum: Float[Tensor, "group chunk row 1"]
    writes: Float[Tensor, "group chunk row row"]
    momentum_end: Float[Tensor, "group chunk 1 1"]
    writes_end: Float[Tensor, "group chunk row 1"]


def neural_memory(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch head pos d_value"],
    gates: Gates,
    state: MemoryState,
    start: Sequence[Float[Tensor, "head d_in d_out"]],
    layout: ChunkLayout,
    activation: Activation = "silu",
) -> tuple[Float[Tensor, "batch head pos d_value"], Float[Tensor, "batch head pos"], MemoryState]:
    """Return what positions read, each after its own write; the lengths of their gradients; and the memory behind them.

    Args:
        q: Queries.
        k: Keys; a chunk whose 2 theta k . k sum to more than 2 may overshoot.
        v: Values.
        gates: Of each position.
        state: The memory before the first.
        start: Weights with which a text begins.
        layout: Where positions lie in chunks.
        activation: Between two matrices.
    """
    lead, n = q.shape[:2], q.shape[-2]
    q, k, v = (layout.laid(x, -2).flatten(0, 1) for x in (q, k, v))
    gates = Gates(*(layout.laid(x, -1).flatten(0, 1) for x in gates))
    state = MemoryState(*(tuple(x.flatten(0, 1) for x in part) for part in state))
    begun = _Begun(start, layout, lead)
    pieces: list[list[Tensor]] = []
    step = max(SPAN // layout.length, 1)
    for first in range(0, layout.n_chunks, step):
        span = slice(first, first + step)
        fading = _fading(Gates(*(x[:, span] for x in gates)), begun.filled(span), k)
        state = MemoryState(*(tuple(map(_settled, part)) for part in state))
        z, surprise, state = _read(q[:, span], k[:, span], v[:, span], fading, state, begun, first, activation)
        pieces.append([z, surprise])
    found = (pieces[0][i] if len(pieces) == 1 else torch.cat([piece[i] for piece in pieces], 1) for i in range(2))
    z, surprise = (layout.taken(x.unflatten(0, lead), n) for x in found)
    return z, surprise[..., 0], MemoryState(*(tuple(x.unflatten(0, lead) for x in part) for part in state))


def recalled(
    q: Float[Tensor, "batch head pos d_head"],
    state: MemoryState,
    start: Sequence[Float[Tensor, "head d_in d_out"]],
    layout: ChunkLayout,
    activation: Activation = "silu",
) -> Float[Tensor, "batch head pos d_value"]:
    """Return what queries find in the memory with which their chunk began, of which there is one in each row.

    Args:
        q: Queries.
        state: The memory before the first.
        start: Weights with which a text begins.
        layout: Where positions lie in the chunk.
        activation: Between two matrices.
    """
    assert layout.n_chunks == 1, "what later chunks begin with is not known"
    lead, n = q.shape[:2], q.shape[-2]
    x = layout.laid(q, -2).flatten(0, 1)
    state = MemoryState(*(tuple(part.flatten(0, 1) for part in each) for each in state))
    opened = _Begun(start, layout, lead).at(0, state).opened
    for i, matrix in enumerate(opened):
        x = (x if i == 0 else _active(x, activation)) @ matrix[:, None]
    return layout.taken(x.unflatten(0, lead), n)


class _Begun:
    """Where chunks and texts begin, for rows of all heads; weights are `group in out`, a group a head of a row."""

    def __init__(self, start: Sequence[Tensor], layout: ChunkLayout, lead: torch.Size) -> None:
        self.layout, self.n_heads = layout, lead[1]
        self.start = [x.expand(lead[0], *x.shape).flatten(0, 1) for x in start]

    def filled(self, span: slice) -> Bool[Tensor, "#group chunk row"] | None:
        """Return which slots of some chunks hold a position; None for all."""
        if (filled := self.layout.filled) is None:
            return None
        rows = filled.unflatten(-1, (self.layout.n_chunks, self.layout.length))[:, span]
        return rows if len(rows) == 1 else rows.repeat_interleave(self.n_heads, 0)

    def at(self, chunk: int, state: MemoryState) -> MemoryState:
        """Return the memory as a chunk finds it: anew where a text begins, opened where the chunk does."""
        opened, weights, momentum = state
        if self.layout.begins is not None:
            begins = self._of_groups(self.layout.begins[chunk])
            weights = tuple(torch.where(begins, *pair) for pair in zip(self.start, weights, strict=True))
            momentum = tuple(x.masked_fill(begins, 0.0) for x in momentum)
        fresh = self.layout.fresh[chunk]
        if isinstance(fresh, Tensor):
            fresh = self._of_groups(fresh)
            opened = tuple(torch.where(fresh, *pair) for pair in zip(weights, opened, strict=True))
        return MemoryState(weights if fresh is True else opened, weights, momentum)

    def _of_groups(self, rows: Bool[Tensor, " batch"]) -> Bool[Tensor, "group 1 1"]:
        return rows.repeat_interleave(self.n_heads)[:, None, None]


def _fading(gates: Gates, filled: Tensor | None, like: Tensor) -> _Fading:
    """Return what is left in chunks, of gates that come as group chunk row."""
    keep, fade = (gates_decay(x[None], None, like[None]) for x in (gates.log_keep, gates.log_momentum))
    assert keep is not None and fade is not None, "positions say what they keep"
    # what a slot without a position finds of momentum it does not add
    between = keep.between[0] if filled is None else keep.between[0] * filled[..., None, :]
    twice = (2 * gates.rate)[..., None, :]
    return _Fading(
        keep.from_start[0], between @ fade.from_start[0], (between @ fade.between[0]) * twice,
        fade.over[0], (fade.between[0][..., -1:, :] * twice).mT,
    )  # fmt: skip


def _read(
    q: Tensor, k: Tensor, v: Tensor, fading: _Fading, state: MemoryState, begun: _Begun, first: int, how: Activation
) -> tuple[Tensor, Tensor, MemoryState]:
    """Write chunks one after another, and read all of them; rows come as group chunk row width."""
    found, steps = [], []
    last = fading.writes[..., -1:, :].mT
    ends = fading.weights[..., -1:, :], fading.momentum[..., -1:, :], last, fading.momentum_end, fading.writes_end
    for i, (key, value, *end) in enumerate(zip(*(x.unbind(1) for x in (k, v, *ends)), strict=True)):
        found.append(state := begun.at(first + i, state))
        steps.append(errors(key, value, state.opened, how))
        state = _written(state, *steps[-1], *end)
    rows = zip(
        zip(*(each.weights for each in found), strict=True), zip(*(each.momentum for each in found), strict=True),
        zip(*(reads for reads, _ in steps), strict=True), zip(*(told for _, told in steps), strict=True), strict=True,
    )  # fmt: skip
    layers = [tuple(torch.stack(x, 1) for x in row) for row in rows]
    x, square = q, k.new_zeros(*k.shape[:-1], 1)
    for i, (weights, momentum, reads, told) in enumerate(layers):
        x = x if i == 0 else _active(x, how)
        own = (fading.writes * (x @ reads.mT)) @ told
        x = (fading.weights * x) @ weights + (fading.momentum * x) @ momentum - own
        with torch.no_grad():
            read, heard = (one.norm(dim=-1, keepdim=True) for one in (reads, told))
            square += (2 * read * heard).square()
    return x, square.sqrt(), state


def _settled(x: Tensor) -> Tensor:
    """Return weights or momentum with nothing, of the same gradient, in place of what has faded for good.

    Products of what is left would be denormal, and some processors take many times as long over those.
    """
    least = torch.finfo(x.dtype).tiny ** (1 / 3)
    return torch.where(x.detach().abs() < least, x - x.detach(), x)


def _written(
    state: MemoryState, reads: Sequence[Tensor], told: Sequence[Tensor], keep: Tensor, carry: Tensor, writes: Tensor,
    fade: Tensor, pushes: Tensor,
) -> MemoryState:  # fmt: skip
    """Return the memory behind a chunk, of what each matrix reads and is told of: group row width."""
    weights, momentum = [], []
    for w, s, x, d in zip(state.weights, state.momentum, reads, told, strict=True):
        weights.append(torch.baddbmm(torch.addcmul(keep * w, carry, s), (writes * x).mT, d, alpha=-1))
        momentum.append(torch.baddbmm(fade * s, (pushes * x).mT, d, alpha=-1))
    return MemoryState(state.opened, tuple(weights), tuple(momentum))


def errors(
    k: Float[Tensor, "*lead row d_head"],
    v: Float[Tensor, "*lead row d_value"],
    weights: Sequence[Float[Tensor, "*lead d_in d_out"]],
    activation: Activation = "silu",
) -> tuple[list[Tensor], list[Tensor]]:
    """Return what each matrix reads of keys, and the error it is told of.

    The gradient of the squared error with respect to a matrix is twice the outer product of both.
    """
    reads, slopes = [k], []
    for matrix in weights[:-1]:
        x, slope = _activated(reads[-1] @ matrix, activation)
        reads.append(x)
        slopes.append(slope)
    told = [reads[-1] @ weights[-1] - v]
    for matrix, slope in zip(reversed(weights[1:]), reversed(slopes), strict=True):
        told.insert(0, (told[0] @ matrix.mT) * slope)
    return reads, told


class LinearReading(NamedTuple):
    """What a memory of one matrix reads, as a matrix times values: z = pattern @ v + offset.

    Args:
        pattern: Weights of values.
        offset: What is read of the weights that texts begin with; None where they are zero.
        among_keys: What errors hear of each other, below the diagonal.
        held: What is held for each key of the weights that texts begin with; None where they are zero.
    """

    pattern: Float[Tensor, "batch head query key"]
    offset: Float[Tensor, "batch head query d_value"] | None
    among_keys: Float[Tensor, "batch head key key"]
    held: Float[Tensor, "batch head key d_value"] | None

    def surprise(
        self, k: Float[Tensor, "batch head key d_head"], v: Float[Tensor, "batch head key d_value"]
    ) -> Float[Tensor, "batch head key"]:
        """Return the lengths of gradients."""
        told = unit_lower_solution(self.among_keys, -v if self.held is None else self.held - v)
        return 2 * k.norm(dim=-1) * told.norm(dim=-1)


def linear_memory_reading(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    gates: Gates,
    positions: Int[Tensor, "#batch pos"],
    size: int,
    allowed: Bool[Tensor, "#batch #head query key"] | None = None,
    start: Float[Tensor, "head d_head d_value"] | None = None,
) -> LinearReading:
    """Return what a whole text reads, all pairs at once.

    With C over the whole text and C' its rows at the last position before each one's chunk, errors d solve

        (I + 2 (C' * K K') diag(theta)) d = K M_0 - V,    Z = Q M_0 - 2 (C * Q K') diag(theta) d

    with M_0 as far as it has faded.

    Args:
        q: Queries.
        k: Keys.
        gates: Of each position.
        positions: Of each in its text.
        size: Positions of a chunk.
        allowed: Which positions know of each other, beside that none knows of a later one.
        start: Weights with which a text begins; None for zeros.
    """
    found = (gates_decay(x[:, :, None], None, q[:, :, None]) for x in (gates.log_keep, gates.log_momentum))
    keep, fade = (decay.between[:, :, 0] for decay in found if decay is not None)
    if allowed is not None:
        keep, fade = keep * allowed, fade * allowed
    written = (keep @ fade) * (2 * gates.rate)[..., None, :]
    place = torch.arange(q.shape[-2], device=q.device)
    # the last position before the chunk, if there is one in the text
    last, is_known = (place - positions % size - 1).clamp_min(0)[:, None], (positions >= size)[:, None]
    before = written.gather(-2, last[..., None].expand_as(written)) * is_known[..., None]
    among_keys = before * (k @ k.mT)
    pattern = unit_lower_solution(among_keys, written * (q @ k.mT), left=False)
    if start is None:
        return LinearReading(pattern, None, among_keys, None)
    first, total = (place - positions)[:, None].expand_as(gates.log_keep), gates.log_keep.double().cumsum(-1)
    total = total - (total - gates.log_keep).gather(-1, first)
    there = total.gather(-1, last.expand_as(total)).where(is_known, 0.0)
    left, left_there = (x[..., None].exp().to(q.dtype) for x in (total, there))
    held = left_there * (k @ start)
    return LinearReading(pattern, left * (q @ start) - pattern @ held, among_keys, held)


def neural_memory_flops(n: int, widths: Sequence[int], size: int) -> int:
    """Return the floating-point operations of the products of `neural_memory` for one head.

    Args:
        n: New positions.
        widths: Of what the first matrix reads, of what each gives.
        size: Positions of a chunk.
    """
    # the last chunk of several is filled up
    rows = n if n <= size else -(-n // size) * size
    pairs, triples = rows * min(n, size), rows * min(n, size) ** 2
    # what is left of writes; then each matrix, forwards, in two writes and two reads; errors go back through all but
    # the first
    products = list(pairwise(widths))
    weights = sum(5 * a * b for a, b in products) + sum(a * b for a, b in products[1:])
    return 2 * rows * weights + 2 * pairs * sum(a + b for a, b in products) + 2 * (pairs + triples)


def _active(x: Tensor, how: Activation) -> Tensor:
    return F.silu(x) if how == "silu" else F.gelu(x)


def _activated(x: Tensor, how: Activation) -> tuple[Tensor, Tensor]:
    """Return an activation and its slope."""
    if how == "silu":
        share = x.sigmoid()
        return x * share, share * (1 + x * (1 - share))
    below = 0.5 * (1 + (x * 0.5**0.5).erf())
    return x * below, below + x * (-0.5 * x.square()).exp() * (2 * torch.pi) ** -0.5
