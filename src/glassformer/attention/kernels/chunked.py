"""Causal linear attention with decay, in chunks: linear time, hand-written backward.

    z_t = sum_{s<=t} decay^(t-s) (q_t . k_s) v_s + decay^(t+1) q_t memory      `chunked`, one decay a head
    z_t = sum_{s<=t} exp(G_t - G_s) (q_t . k_s) v_s + exp(G_t) q_t memory      `gated`, G the running sum of logarithms

A chunk of length c sees itself by a masked left product and everything before it through a d_head x d_value memory.
Where a document begins, the memory is let go: what a chunk writes of earlier documents, and what its positions of later
ones would read, is multiplied by zero.
`left_product` is the same sum as one masked N x N product per pair of tiles (Lightning Attention-1), kept as reference.
Source: Qin et al. 2024, "Lightning Attention-2" (2401.04658), algorithms 1 and 2; with gates Yang et al. 2023, "Gated
Linear Attention" (2312.06635), section 4, and Dao, Gu 2024, "Transformers are SSMs" (2405.21060), section 6.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.attention.kernels.decay import Decay, gates_decay

# positions that are mixed together; fewer where each has a decay of its own, whose products then stay in the cache
SPAN, GATED_SPAN = 4096, 512


def chunked(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch head pos d_value"],
    decay: Float[Tensor, " head"],
    memory: Float[Tensor, "batch head d_head d_value"],
    size: int = 64,
    documents: Int[Tensor, "b pos_and_one"] | None = None,
) -> tuple[Float[Tensor, "batch head pos d_value"], Float[Tensor, "batch head d_head d_value"]]:
    """Return mixed values and the memory after the last position. `decay` is in [0, 1] and gets no gradient.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        decay: What each head keeps of its memory from one position to the next.
        memory: What it holds before the first.
        size: Positions in a chunk.
        documents: Which document the memory is of, and each position after it: a position sees its own alone. None if
            all is one.
    """
    pieces, found = [], spans(q.shape[-2], size)
    rows = zip(*(by_span(x, found) for x in (q, k, v)))
    for (start, stop, _), part in zip(found, rows, strict=True):
        own = None if documents is None else documents[:, start : stop + 1]
        z, memory = _Chunked.apply(*part, decay, memory, own)  # type: ignore[misc]
        pieces.append(z.flatten(-3, -2))
    return torch.cat(pieces, -2), memory


def gated(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch head pos d_value"],
    log_keep: Float[Tensor, "batch head pos"],
    memory: Float[Tensor, "batch head d_head d_value"],
    size: int = 32,
    documents: Int[Tensor, "b pos_and_one"] | None = None,
) -> tuple[Float[Tensor, "batch head pos d_value"], Float[Tensor, "batch head d_head d_value"]]:
    """Return mixed values and the memory after the last position, where every position says what it keeps.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        log_keep: Logarithm of what each head keeps of its memory at each position, before it writes; not positive.
        memory: What it holds before the first.
        size: Positions in a chunk.
        documents: As in `chunked`.
    """
    if q.shape[-2] == 1:
        keep = log_keep[..., None].exp()
        if documents is not None:
            keep = keep * (documents[:, 0] == documents[:, 1])[:, None, None, None]
        memory = keep * memory + k.mT @ v
        return q @ memory, memory
    pieces, found = [], spans(q.shape[-2], size, GATED_SPAN)
    rows = zip(*(by_span(x, found) for x in (q, k, v)), by_span(log_keep, found, -1))
    for (start, stop, _), (*part, keep) in zip(found, rows, strict=True):
        own = None if documents is None else documents[:, start : stop + 1]
        z, memory = _Chunked.apply(*part, keep, memory, own)  # type: ignore[misc]
        pieces.append(z.flatten(-3, -2))
    return torch.cat(pieces, -2) if len(pieces) > 1 else pieces[0], memory


def spans(n: int, size: int, most: int | None = None) -> list[tuple[int, int, int]]:
    """Return which positions are mixed together, from where up to where, and in chunks of which length.

    As many as fill whole chunks, up to `most` (by default `SPAN`), so that what is made on the way stays small however
    long the text; the short rest is a chunk of its own.
    """
    whole, step = n // size * size, max((SPAN if most is None else most) // size, 1) * size
    full = [(start, min(start + step, whole), size) for start in range(0, whole, step)]
    return full if whole == n else [*full, (whole, n, n - whole)]


def by_span(x: Tensor, found: list[tuple[int, int, int]], axis: int = -2) -> list[Tensor]:
    """Return what lies in each span, its chunks on an axis of their own.

    All of them have one gradient together; slices would each have one as long as the text.
    """
    parts = x.split([stop - start for start, stop, _ in found], axis)
    return [part.unflatten(axis, (-1, length)) for part, (_, _, length) in zip(parts, found, strict=True)]


def chunked_flops(n: int, d_head: int, d_value: int, size: int = 64) -> int:
    """Return the floating-point operations of `chunked` for one head: two products per chunk, two with the memory."""
    short = n % size
    pairs = (n - short) * size + short * short
    return 2 * pairs * (d_head + d_value) + 4 * n * d_head * d_value


def left_product(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, tile: int = 64) -> Tensor:
    """Return the same without a memory, tile by tile: quadratic time, no N x N matrix kept."""
    n = q.shape[-2]
    rows = []
    for i in range(0, n, tile):
        t = torch.arange(i, min(i + tile, n), device=q.device)
        z = torch.zeros((), dtype=q.dtype, device=q.device)
        for j in range(0, i + 1, tile):
            s = torch.arange(j, min(j + tile, n), device=q.device)
            weight = (q[..., i : i + tile, :] @ k[..., j : j + tile, :].mT) * decay_matrix(decay, t, s)
            z = z + weight @ v[..., j : j + tile, :]
        rows.append(z)
    return torch.cat(rows, -2)


def decay_matrix(decay: Tensor, t: Tensor, s: Tensor) -> Float[Tensor, "head query key"]:
    """Return decay^(t-s) where s <= t, else 0."""
    distance = t[:, None] - s[None, :]
    # the power is taken of non-negative distances only: a growing decay^-s would overflow
    return torch.where(distance >= 0, decay[:, None, None] ** distance.clamp_min(0), 0.0)


class _Chunked(torch.autograd.Function):
    """q, k, v come as batch head chunk row width. The backward is made of what has a derivative itself.

    `keep` is the decay of each head, which gets no gradient, or the logarithm of each position's, batch head chunk row.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, memory: Tensor, documents: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, v, keep, memory)
        ctx.documents = documents
        c = _decay(keep, documents, q)
        before, last = _memories((c.to_end * k).mT @ v, c.over, memory)
        return torch.addcmul(c.within(q @ k.mT) @ v, c.from_start, q @ before), last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dz, dlast = gradients
        q, k, v, keep, memory = ctx.saved_tensors
        c = _decay(keep, ctx.documents, q)
        before, last = _memories((c.to_end * k).mT @ v, c.over, memory)
        weight = c.within(dz @ v.mT)
        dq = torch.addcmul(weight @ k, c.from_start, dz @ before.mT)
        # the gradient of the memory runs backwards in time: the same recursion on flipped chunks
        writes = ((c.from_start * q).mT @ dz).flip(2)
        after, dmemory = _memories(writes, c.over.flip(2), dlast)
        after = after.flip(2)
        dk = torch.addcmul(weight.mT @ q, c.to_end, v @ after.mT)
        dv = torch.addcmul(c.within(q @ k.mT).mT @ dz, c.to_end, k @ after)
        dkeep = None if keep.ndim == 1 else _of_gates(dq * q, dk * k, after, before, last)
        return dq, dk, dv, dkeep, dmemory, None


def _decay(keep: Tensor, documents: Tensor | None, like: Tensor) -> "_Powers | Decay":
    """Return what is left inside chunks: of a decay for each head, or of the logarithms of each position's."""
    if keep.ndim == 1:
        return _Powers(keep, like.shape[-2], documents)
    decay = gates_decay(keep, documents, like)
    assert decay is not None, "positions say what they keep"
    return decay


def _of_gates(of_q: Tensor, of_k: Tensor, after: Tensor, before: Tensor, last: Tensor) -> Tensor:
    """Return the gradient of the logarithms of what positions keep.

    A running sum G_t is in what t reads, where q_t is, and its negative in what t writes, where k_t is: its gradient is
    q . dq - k . dk, and that of one logarithm the sum of those behind it, and of what is left at the end of the chunk.

    Args:
        of_q: Queries times their gradients, number by number, `batch head chunk row d_head`.
        of_k: Keys times theirs.
        after: Gradients of the memory after each chunk.
        before: The memory before each chunk.
        last: The memory after the last.
    """
    behind = (of_q - of_k).sum(-1).flip(-1).cumsum(-1).flip(-1)
    held = torch.cat((before[:, :, 1:], last.unsqueeze(2)), 2)
    return behind + (after * held).sum((-2, -1)).unsqueeze(-1)


class _Powers:
    """Powers of the decay inside a chunk of `size` rows, `b head chunk row row`; zero across documents."""

    def __init__(self, decay: Tensor, size: int, documents: Tensor | None) -> None:
        row = torch.arange(size, device=decay.device)
        self.mask = decay_matrix(decay, row, row)[None, :, None]
        self.from_start = (decay[:, None] ** (row + 1))[None, :, None, :, None]
        self.to_end = (decay[:, None] ** (size - 1 - row))[None, :, None, :, None]
        self.over = (decay**size)[None, :, None, None, None]
        self.apart: Tensor | None = None
        if documents is not None:
            own = documents[:, 1:].unflatten(-1, (-1, size))[:, None, :, :, None]
            before, last = documents[:, :-1:size][:, None, :, None, None], own[..., -1:, :]
            self.apart = own != own.mT
            self.from_start = self.from_start * (own == before)
            self.to_end = self.to_end * (own == last)
            self.over = self.over * (before == last)

    def within(self, products: Float[Tensor, "batch head chunk row row"]) -> Tensor:
        """Return the weights of a chunk's rows for each other."""
        weight = products * self.mask
        return weight if self.apart is None else weight.masked_fill_(self.apart, 0.0)


def _memories(writes: Tensor, decay: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the memory before each chunk and after the last, given what each chunk keeps and adds."""
    before = []
    for add, keep in zip(writes.unbind(2), decay.expand(-1, -1, writes.shape[2], -1, -1).unbind(2), strict=True):
        before.append(memory)
        memory = keep * memory + add
    return torch.stack(before, 2), memory
