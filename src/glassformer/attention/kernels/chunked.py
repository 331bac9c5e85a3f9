"""Causal linear attention with a fixed decay per head, in chunks: linear time, hand-written backward.

    z_t = sum_{s<=t} decay^(t-s) (q_t . k_s) v_s + decay^(t+1) q_t memory

A chunk of length c sees itself by a masked left product and everything before it through a d_head x d_value memory.
`left_product` is the same sum as one masked N x N product per pair of tiles (Lightning Attention-1), kept as reference.
Source: Qin et al. 2024, "Lightning Attention-2" (2401.04658), algorithms 1 and 2.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def chunked(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch head pos d_value"],
    decay: Float[Tensor, " head"],
    memory: Float[Tensor, "batch head d_head d_value"],
    size: int = 64,
) -> tuple[Float[Tensor, "batch head pos d_value"], Float[Tensor, "batch head d_head d_value"]]:
    """Return mixed values and the memory after the last position. `decay` is in [0, 1] and gets no gradient."""
    # positions that fill whole chunks go together; the short rest is a chunk of its own
    whole = q.shape[-2] // size * size
    pieces = []
    for start, stop, length in ((0, whole, size), (whole, q.shape[-2], q.shape[-2] - whole)):
        if stop > start:
            part = [x[..., start:stop, :].unflatten(-2, (-1, length)) for x in (q, k, v)]
            z, memory = _Chunked.apply(*part, decay, memory)  # type: ignore[misc]
            pieces.append(z.flatten(-3, -2))
    return torch.cat(pieces, -2), memory


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
    """q, k, v come as batch head chunk row width."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, v, decay, memory)
        c = _Powers(decay, q.shape[-2])
        before, last = _memories((c.to_end * k).mT @ v, c.chunk, memory)
        inside = ((q @ k.mT) * c.mask) @ v
        return inside + c.from_start * (q @ before), last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        dz, dlast = gradients
        q, k, v, decay, memory = ctx.saved_tensors
        c = _Powers(decay, q.shape[-2])
        before, _ = _memories((c.to_end * k).mT @ v, c.chunk, memory)
        weight = (dz @ v.mT) * c.mask
        dq = weight @ k + c.from_start * (dz @ before.mT)
        # the gradient of the memory runs backwards in time: the same recursion on flipped chunks
        writes = ((c.from_start * q).mT @ dz).flip(2)
        after, dmemory = _memories(writes, c.chunk, dlast)
        after = after.flip(2)
        dk = weight.mT @ q + c.to_end * (v @ after.mT)
        dv = ((q @ k.mT) * c.mask).mT @ dz + c.to_end * (k @ after)
        return dq, dk, dv, None, dmemory


class _Powers:
    """Powers of the decay inside a chunk of `size` rows."""

    def __init__(self, decay: Tensor, size: int) -> None:
        row = torch.arange(size, device=decay.device)
        self.mask = decay_matrix(decay, row, row)[:, None]
        self.from_start = (decay[:, None] ** (row + 1))[:, None, :, None]
        self.to_end = (decay[:, None] ** (size - 1 - row))[:, None, :, None]
        self.chunk = (decay**size)[:, None, None]


def _memories(writes: Tensor, decay: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the memory before each chunk and after the last, given what each chunk adds."""
    before = []
    for i in range(writes.shape[2]):
        before.append(memory)
        memory = decay * memory + writes[:, :, i]
    return torch.stack(before, 2), memory
