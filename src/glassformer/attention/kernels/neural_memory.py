"""A memory that learns while it reads: weights that each position moves down the gradient of what it should have given.

    S_t = eta_t S_{t-1} - theta_t grad |M(k_t) - v_t|^2,    M_t = (1 - alpha_t) M_{t-1} + S_t,    z_t = M_t(q_t)

M is a matrix, or several with an activation between. Gradients are taken of the weights with which a position's chunk
begins, so that those of a chunk are known at once; chunks of one position give the recurrence as it stands, and the
length of a chunk is part of what the memory is.

The gradient of a matrix is an outer product x_i' d_i of what it reads and of the error it is told of. With B_tj the
product of 1 - alpha behind j up to t, E_ji that of eta behind i up to j, b_t and e_t those from the start of the chunk:

    C = B E,    x M_t = b_t x M + (B e)_t x S - sum_{i<=t} 2 theta_i C_ti (x . x_i) d_i

reads a matrix of each position that is never formed; at the end of a chunk the same sum, and that with E in place of C,
make the weights and the momentum of the next. M and S lie one above the other, `2 in` rows of one matrix: a chunk reads
them with one product, moves them on with one, and writes them with one.
`kernels.decay` has B, E, b and e, from logarithms. Slots without a position keep all they find, and add no momentum.

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
from torch.utils.flop_counter import flop_registry

from glassformer.attention.kernels.chunk_layout import ChunkLayout
from glassformer.attention.kernels.decay import gates_decay
from glassformer.numerics.decompositions import unit_lower_solution

Activation = Literal["silu", "gelu"]
# torch counts the operations of a product that is added in place as none
flop_registry.setdefault(torch.ops.aten.baddbmm_, flop_registry[torch.ops.aten.baddbmm])
# positions whose decay is found at once, and between which what has faded is let go
SPAN = 512


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
    """Of chunks: what is left of weights and momentum and of writes, at each row and, for the next chunk, at the end.

    What is left of writes is multiplied by twice their rate.
    """

    before: Float[Tensor, "group chunk row 2 1"]
    writes: Float[Tensor, "group chunk row row"]
    before_end: Float[Tensor, "group chunk 2 2"]
    writes_end: Float[Tensor, "group chunk row 2 1"]


class _Memory(NamedTuple):
    """A memory between two chunks.

    Args:
        opened: Weights with which the open chunk began, of each matrix.
        both: Weights above momentum, of each matrix.
    """

    opened: Sequence[Float[Tensor, "group d_in d_out"]]
    both: Sequence[Float[Tensor, "group 2*d_in d_out"]]

    @classmethod
    def of(cls, state: MemoryState) -> "_Memory":
        """Return the memory of a state, rows of all heads in one axis."""
        opened, weights, momentum = (tuple(x.flatten(0, 1) for x in part) for part in state)
        return cls(opened, [torch.cat(pair, -2) for pair in zip(weights, momentum, strict=True)])

    @property
    def weights(self) -> list[Float[Tensor, "group d_in d_out"]]:
        """Weights now."""
        return [x[:, : x.shape[1] // 2] for x in self.both]

    def state(self, lead: torch.Size) -> MemoryState:
        """Return the state of a batch of heads."""
        # a chunk opens with half of what weights and momentum lie in together: a view would keep both for one
        opened = tuple(x.contiguous().unflatten(0, lead) for x in self.opened)
        weights = tuple(x.unflatten(0, lead) for x in self.weights)
        momentum = tuple(x[:, x.shape[1] // 2 :].unflatten(0, lead) for x in self.both)
        return MemoryState(opened, weights, momentum)


def neural_memory(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch head pos d_value"],
    gates: Gates,
    state: MemoryState,
    start: Sequence[Float[Tensor, "head d_in d_out"]],
    layout: ChunkLayout,
    activation: Activation = "silu",
    with_surprise: bool = True,
) -> tuple[Float[Tensor, "batch head pos d_value"], Float[Tensor, "batch head pos"] | None, MemoryState]:
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
        with_surprise: The lengths are measured; None takes their place otherwise.
    """
    lead, n = q.shape[:2], q.shape[-2]
    q, k, v = (layout.laid(x, -2).flatten(0, 1) for x in (q, k, v))
    gates = Gates(*(layout.laid(x, -1).flatten(0, 1) for x in gates))
    memory, begun = _Memory.of(state), _Begun(start, layout, lead)
    read: list[Tensor] = []
    surprise: list[Tensor] | None = [] if with_surprise else None
    step = max(SPAN // layout.length, 1)
    for first in range(0, layout.n_chunks, step):
        span = slice(first, first + step)
        fading = _fading(Gates(*(x[:, span] for x in gates)), begun.filled(span), k)
        memory = _Memory(memory.opened, [_settled(x) for x in memory.both])
        rows, memory = _read(q[:, span], k[:, span], v[:, span], fading, memory, begun, first, activation, surprise)
        read += rows
    z = layout.taken(torch.stack(read, 1).unflatten(0, lead), n)
    lengths = None if surprise is None else layout.taken(torch.stack(surprise, 1).unflatten(0, lead), n)[..., 0]
    return z, lengths, memory.state(lead)


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
    for i, matrix in enumerate(_Begun(start, layout, lead).at(0, _Memory.of(state)).opened):
        x = (x if i == 0 else _active(x, activation)) @ matrix[:, None]
    return layout.taken(x.unflatten(0, lead), n)


class _Begun:
    """Where chunks and texts begin, for rows of all heads, a group a head of a row."""

    def __init__(self, start: Sequence[Tensor], layout: ChunkLayout, lead: torch.Size) -> None:
        self.layout, self.n_heads = layout, lead[1]
        # a text begins without momentum
        wide = [torch.cat([x, torch.zeros_like(x)], -2) for x in start] if layout.begins is not None else []
        self.start = [x.expand(lead[0], *x.shape).flatten(0, 1) for x in wide]

    def filled(self, span: slice) -> Bool[Tensor, "#group chunk row"] | None:
        """Return which slots of some chunks hold a position; None for all."""
        if (filled := self.layout.filled) is None:
            return None
        rows = filled.unflatten(-1, (self.layout.n_chunks, self.layout.length))[:, span]
        return rows if len(rows) == 1 else rows.repeat_interleave(self.n_heads, 0)

    def at(self, chunk: int, memory: _Memory) -> _Memory:
        """Return the memory as a chunk finds it: anew where a text begins, opened where the chunk does."""
        if self.layout.begins is not None:
            begins = self._of_groups(self.layout.begins[chunk])
            both = [torch.where(begins, *pair) for pair in zip(self.start, memory.both, strict=True)]
            memory = _Memory(memory.opened, both)
        fresh = self.layout.fresh[chunk]
        if fresh is True:
            return _Memory(memory.weights, memory.both)
        if isinstance(fresh, Tensor):
            pairs, fresh = zip(memory.weights, memory.opened, strict=True), self._of_groups(fresh)
            return _Memory([torch.where(fresh, *pair) for pair in pairs], memory.both)
        return memory

    def _of_groups(self, rows: Bool[Tensor, " batch"]) -> Bool[Tensor, "group 1 1"]:
        return rows.repeat_interleave(self.n_heads)[:, None, None]


def _fading(gates: Gates, filled: Tensor | None, like: Tensor) -> _Fading:
    """Return what is left in chunks, of gates that come as group chunk row."""
    decay = gates_decay(torch.stack([gates.log_keep, gates.log_momentum]), None, like[None])
    assert decay is not None, "positions say what they keep"
    (keep, fade), (kept, faded), over = decay.between.unbind(), decay.from_start.unbind(), decay.over[1]
    # what a slot without a position finds of momentum it does not add
    keep = keep if filled is None else keep * filled[..., None, :]
    twice = (2 * gates.rate)[..., None, :]
    before = torch.stack([kept, keep @ faded], -2)
    writes, pushes = (keep @ fade) * twice, fade[..., -1:, :] * twice
    alone = torch.cat([torch.zeros_like(over), over], -1)
    return _Fading(
        before, writes, torch.cat([before[..., -1:, :, 0], alone], -2),
        torch.cat([writes[..., -1:, :], pushes], -2).mT[..., None],
    )  # fmt: skip


def _read(
    q: Tensor, k: Tensor, v: Tensor, fading: _Fading, memory: _Memory, begun: _Begun, first: int, how: Activation,
    surprise: list[Tensor] | None,
) -> tuple[list[Tensor], _Memory]:  # fmt: skip
    """Write chunks one after another, and read each; rows come as group chunk row width, lengths go to `surprise`."""
    found = []
    # what queries ask of the first matrix waits for nothing
    ahead = _faded(q, fading.before), fading.writes * (q @ k.mT)
    chunks = zip(*(x.unbind(1) for x in (k, v, *ahead, *fading)), strict=True)
    for i, (key, value, asked, alike, before, writes, before_end, writes_end) in enumerate(chunks):
        memory = begun.at(first + i, memory)
        reads, told = errors(key, value, memory.opened, how)
        if surprise is not None:
            surprise.append(_gradient_length(reads, told))
        x, both = None, []
        for matrix, heard, error in zip(memory.both, reads, told, strict=True):
            if x is not None:
                x = _active(x, how)
                asked, alike = _faded(x, before), writes * torch.bmm(x, heard.mT)
            x = torch.bmm(asked, matrix).baddbmm_(alike, error, alpha=-1)
            moved = torch.bmm(before_end, matrix.reshape(len(matrix), 2, -1)).view_as(matrix)
            both.append(moved.baddbmm_(_faded(heard, writes_end).mT, error, alpha=-1))
        found.append(x)
        memory = _Memory(memory.opened, both)
    return found, memory


def _faded(x: Float[Tensor, "*lead row width"], left: Float[Tensor, "*lead row 2 1"]) -> Tensor:
    """Return rows twice, each by its own of what is left: `… row 2*width`."""
    return (x[..., None, :] * left).flatten(-2)


@torch.no_grad()
def _gradient_length(reads: Sequence[Tensor], told: Sequence[Tensor]) -> Float[Tensor, "group row 1"]:
    lengths = [2 * x.norm(dim=-1) * d.norm(dim=-1) for x, d in zip(reads, told, strict=True)]
    return torch.stack(lengths, -1).norm(dim=-1, keepdim=True)


def _settled(x: Tensor) -> Tensor:
    """Return weights or momentum with nothing, of the same gradient, in place of what has faded for good.

    Products of what is left would be denormal, and some processors take many times as long over those.
    """
    found = x.detach()
    return x + (F.hardshrink(found, torch.finfo(x.dtype).tiny ** (1 / 3)) - found)


def errors(
    k: Float[Tensor, "group row d_head"],
    v: Float[Tensor, "group row d_value"],
    weights: Sequence[Float[Tensor, "group d_in d_out"]],
    activation: Activation = "silu",
) -> tuple[list[Tensor], list[Tensor]]:
    """Return what each matrix reads of keys, and the error it is told of.

    The gradient of the squared error with respect to a matrix is twice the outer product of both.
    """
    reads, slopes = [k], []
    for matrix in weights[:-1]:
        x, slope = _activated(torch.bmm(reads[-1], matrix), activation)
        reads.append(x)
        slopes.append(slope)
    told = [torch.baddbmm(v, reads[-1], weights[-1], beta=-1)]
    for matrix, slope in zip(reversed(weights[1:]), reversed(slopes), strict=True):
        told.insert(0, torch.bmm(told[0], matrix.mT) * slope)
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
    # the first; a chunk moves weights and momentum on
    products = list(pairwise(widths))
    weights = sum(5 * a * b for a, b in products) + sum(a * b for a, b in products[1:])
    moved = rows // min(n, size) * 8 * sum(a * b for a, b in products)
    return 2 * rows * weights + 2 * pairs * sum(a + b for a, b in products) + 2 * (pairs + triples) + moved


def _active(x: Tensor, how: Activation) -> Tensor:
    return F.silu(x) if how == "silu" else F.gelu(x)


def _activated(x: Tensor, how: Activation) -> tuple[Tensor, Tensor]:
    """Return an activation and its slope."""
    if how == "silu":
        share = x.sigmoid()
        active = x * share
        return active, torch.lerp(active, active.new_ones(()), share)
    below = 0.5 * (1 + (x * 0.5**0.5).erf())
    return x * below, below + x * (-0.5 * x.square()).exp() * (2 * torch.pi) ** -0.5
