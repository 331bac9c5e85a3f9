"""LASP and LASP+ against linear attention in one process: values and gradients, wherever the sequence is cut."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glassformer.attention.context import Documents
from glassformer.testing import close
from glassformer.training.parallel import SequenceShards, lasp, lasp_plus
from packed_sequences import packed_cases
from ranks import on_ranks

D_HEAD, D_VALUE, HEADS = 4, 3, 2
DECAY = torch.tensor([1.0, 0.8], dtype=torch.float64)


def drawn(documents: Tensor | None, length: int, gated: bool) -> list[Tensor]:
    """Queries, keys, values, what is kept and a gradient of what is read, the same on every rank."""
    batch, generator = 2 if documents is None else len(documents), torch.Generator().manual_seed(length)
    q, k, v, g = (
        torch.randn(batch, HEADS, length, width, generator=generator, dtype=torch.float64)
        for width in (D_HEAD, D_HEAD, D_VALUE, D_VALUE)
    )
    logarithms = torch.rand(batch, HEADS, length, generator=generator, dtype=torch.float64).log()
    return [q, k, v, logarithms if gated else DECAY, g]


def plain(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, documents: Tensor | None) -> Tensor:
    """The definition: every pair of positions, what is between them kept, none of another document."""
    total = (keep if keep.ndim > 1 else keep.log()[:, None].expand(q.shape[:-1])).cumsum(-1)
    kept = total[..., :, None] - total[..., None, :]
    hidden = torch.ones(kept.shape[-2:], dtype=torch.bool).triu(1)
    if documents is not None:
        hidden = hidden | (documents[:, None, :, None] != documents[:, None, None])
    return (q @ k.mT * kept.masked_fill(hidden, float("-inf")).exp()) @ v


def of_ranks() -> dict[str, list[Tensor]]:
    rank, found = dist.get_rank(), dict[str, list[Tensor]]()
    for name, (shards, ids) in packed_cases(dist.get_world_size()).items():
        for gated in (False, True):
            *inputs, gradient = [
                x if x is DECAY else shards.shard(x, rank, 2) for x in drawn(ids, shards.length, gated)
            ]
            inputs = [x if x is DECAY else x.requires_grad_() for x in inputs]
            fitted = [x for x in inputs if x.requires_grad]
            for mix in (lasp, lasp_plus):
                z = mix(*inputs, shards, None if ids is None else Documents(ids), size=2)
                found[f"{mix.__name__} {gated} {name}"] = [z.detach(), *torch.autograd.grad(z, fitted, gradient)]
    return found


@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)])
def test_memories_handed_on_or_gathered_are_those_of_one_process(ranks: int) -> None:
    found = on_ranks(ranks, of_ranks)
    for name, (shards, ids) in packed_cases(ranks).items():
        for gated in (False, True):
            *inputs, gradient = drawn(ids, shards.length, gated)
            inputs = [x if x is DECAY else x.requires_grad_() for x in inputs]
            z = plain(*inputs, ids)
            wanted = [z, *torch.autograd.grad(z, [x for x in inputs if x.requires_grad], gradient)]
            for mix in ("lasp", "lasp_plus"):
                for i, reference in enumerate(wanted):
                    parts = [of_rank[f"{mix} {gated} {name}"][i] for of_rank in found]
                    close(shards.whole(parts, 2), reference, 1e-12)


def bytes_sent(lengths: list[int]) -> list[int]:
    """What this rank hands over to be gathered, in a pass and its way back, for sequences of each length."""
    sent: list[int] = []
    gather = dist.all_gather

    def counted(found: list[Tensor], x: Tensor, *others: Any) -> Any:
        sent[-1] += x.nbytes
        return gather(found, x, *others)

    for length in lengths:
        sent.append(0)
        shards = SequenceShards.contiguous(length, dist.get_world_size())
        q, k, v = (torch.randn(1, HEADS, len(shards.positions(dist.get_rank())), 4).requires_grad_() for _ in range(3))
        with patch.object(dist, "all_gather", counted):
            lasp_plus(q, k, v, DECAY.float(), shards).sum().backward()
    return sent


def test_messages_of_lasp_plus_are_as_large_for_long_sequences_as_for_short_ones() -> None:
    short, long = on_ranks(2, bytes_sent, [8, 800])[0]
    # what a chunk keeps and its memory, there and back
    assert short == long == 2 * 4 * HEADS * (1 + 4 * 4)
