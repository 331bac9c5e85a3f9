"""LASP and LASP+: linear attention with the positions shared among ranks, by exchange of memories instead of keys.

    z_t = own_t + kept_t q_t before_c,      before_{c+1} = keep_c before_c + write_c

A chunk c of positions mixes itself from an empty memory, which ends as write_c; what the memory before it adds is
linear, so it may come later. Of a memory before the chunk its positions read the share kept_t, and keep_c is left at
the end; neither is anything once another document has begun. A message is a memory of d_head x d_value numbers a head,
however long the chunks are.
LASP hands the memory on from chunk to chunk, one after the other. LASP+ gathers what all chunks write, once, and each
rank puts together what comes before its own. The gradient of a memory takes the same way from the end to the beginning.
Source: Sun et al. 2024, "Linear Attention Sequence Parallelism" (2404.02882), algorithms 2 and 3, for LASP; MiniMax
2025, "MiniMax-01" (2501.08313), section 3, for LASP+ and documents of any length.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.attention.context import Documents
from glassformer.attention.kernels.chunked import chunked, gated
from glassformer.training.parallel.exchange import Ring
from glassformer.training.parallel.shards import SequenceShards

# what is given: what chunks keep and write, and their order; what comes: the memory before each of this rank's
Exchange = Callable[[Ring, SequenceShards, Tensor, Tensor, Iterable[int]], Tensor]


def lasp(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch head query d_head"],
    v: Float[Tensor, "batch head query d_value"],
    keep: Float[Tensor, " head"] | Float[Tensor, "batch head query"],
    shards: SequenceShards,
    documents: Documents | None = None,
    group: dist.ProcessGroup | None = None,
    size: int = 64,
) -> Float[Tensor, "batch head query d_value"]:
    """Return what this rank's queries read of all positions up to theirs, memories handed on from chunk to chunk.

    All ranks of the group call it together, for the way back too. It has first derivatives, in q, k, v and the keep of
    positions.

    Args:
        q: Queries at the positions that this rank holds.
        k: Keys at the same positions.
        v: Values at the same positions.
        keep: What each head keeps of its memory from one position to the next, 1 without decay; or the logarithm of
            what it keeps at each position, not positive.
        shards: Which rank holds which positions.
        documents: Those of all positions of the sequence; None if each row is one.
        group: The ranks; None for all processes.
        size: Positions that are mixed in one product; changes speed, not results.
    """
    return _shared(_handed_on, q, k, v, keep, shards, documents, group, size)


def lasp_plus(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch head query d_head"],
    v: Float[Tensor, "batch head query d_value"],
    keep: Float[Tensor, " head"] | Float[Tensor, "batch head query"],
    shards: SequenceShards,
    documents: Documents | None = None,
    group: dist.ProcessGroup | None = None,
    size: int = 64,
) -> Float[Tensor, "batch head query d_value"]:
    """Return the same, what chunks write gathered in one exchange.

    Args:
        q: As in `lasp`, and so are all others.
        k: Keys.
        v: Values.
        keep: What is kept of memories.
        shards: Which rank holds which positions.
        documents: Those of the sequence.
        group: The ranks.
        size: Positions that are mixed in one product.
    """
    return _shared(_gathered, q, k, v, keep, shards, documents, group, size)


def _shared(
    exchange: Exchange,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor,
    shards: SequenceShards,
    documents: Documents | None,
    group: dist.ProcessGroup | None,
    size: int,
) -> Tensor:
    ring, dtype = Ring(group), q.dtype
    # memories are sums over long ranges, which lose their small terms in lower precision
    q, k, v = (x.to(torch.promote_types(dtype, torch.float32)) for x in (q, k, v))
    numbers = None if documents is None else F.pad(documents.number, (1, 0)).to(q.device)
    chunks, lengths = shards.chunks[ring.rank], shards.lengths(ring.rank)
    keeps = [keep] * len(lengths) if keep.ndim == 1 else keep.split(lengths, -1)
    queries, keys, values = (x.split(lengths, -2) for x in (q, k, v))
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for chunk, *rows, kept in zip(chunks, queries, keys, values, keeps, strict=True):
        start, stop = shards.span(chunk)
        found.append(_mixed(rows, kept, None if numbers is None else numbers[:, start : stop + 1], size))
    own, of_rows, of_chunks, writes = zip(*found, strict=True)
    before = _Memories.apply(exchange, ring, shards, torch.stack(of_chunks), torch.stack(writes))
    read = zip(own, of_rows, queries, before, strict=True)  # type: ignore[arg-type]
    return torch.cat([z + left * (part @ memory) for z, left, part, memory in read], -2).to(dtype)


def _mixed(
    rows: Sequence[Tensor], keep: Tensor, documents: Int[Tensor, "b pos_and_one"] | None, size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what a chunk mixes of itself, the shares of a memory before it that are left, and what it writes.

    The shares are those that its rows read, `batch head row 1`, and that at its end, `batch head 1 1`.
    """
    q, k, v = rows
    (batch, heads, n), memory = q.shape[:3], q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    row = torch.arange(n + 1, device=q.device)
    # the share left after each position, and before the first all
    left = keep[:, None] ** row if keep.ndim == 1 else F.pad(keep.to(q.dtype).cumsum(-1), (1, 0)).exp()
    left = left.to(q.dtype).expand(batch, heads, n + 1)
    if documents is not None:
        left = left * (documents == documents[:, :1])[:, None]
    of_rows, of_chunk = left[..., 1:, None], left[..., -1:, None]
    if n == 0:
        # nothing, but made of q, k and v, which have gradients on all ranks then
        return q @ (k.mT @ v), of_rows, of_chunk, k.mT @ v
    mix = chunked if keep.ndim == 1 else gated
    z, write = mix(q, k, v, keep, memory, size, documents)
    return z, of_rows, of_chunk, write


class _Memories(torch.autograd.Function):
    """The memory before each chunk of this rank, given what its chunks keep and write, on an axis of chunks."""

    @staticmethod
    def forward(
        ctx: Any, exchange: Exchange, ring: Ring, shards: SequenceShards, keeps: Tensor, writes: Tensor
    ) -> Tensor:
        before = exchange(ring, shards, keeps, writes, range(shards.n_chunks))
        ctx.save_for_backward(keeps, before)
        ctx.exchange, ctx.ring, ctx.shards = exchange, ring, shards
        return before

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        keeps, before = ctx.saved_tensors
        # of the memory after each chunk: what later chunks read of it, by the same recursion from the end
        after = ctx.exchange(ctx.ring, ctx.shards, keeps, gradients[0], reversed(range(ctx.shards.n_chunks)))
        return None, None, None, (after * before).sum((-2, -1), keepdim=True), after


def _handed_on(ring: Ring, shards: SequenceShards, keeps: Tensor, writes: Tensor, order: Iterable[int]) -> Tensor:
    """Return the memories before this rank's chunks; each rank waits for the chunk before its own."""
    before, last = torch.zeros_like(writes), None
    memory = torch.zeros_like(writes[0])
    for chunk in order:
        owner = shards.owners[chunk]
        if last not in (None, owner):
            if last == ring.rank:
                ring.send(memory, owner)
            elif owner == ring.rank:
                memory = ring.receive(memory, last)
        if owner == ring.rank:
            i = shards.chunks[owner].index(chunk)
            before[i] = memory
            memory = keeps[i] * memory + writes[i]
        last = owner
    return before


def _gathered(ring: Ring, shards: SequenceShards, keeps: Tensor, writes: Tensor, order: Iterable[int]) -> Tensor:
    """Return the memories before this rank's chunks, put together here of what all chunks write."""
    # ranks may own fewer chunks than others, and a message is of one size
    missing = max(map(len, shards.chunks)) - len(writes)
    all_keeps, all_writes = (ring.gather(F.pad(x, (0, 0) * (x.ndim - 1) + (0, missing))) for x in (keeps, writes))
    before, memory = torch.zeros_like(writes), torch.zeros_like(writes[0])
    for chunk in order:
        owner = shards.owners[chunk]
        i = shards.chunks[owner].index(chunk)
        if owner == ring.rank:
            before[i] = memory
        memory = all_keeps[owner][i] * memory + all_writes[owner][i]
    return before
