"""Softmax attention tile by tile: some queries meet some keys at a time, and no scores of all pairs are ever held.

    forward     per block of queries, over blocks of keys: maximum, sum and mixed values, merged as they come
    backward    P = exp(S - lse) of every tile again;  dV = P' g,   dS = P * (g V' - rowsum(g * out)),
                dS_raw = dS * (1 - (S / cap)^2) with a cap,   dQ = dS_raw K scale,   dK = dS_raw' Q scale

Tiles in which the mask allows nothing are left out.

Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n^2) Memory"; Dao et al. 2022, "FlashAttention", algorithm
4, for the backward; Liu and Abbeel 2023, "Blockwise Parallel Transformer for Large Context Models", algorithm 1.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.numerics.softmax import Part, merge

# which pairs of some queries and some keys may meet; None for all of them, False for none
Allows = Callable[[slice, slice], Bool[Tensor, "b 1 query key"] | bool | None]


class Tiles(NamedTuple):
    """How pairs are cut up and scored.

    Args:
        query_block: Queries of a tile.
        key_block: Keys of a tile.
        scale: Factor on products.
        cap: What scores approach at most; None for no cap.
        allows: Which pairs meet.
    """

    query_block: int
    key_block: int
    scale: float
    cap: float | None
    allows: Allows

    def of(self, n_queries: int, n_keys: int) -> Iterator[tuple[slice, list[tuple[slice, Tensor | None]]]]:
        """Yield blocks of queries, each with the blocks of keys that it meets and which of their pairs."""
        for queries in _blocks(n_queries, self.query_block):
            found = [(keys, self.allows(queries, keys)) for keys in _blocks(n_keys, self.key_block)]
            yield queries, [(keys, mask) for keys, mask in found if not isinstance(mask, bool)]

    def scores(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Float[Tensor, "batch head query key"]:
        scores = q @ k.mT * self.scale
        scores = scores if self.cap is None else self.cap * (scores / self.cap).tanh()
        return scores if mask is None else scores.masked_fill(~mask, -math.inf)


def tiled_softmax(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch head key d_head"],
    v: Float[Tensor, "batch head key d_value"],
    tiles: Tiles,
) -> Float[Tensor, "batch head query d_value"]:
    """Return softmax attention; a query that meets nothing is zero."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return _Tiled.apply(tiles, q.to(wide), k.to(wide), v.to(wide)).to(q.dtype)  # type: ignore[union-attr]


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tiles: Tiles, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = q.new_zeros(*q.shape[:-1], v.shape[-1]), q.new_zeros(q.shape[:-1])
        for queries, met in tiles.of(q.shape[-2], k.shape[-2]):
            whole: Part | None = None
            for keys, mask in met:
                scores = tiles.scores(q[..., queries, :], k[..., keys, :], mask)
                maximum = scores.amax(-1)
                weights = scores.sub_(maximum.masked_fill(maximum == -math.inf, 0.0)[..., None]).exp_()
                part = Part(maximum, weights.sum(-1), weights @ v[..., keys, :])
                whole = part if whole is None else merge(whole, part)
            if whole is not None:
                out[..., queries, :] = whole.out
                lse[..., queries] = (
                    whole.maximum.masked_fill(whole.total == 0, 0.0)
                    + whole.total.clamp_min(torch.finfo(q.dtype).tiny).log()
                )
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.tiles = tiles
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        (g,), tiles = grads, ctx.tiles
        shared = (g * out).sum(-1, keepdim=True)
        for_q, for_k, for_v = (torch.zeros_like(rows) for rows in (q, k, v))
        for queries, met in tiles.of(q.shape[-2], k.shape[-2]):
            rows, gradient, of_all = q[..., queries, :], g[..., queries, :], lse[..., queries, None]
            for keys, mask in met:
                scores = tiles.scores(rows, k[..., keys, :], mask)
                weights = (scores - of_all).exp()
                for_v[..., keys, :] += weights.mT @ gradient
                for_scores = weights.mul_(gradient @ v[..., keys, :].mT - shared[..., queries, :]).mul_(tiles.scale)
                if tiles.cap is not None:
                    # where the mask hides a score its weight is zero, whatever stands here
                    for_scores = for_scores * (1 - (scores.masked_fill(scores == -math.inf, 0.0) / tiles.cap).square())
                for_q[..., queries, :] += for_scores @ k[..., keys, :]
                for_k[..., keys, :] += for_scores.mT @ rows
        return None, for_q, for_k, for_v


def _blocks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
