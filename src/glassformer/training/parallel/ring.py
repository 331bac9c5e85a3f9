"""Ring attention: causal softmax attention over packed documents, the positions shared among ranks.

    z = sum_r exp(lse_r - lse) z_r,      lse = log sum_r exp(lse_r),      r over the ranks whose keys are met

Each rank holds queries, keys and values of its chunks. Keys and values go around the ring; each rank mixes those that
are with it, in float32 at least, and adds the result to what it has by the logarithms of the rows' sums. For the way
back they go around once more, and their gradients with them, which arrive at home complete.
No mask of what is seen is made. Two chunks meet in one piece: within a chunk each document is a causal square, and of
two chunks only the document that goes on from the end of the earlier to the beginning of the later, however many lie
between, has a rectangle of scores, in which all are seen. What dropout takes from patterns is drawn of whole rows by
every rank, as one process draws it, and each keeps the part of its queries.
Source: Liu, Zaharia, Abbeel 2023, "Ring Attention with Blockwise Transformers" (2310.01889), algorithm 1; documents of
any length as in MiniMax 2025, "MiniMax-01" (2501.08313), section 3.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.attention.context import Documents
from glassformer.attention.kernels.fading_softmax import NOTHING, Mean
from glassformer.attention.mixer import per_query_head
from glassformer.training.parallel.exchange import Ring
from glassformer.training.parallel.shards import SequenceShards


class Meeting(NamedTuple):
    """Queries of one rank and keys of one rank, of a document in some rows: all are seen, or those up to the query.

    Args:
        rows: Of the batch.
        queries: Among those that their rank holds.
        keys: Among those that their rank holds.
        causal: The queries are the keys, and each sees those up to itself.
    """

    rows: slice
    queries: slice
    keys: slice
    causal: bool


def ring_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head query d_head"],
    v: Float[Tensor, "batch kv_head query d_value"],
    shards: SequenceShards,
    documents: Documents | None = None,
    group: dist.ProcessGroup | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch head query d_value"]:
    """Return what this rank's queries mix of all ranks' values up to theirs, each within its document.

    All ranks of the group call it together, for the way back too. It has first derivatives, in q, k and v.

    Args:
        q: Queries at the positions that this rank holds.
        k: Keys at the same positions.
        v: Values at the same positions.
        shards: Which rank holds which positions.
        documents: Those of all positions of the sequence; None if each row is one.
        group: The ranks; None for all processes.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
        dropout: Rate at which entries of the pattern are dropped, by masks of all positions.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    bounds = ((0, shards.length),) if documents is None else documents.bounds
    bounds = bounds * q.shape[0] if len(bounds) < q.shape[0] else bounds
    ring = Ring(group)
    factors = None if dropout == 0 else _dropped(q, shards, ring.rank, dropout)
    return _RingAttention.apply(q, k, v, factors, shards, bounds, ring, scale)  # type: ignore[return-value]


def meetings(shards: SequenceShards, bounds: Sequence[Sequence[int]], of_queries: int, of_keys: int) -> list[Meeting]:
    """Return where the queries of one rank meet the keys of another, or its own.

    Args:
        shards: Which rank holds which positions.
        bounds: Where documents begin and end, for each row of the batch.
        of_queries: The rank of the queries.
        of_keys: The rank of the keys.
    """
    found, first, starts, key_starts = list[Meeting](), 0, shards.starts(of_queries), shards.starts(of_keys)
    for same, group in groupby(map(tuple, bounds)):
        rows = slice(first, first + len(list(group)))
        first = rows.stop
        for own, at in starts.items():
            for other, key_at in key_starts.items():
                for queries, keys in _seen(shards.span(own), shards.span(other), same):
                    moved = _shifted(queries, at - shards.bounds[own]), _shifted(keys, key_at - shards.bounds[other])
                    found.append(Meeting(rows, *moved, causal=own == other))
    return found


def _seen(
    own: tuple[int, int], other: tuple[int, int], bounds: Sequence[int]
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return positions of queries in one chunk and of the keys they see in another, document by document."""
    if own[0] == own[1] or other[0] == other[1] or other > own:
        return []
    shared = [(max(start, own[0]), min(stop, own[1])) for start, stop in pairwise(bounds)]
    if own == other:
        return [(span, span) for span in shared if span[0] < span[1]]
    # a document with a key in the earlier chunk and a query in the later holds all between them
    going_on = [(start, stop) for start, stop in pairwise(bounds) if start < other[1] and own[0] < stop]
    return [((own[0], min(stop, own[1])), (max(start, other[0]), other[1])) for start, stop in going_on]


def _shifted(span: tuple[int, int], by: int) -> slice:
    return slice(span[0] + by, span[1] + by)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        factors: Tensor | None,
        shards: SequenceShards,
        bounds: Sequence[Sequence[int]],
        ring: Ring,
        scale: float,
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        z = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=wide)
        lse = q.new_full(q.shape[:-1], NOTHING, dtype=wide)
        for source, (key, value) in _around(ring, shards, [k, v]):
            for at in meetings(shards, bounds, ring.rank, source):
                met = _softmax(*_parts(at, q, key, value, wide), scale, at.causal, _met(factors, shards, source, at))
                rows = at.rows, slice(None), at.queries
                z[rows], lse[rows] = Mean(z[rows], lse[rows]).and_(met)
        ctx.save_for_backward(q, k, v, z, lse, factors)
        ctx.shards, ctx.bounds, ctx.ring, ctx.scale = shards, bounds, ring, scale
        return z.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, z, lse, factors = ctx.saved_tensors
        ring, shards = ctx.ring, ctx.shards
        dq, *travelling = (torch.zeros_like(x, dtype=z.dtype) for x in (q, k, v))
        gradient = gradients[0].to(z.dtype)
        for source, (key, value) in _around(ring, shards, [k, v]):
            for at in meetings(shards, ctx.bounds, ring.rank, source):
                rows, keys = (at.rows, slice(None), at.queries), (at.rows, slice(None), at.keys)
                parts, totals = _parts(at, q, key, value, z.dtype), (z[rows], lse[rows])
                part = _met(factors, shards, source, at)
                found = _softmax_backward(gradient[rows], *parts, *totals, ctx.scale, at.causal, part)
                for total, own, where in zip((dq, *travelling), found, (rows, keys, keys), strict=True):
                    summed = total[where]
                    # keys and values that heads share have the sum of their gradients
                    summed += own.unflatten(1, (total.shape[1], -1)).sum(2)
            # gradients go with their keys; from the last rank that meets them they go home
            travelling = ring.pass_on(travelling, [_shape(x, shards, source - 1) for x in travelling]).wait()
        dk, dv = travelling
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None, None, None


def _around(ring: Ring, shards: SequenceShards, own: list[Tensor]) -> Iterator[tuple[int, list[Tensor]]]:
    """Yield each rank and what it holds, this one first; the next are under way while the caller reads these."""
    held = own
    for hop in range(ring.size):
        source = (ring.rank - hop) % ring.size
        last = hop == ring.size - 1
        coming = None if last else ring.pass_on(held, [_shape(x, shards, source - 1) for x in held])
        yield source, held
        held = held if coming is None else coming.wait()


def _shape(x: Tensor, shards: SequenceShards, rank: int) -> tuple[int, ...]:
    """Return the shape of a rank's share of keys, values or their gradients."""
    return (*x.shape[:-2], sum(shards.lengths(rank % shards.ranks)), x.shape[-1])


def _parts(at: Meeting, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values that meet, in the type they are mixed in, one key head for each query head."""
    q, k, v = q[at.rows, :, at.queries], k[at.rows, :, at.keys], v[at.rows, :, at.keys]
    return q.to(dtype), per_query_head(k, q).to(dtype), per_query_head(v, q).to(dtype)


def _dropped(q: Tensor, shards: SequenceShards, rank: int, rate: float) -> Tensor:
    """Return factors on the pattern of a rank's queries and all keys: 0, or more than 1."""
    n = shards.length
    return shards.shard(F.dropout(q.new_ones(*q.shape[:2], n, n), rate), rank)


def _met(factors: Tensor | None, shards: SequenceShards, source: int, at: Meeting) -> Tensor | None:
    """Return the factors on a part of the pattern: queries of this rank, and keys of another."""
    return None if factors is None else shards.shard(factors, source, -1)[at.rows, :, at.queries, at.keys]


def _softmax(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, factors: Tensor | None) -> Mean:
    """Return values mixed by the pattern times factors, and the logarithm of what the exponentials of scores sum to."""
    if q.device.type != "cpu" or factors is not None:
        return _softmax_by_scores(q, k, v, scale, causal, factors)
    width, d_value = max(q.shape[-1], v.shape[-1]), v.shape[-1]
    # the kernel wants one width
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    z, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return Mean(z[..., :d_value], lse)


def _softmax_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    z: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    factors: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, given z and the logarithms of sums over all keys, met here or elsewhere."""
    if q.device.type != "cpu" or factors is not None:
        return _softmax_backward_by_scores(g, q, k, v, z, lse, scale, causal, factors)
    d_head, d_value, width = q.shape[-1], v.shape[-1], max(q.shape[-1], v.shape[-1])
    g, q, k, v, z = (F.pad(x, (0, width - x.shape[-1])) for x in (g, q, k, v, z))
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, z, lse, 0.0, causal, scale=scale
    )
    return dq[..., :d_head], dk[..., :d_head], dv[..., :d_value]


def _softmax_by_scores(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, factors: Tensor | None) -> Mean:
    scores = _scores(q, k, scale, causal)
    lse = scores.logsumexp(-1)
    return Mean(_times((scores - lse[..., None]).exp(), factors) @ v, lse)


def _softmax_backward_by_scores(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    z: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    factors: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    weights = (_scores(q, k, scale, causal) - lse[..., None]).exp()
    dscores = weights * (_times(g @ v.mT, factors) - (g * z).sum(-1, keepdim=True)) * scale
    return dscores @ k, dscores.mT @ q, _times(weights, factors).mT @ g


def _times(x: Tensor, factors: Tensor | None) -> Tensor:
    return x if factors is None else x * factors


def _scores(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    scores = q @ k.mT * scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")) if causal else scores
