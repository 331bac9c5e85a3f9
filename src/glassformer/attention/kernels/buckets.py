"""Buckets: tokens stand in the order of their buckets, and meet those that stand near, in blocks of them.

    order     tokens by bucket, then by their place in the text, which is kept inside a bucket
    chunk     so many tokens that stand side by side; a token meets its own chunk and the one before it

Of several rounds each orders the text anew. Nothing is made for a query and a key that stand apart in every round:
O(round pos chunk) time and memory.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.attention.context import Context
from glassformer.attention.kernels.union import Pairs
from glassformer.attention.mixer import per_query_head


def sorted_by_bucket(
    bucket: Int[Tensor, "batch head round key"], n_buckets: int, chunk: int
) -> tuple[Int[Tensor, "batch head round key"], Int[Tensor, "batch head round slot"]]:
    """Return bucket and chunk of each token in one number, and the tokens in order of buckets, then of the text.

    A query meets keys of its own number and of the one below.
    """
    n, device = bucket.shape[-1], bucket.device
    order = bucket.argsort(dim=-1, stable=True)
    members = torch.zeros(*bucket.shape[:-1], n_buckets, dtype=torch.long, device=device)
    members.scatter_add_(-1, bucket, torch.ones_like(bucket))
    begins = members.cumsum(-1) - members
    rank = torch.empty_like(bucket).scatter_(-1, order, torch.arange(n, device=device).expand_as(order))
    rank = rank - begins.gather(-1, bucket)
    # of all pairs of slots: four bytes are half as many as eight
    return (bucket * (n // chunk + 2) + rank // chunk).int(), order


def met_in_round(
    index: int,
    codes: Int[Tensor, "batch head round key"],
    order: Int[Tensor, "batch head slot"],
    k: Float[Tensor, "batch head key d"],
    v: Float[Tensor, "batch head key d"],
    chunk: int,
    context: Context,
) -> Pairs:
    """Return the pairs of one round that meet, less the logarithm of the number of rounds in which they do.

    Tokens stand in the order of their buckets, and are cut into blocks as long as a chunk. The chunk of a query and
    the one before it begin two blocks before its own at most, and reach into the next.
    """
    batch, heads, n = k.shape[:3]
    n_blocks = -(-n // chunk)
    ahead = 0 if context.looks_back else 1
    token = F.pad(order, (0, n_blocks * chunk - n), value=n)
    place = torch.empty_like(order).scatter_(-1, order, torch.arange(n, device=k.device).expand_as(order))

    def grouped(rows: Tensor) -> Tensor:
        taken = rows.gather(-2, order[..., None].expand(-1, -1, -1, rows.shape[-1]))
        return F.pad(taken, (0, 0, 0, n_blocks * chunk - n)).view(-1, 1, chunk, rows.shape[-1])

    def restored(rows: Tensor) -> Tensor:
        rows = rows.reshape(batch, heads, n_blocks * chunk, -1)
        return rows.gather(-2, place[..., None].expand(-1, -1, -1, rows.shape[-1]))

    def beside(rows: Tensor, nothing: int = 0) -> Tensor:
        """Return what each block meets: two blocks before it, itself, and the next if later tokens are seen."""
        rows = rows.view(batch, heads, n_blocks, chunk, -1)
        rows = F.pad(rows, (0, 0, 0, 0, 2, ahead), value=nothing)
        return torch.cat([rows[:, :, i : i + n_blocks] for i in range(3 + ahead)], 3)

    own = token.view(batch, heads, n_blocks, chunk)
    other = beside(token, n)[..., 0]
    of_query, of_key = own.clamp_max(n - 1), other.clamp_max(n - 1)

    def coded(at: Tensor, i: int) -> Tensor:
        return codes[:, :, i].gather(-1, at.flatten(2)).view(at.shape)

    met, allowed = None, torch.zeros((), dtype=torch.bool)
    for i in range(codes.shape[2]):
        queries, keys = coded(of_query, i)[..., :, None], coded(of_key, i)[..., None, :]
        near = (queries == keys) | (queries == keys + 1)
        met = near.to(torch.uint8) if met is None else met.add_(near)
        allowed = near if i == index else allowed
    rows = torch.arange(context.mask.batch, device=k.device)[:, None, None, None, None]
    allowed = allowed & context.mask.allows(rows, of_query[..., :, None], of_key[..., None, :])
    allowed = allowed & (own < n)[..., :, None] & (other < n)[..., None, :]
    assert met is not None, "there is a round"
    # a token sees itself where it sees nothing else, which no round knows by itself
    allowed = allowed & (of_query[..., :, None] != of_key[..., None, :])
    bias = met.to(k.dtype).clamp_min_(1).log_().neg_()
    key, value = (beside(grouped(rows)).flatten(0, 2)[:, None] for rows in (k, v))
    return Pairs(grouped, restored, key, value, allowed.flatten(0, 2)[:, None], bias.flatten(0, 2)[:, None])


def mixed_end_to_end(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch kv_head pos d_value"],
    order: Int[Tensor, "batch head slot"],
    place: Int[Tensor, "batch head round place"],
    chunk: int,
    context: Context,
) -> Float[Tensor, "batch head pos d_value"]:
    """Return what rounds laid end to end give, each by its share of the whole sum."""
    batch, heads, n = q.shape[:3]
    v, (n_rounds, whole) = per_query_head(v, q), place.shape[-2:]
    token = order % whole

    def chunks(rows: Tensor) -> Tensor:
        rows = F.pad(rows, (0, 0, 0, whole - n))
        taken = rows.gather(-2, token[..., None].expand(-1, -1, -1, rows.shape[-1]))
        return taken.view(batch, heads, -1, chunk, rows.shape[-1])

    def beside(rows: Tensor, axis: int) -> Tensor:
        return torch.cat((rows.roll(1, 2), rows), axis)

    own = token.view(batch, heads, -1, chunk)
    at, other = own[..., :, None], beside(own, -1)[..., None, :]
    rows = torch.arange(context.mask.batch, device=q.device)[:, None, None, None, None]
    scores = chunks(q) @ beside(chunks(k), -2).mT
    allowed = context.mask.allows(rows, at.clamp_max(n - 1), other.clamp_max(n - 1)) & (other < n)
    # in single precision at least, as scores of other forms are; of a round in which a token meets nothing, nothing
    wide = scores.masked_fill(~allowed | (at == other), -math.inf).to(torch.promote_types(q.dtype, torch.float32))
    met = allowed.logical_and(at != other).any(-1, keepdim=True)
    total = torch.where(met, wide, 0.0).logsumexp(-1, keepdim=True)
    mixed = torch.where(met, (wide - total).exp(), 0.0).to(q.dtype) @ beside(chunks(v), -2)
    total = total.masked_fill(~met, -math.inf)

    def by_round(rows: Tensor) -> Tensor:
        rows = rows.flatten(2, 3).gather(-2, place.flatten(2)[..., None].expand(-1, -1, -1, rows.shape[-1]))
        return rows.unflatten(2, (n_rounds, whole))[..., :n, :]

    total, mixed = by_round(total), by_round(mixed)
    alone = (total == -math.inf).all(2)
    share = total.masked_fill(alone[:, :, None], 0.0).softmax(2).to(q.dtype)
    return torch.where(alone, v, (share * mixed).sum(2))
