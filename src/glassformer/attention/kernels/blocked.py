"""Softmax attention within a window, in blocks: each block of queries meets the blocks of keys that its window reaches.

    queries of block i          rows i r, …, i r + r - 1
    keys they meet              blocks i - back, …, i + ahead, masked to the window

Time and memory grow with length times window; a mask over all pairs is never made. Blocks are half a window long:
longer ones would meet more keys that the window hides, shorter ones copy each key more often.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.context import Causal, Context, Window

LONGEST, SHORTEST = 128, 32  # rows of a block

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def window_of(context: Context, size: int | None) -> int | None:
    """Return how far apart a query and a key are at most, plus one, by the mask and by what a mechanism says."""
    sizes = [term.size for term in context.mask.terms if isinstance(term, Window)]
    return min(sizes + ([] if size is None else [size]), default=None)


def is_blocked(context: Context, n_queries: int, n_keys: int, size: int | None) -> bool:
    """Whether blocks are quicker than the mask of all pairs, and can say what it says."""
    reach = window_of(context, size)
    if reach is None or context.crossed or context.rule is not None or n_queries != n_keys:
        return False
    if context.biased and not (context.encoding.bias_by_offset and context.first is not None):
        return False
    rows, back = blocks_of(reach)
    met = rows * (1 + back + (0 if context.looks_back else back))
    return n_queries >= 2 * met


def windowed(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch kv_head pos d_head"],
    v: Float[Tensor, "batch kv_head pos d_value"],
    context: Context,
    size: int | None,
    attend: Attend,
    prefix: tuple[Tensor, Tensor] | None = None,
) -> Float[Tensor, "batch head pos d_value"]:
    """Return attention within a window of texts that `is_blocked`.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        context: Facts of the pass.
        size: The window, where the mask has none or a wider one.
        attend: Called with the queries, keys and values of some blocks, `block head row d`, and what is added to their
            scores or allowed: the library's kernel.
        prefix: Keys and values that every query meets, `b kv_head token d` each.
    """
    z = []
    for query, key, value, mask in window_pieces(q, k, v, context, size):
        if prefix is not None:
            mask = F.pad(mask, (prefix[0].shape[-2], 0), value=True if mask.dtype == torch.bool else 0.0)
            key, value = (
                torch.cat((extra.repeat(len(x) // len(extra), 1, 1, 1), x), -2)
                for extra, x in zip(prefix, (key, value), strict=True)
            )
        mixed = attend(query, key, value, mask)
        if prefix is None and not context.sees_itself:
            seen = mask if mask.dtype == torch.bool else mask > float("-inf")
            mixed = mixed.masked_fill(~seen.any(-1, keepdim=True), 0.0)
        z.append(mixed)
    return joined(torch.cat(z), len(q), q.shape[-2])


def window_pieces(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch kv_head pos d_head"],
    v: Float[Tensor, "batch kv_head pos d_value"],
    context: Context,
    size: int | None,
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield queries, keys, values and mask of all blocks, several at a time, as `block_and_batch head row d`."""
    reach, n, batch = window_of(context, size), q.shape[-2], len(q)
    assert reach is not None, "asked of what is blocked"
    rows, back = blocks_of(reach)
    ahead = 0 if context.looks_back else back
    queries = neighbours(q, rows, 0, 0)
    keys, values = neighbours(k, rows, back, ahead), neighbours(v, rows, back, ahead)
    blocks = len(queries)
    alike = all(isinstance(term, (Causal, Window)) for term in context.mask.terms)
    pieces = _pieces(blocks, back, ahead, alike)
    # one node of the graph for all pieces: as many slices would each have a gradient as large as the whole
    parts = [x.split([last - first for first, last in pieces]) for x in (queries, keys, values)]
    for (first, last), *piece in zip(pieces, *parts, strict=True):
        mask = _allowed(context, reach, torch.arange(first, first + 1 if alike else last), rows, back, ahead, n)
        if context.biased:
            mask = _with_bias(mask, context, first, rows, back)
        if not alike:
            mask = mask.expand(-1, batch, *mask.shape[2:])
        query, key, value = (x.flatten(0, 1) for x in piece)
        yield query, key, value, mask.flatten(0, 1)


def distances(size: int, device: torch.device) -> Int[Tensor, "row key"]:
    """Return how far back each key lies that `window_pieces` puts beside a block of queries, if none looks ahead."""
    rows, back = blocks_of(size)
    return torch.arange(rows, device=device)[:, None] - torch.arange(-back * rows, rows, device=device)


def in_blocks(x: Float[Tensor, "batch head pos d"], size: int) -> Float[Tensor, "block_and_batch head row d"]:
    """Return queries as `window_pieces` has them, all blocks of them."""
    return neighbours(x, blocks_of(size)[0], 0, 0).flatten(0, 1)


def joined(z: Float[Tensor, "block_and_batch head row d"], batch: int, n: int) -> Float[Tensor, "batch head pos d"]:
    """Return texts of their blocks."""
    return z.unflatten(0, (-1, batch)).movedim(0, 2).flatten(2, 3)[..., :n, :]


def blocks_of(reach: int) -> tuple[int, int]:
    """Return the rows of a block, and how many blocks before one its window reaches into."""
    rows = max(SHORTEST, min(LONGEST, reach // 2))
    return rows, -(-(reach - 1) // rows)


def _pieces(blocks: int, back: int, ahead: int, alike: bool) -> list[tuple[int, int]]:
    """Return which blocks go together, first and last: those whose window leaves the text by themselves."""
    if not alike:
        return [(0, blocks)]
    start, stop = min(back, blocks), max(min(back, blocks), blocks - ahead - 1)
    edges = [(i, i + 1) for i in range(start)], [(i, i + 1) for i in range(stop, blocks)]
    return [*edges[0], *([(start, stop)] if stop > start else []), *edges[1]]


def neighbours(
    x: Float[Tensor, "batch head pos d"], rows: int, back: int, ahead: int
) -> Float[Tensor, "block batch head key d"]:
    """Return each block with those before and after it; zeros stand where there is no text."""
    n = x.shape[-2]
    blocks = -(-n // rows)
    x = F.pad(x, (0, 0, back * rows, (blocks + ahead) * rows - n)).unflatten(-2, (-1, rows))
    beside = [x[..., i : i + blocks, :, :] for i in range(back + 1 + ahead)]
    return torch.cat(beside, -2).movedim(2, 0)


def _allowed(
    context: Context, reach: int, blocks: Int[Tensor, " block"], rows: int, back: int, ahead: int, n: int
) -> Bool[Tensor, "block b 1 row key"]:
    """Return which keys beside a block its queries may attend to."""
    device = context.positions.device
    start = (blocks.to(device) * rows)[:, None, None, None]
    # what pads the last block looks as the last query does, so that no row is empty
    q = (start + torch.arange(rows, device=device)[:, None]).clamp_max(n - 1)
    k = start + torch.arange(-back * rows, (1 + ahead) * rows, device=device)
    b = torch.arange(context.mask.batch, device=device)[:, None, None]
    there = (k >= 0) & (k < n) & ((q - k).abs() < reach)
    return (context.mask.allows(b, q, k.clamp(0, n - 1)) & there)[:, :, None]


def _with_bias(
    allowed: Bool[Tensor, "block b 1 row key"], context: Context, block: int, rows: int, back: int
) -> Float[Tensor, "block b head row key"]:
    """Return what positions add to the scores of a block, -inf where it may not attend."""
    n_keys, device = allowed.shape[-1], allowed.device
    # distances alone count, so that places before the text will do
    q = block * rows + torch.arange(rows, device=device)[None]
    k = (block - back) * rows + torch.arange(n_keys, device=device)[None]
    bias = context.encoding.bias(replace(context, positions=q, key_positions=k, memo={}))
    return bias[None].masked_fill(~allowed, float("-inf"))


def chunked(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch head pos d_value"],
    context: Context,
    size: int,
    before: int,
    after: int,
    attend: Attend,
) -> Float[Tensor, "batch head pos d_value"]:
    """Return what queries of each chunk of a text mix of its keys and of those of chunks beside it.

    Args:
        q: Queries.
        k: Keys, one per query head.
        v: Values, one per query head.
        context: Facts of the pass, which say what is hidden besides.
        size: Positions of a chunk.
        before: How many chunks before its own a query meets.
        after: How many behind it.
        attend: As in `windowed`.
    """
    (batch, _, n), device = q.shape[:3], q.device
    query = neighbours(q, size, 0, 0).flatten(0, 1)
    key, value = (neighbours(rows, size, before, after).flatten(0, 1) for rows in (k, v))
    chunks = len(query) // batch
    start = (torch.arange(chunks, device=device) * size)[:, None, None, None]
    at = (start + torch.arange(size, device=device)[:, None]).clamp_max(n - 1)
    of_key = start + torch.arange(-before * size, (1 + after) * size, device=device)
    rows = torch.arange(context.mask.batch, device=device)[:, None, None]
    allowed = context.mask.allows(rows, at, of_key.clamp(0, n - 1)) & (of_key >= 0) & (of_key < n)
    allowed = allowed.expand(chunks, batch, -1, -1).flatten(0, 1)[:, None]
    z = attend(query, key, value, allowed)
    if not context.sees_itself:
        z = z.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return z.unflatten(0, (chunks, batch)).movedim(0, 2).flatten(2, 3)[..., :n, :]
