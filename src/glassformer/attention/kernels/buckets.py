"""Buckets: keys stand in the order of their buckets, and queries meet those that stand near, in blocks of them.

    order     keys by bucket, then by their place in the text, which is kept inside a bucket
    chunk     so many keys that stand side by side; a query meets those of its own chunk and of the one before it

A query stands where a key of its bucket and of its place in the text would; where it is a key itself, there it stands.
Of several rounds each orders the text anew. Nothing is made for a query and a key that stand apart in every round:
O(round pos chunk) time and memory, however queries fall among keys.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from glassformer.attention.context import Context
from glassformer.attention.kernels.union import Pairs
from glassformer.attention.mixer import per_query_head


class Places(NamedTuple):
    """Where queries and keys stand in every round. A query meets keys of its own number and of the one below.

    Args:
        order: The keys in order.
        place: How many keys stand before each query.
        of_queries: Bucket and chunk of each query in one number.
        of_keys: The same of each key.
    """

    order: Int[Tensor, "batch head round slot"]
    place: Int[Tensor, "batch head round query"]
    of_queries: Int[Tensor, "batch head round query"]
    of_keys: Int[Tensor, "batch head round key"]


def sorted_by_bucket(
    queries: Int[Tensor, "batch head round query"], keys: Int[Tensor, "batch head round key"], chunk: int
) -> Places:
    """Return where queries, the last positions, and keys stand, of the bucket of each."""
    n, m = queries.shape[-1], keys.shape[-1]
    text = torch.arange(m, device=keys.device)
    numbers, order = (keys * m + text).contiguous().sort(dim=-1)

    def stand(bucket: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        place = torch.searchsorted(numbers, (bucket * m + at).contiguous())
        rank = place - torch.searchsorted(numbers, (bucket * m).contiguous())
        # of all pairs of slots: four bytes are half as many as eight
        return place, (bucket * (m // chunk + 2) + rank // chunk).int()

    place, of_queries = stand(queries, text[m - n :])
    return Places(order, place, of_queries, stand(keys, text)[1])


def met_in_round(
    index: int,
    places: Places,
    k: Float[Tensor, "batch head key d"],
    v: Float[Tensor, "batch head key d"],
    chunk: int,
    context: Context,
) -> Pairs:
    """Return the pairs of one round that meet, less the logarithm of the number of rounds in which they do.

    Keys in their order are cut into blocks as long as a chunk, and queries that stand in one block into groups of no
    more than that. The chunk of a query and the one before it begin two blocks before its own at most, and reach into
    the next. There are no more groups than blocks and full groups together.
    """
    batch, heads, m = k.shape[:3]
    order, place = places.order[:, :, index], places.place[:, :, index]
    n, n_rows, device = place.shape[-1], place.numel(), k.device
    n_blocks, ahead = -(-m // chunk), 0 if context.looks_back else 1

    # blocks, queries and groups of all rows and heads are counted through
    row = torch.arange(batch * heads, device=device)[:, None]
    block = (row * n_blocks + place.flatten(0, 1).clamp_max(m - 1) // chunk).flatten()
    block_of_group, slot = _in_groups(block, batch * heads * n_blocks, chunk)
    taken = slot.new_full((len(block_of_group) * chunk,), n_rows)
    taken = taken.scatter(0, slot, torch.arange(n_rows, device=device))
    row, own = block_of_group // n_blocks, taken.view(-1, chunk)
    begins = block_of_group + row * (2 + ahead)

    def grouped(rows: Tensor) -> Tensor:
        rows = F.pad(rows.flatten(0, 2), (0, 0, 0, 1))
        return rows.index_select(0, taken).view(-1, 1, chunk, rows.shape[-1])

    def restored(rows: Tensor) -> Tensor:
        return rows.flatten(0, 2).index_select(0, slot).view(batch, heads, n, rows.shape[-1])

    def ordered(rows: Tensor) -> Tensor:
        return rows.gather(-2, order[..., None].expand(-1, -1, -1, rows.shape[-1]))

    def beside(rows: Tensor, nothing: int = 0) -> Tensor:
        """Return what each group meets: two blocks before its own, that, and the next if later tokens are seen."""
        rows = F.pad(rows, (0, 0, 2 * chunk, (n_blocks + ahead) * chunk - m), value=nothing)
        rows = rows.reshape(-1, chunk, rows.shape[-1])
        return torch.cat([rows.index_select(0, begins + i) for i in range(3 + ahead)], 1)

    other = beside(order[..., None], m)[..., 0]
    of_query = F.pad(torch.arange(n, device=device).repeat(batch * heads), (0, 1))[own]
    of_key = other.clamp_max(m - 1)

    allowed, met = _near(index, places, row, of_query, of_key)
    of_query, of_key = m - n + of_query[..., :, None], of_key[..., None, :]
    rows = (row // heads).clamp_max(context.mask.batch - 1)[:, None, None]
    allowed = allowed & context.mask.allows(rows, of_query, of_key)
    allowed = allowed & (own < n_rows)[..., :, None] & (other < m)[..., None, :]
    # a token sees itself where it sees nothing else, which no round knows by itself
    allowed = allowed & (of_query != of_key)
    bias = met.to(k.dtype).clamp_min_(1).log_().neg_()
    key, value = (beside(ordered(rows))[:, None] for rows in (k, v))
    return Pairs(grouped, restored, key, value, allowed[:, None], bias[:, None])


def _near(
    index: int,
    places: Places,
    row: Int[Tensor, " group"],
    query: Int[Tensor, "group row"],
    key: Int[Tensor, "group key"],
) -> tuple[Bool[Tensor, "group row key"], UInt8[Tensor, "group row key"]]:
    """Return which pairs of each group meet in one round, and in how many of all rounds they do."""

    def coded(codes: Tensor, at: Tensor) -> Tensor:
        return codes.flatten(0, 1)[row[:, None], at]

    met = torch.zeros(*query.shape, key.shape[-1], dtype=torch.uint8, device=key.device)
    here = met.bool()
    for i in range(places.order.shape[2]):
        queries = coded(places.of_queries[:, :, i], query)[..., :, None]
        keys = coded(places.of_keys[:, :, i], key)[..., None, :]
        near = (queries == keys) | (queries == keys + 1)
        met += near
        here = near if i == index else here
    return here, met


def _in_groups(
    block: Int[Tensor, " row"], n_blocks: int, size: int
) -> tuple[Int[Tensor, " group"], Int[Tensor, " row"]]:
    """Return the block of each group and the slot of each row: rows of a block stand in groups of `size`, or fewer."""
    members = block.new_zeros(n_blocks).scatter_add_(0, block, torch.ones_like(block))
    n_groups = -(-members // size)
    # slots that are left free before those of a block
    free = (n_groups.cumsum(0) - n_groups) * size - (members.cumsum(0) - members)
    order, counted = block.argsort(stable=True), torch.arange(len(block), device=block.device)
    slot = torch.empty_like(block).scatter_(0, order, counted + free[block[order]])
    return torch.arange(n_blocks, device=block.device).repeat_interleave(n_groups), slot


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
