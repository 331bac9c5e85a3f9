"""Ring attention against attention in one process: values and gradients, wherever chunks and documents are cut."""

import random
from itertools import product

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention.context import Documents
from glassformer.errors import ConfigError
from glassformer.testing import close
from glassformer.training.parallel import SequenceShards, ring_attention
from glassformer.training.parallel.ring import (
    _softmax,
    _softmax_backward,
    _softmax_backward_by_scores,
    _softmax_by_scores,
    meetings,
)
from packed_sequences import packed_cases
from ranks import on_ranks

D_HEAD, D_VALUE, HEADS, KV_HEADS = 4, 3, 4, 2


def drawn(documents: Tensor | None, length: int) -> list[Tensor]:
    """Queries, keys, values and a gradient of what they mix, the same on every rank."""
    batch, generator = 2 if documents is None else len(documents), torch.Generator().manual_seed(length)
    shapes = [(HEADS, D_HEAD), (KV_HEADS, D_HEAD), (KV_HEADS, D_VALUE), (HEADS, D_VALUE)]
    return [
        torch.randn(batch, heads, length, width, generator=generator, dtype=torch.float64) for heads, width in shapes
    ]


def plain(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None) -> Tensor:
    """The definition: all scores of one process, hidden across documents and ahead."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = q @ k.mT / D_HEAD**0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    if documents is not None:
        hidden = hidden | (documents[:, None, :, None] != documents[:, None, None])
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def ring() -> dict[str, list[Tensor]]:
    rank, found = dist.get_rank(), dict[str, list[Tensor]]()
    for name, (shards, ids) in packed_cases(dist.get_world_size()).items():
        q, k, v, gradient = (shards.shard(x, rank) for x in drawn(ids, shards.length))
        inputs = [x.requires_grad_() for x in (q, k, v)]
        z = ring_attention(q, k, v, shards, None if ids is None else Documents(ids))
        found[name] = [z.detach(), *torch.autograd.grad(z, inputs, gradient)]
    return found


@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)])
def test_a_ring_mixes_what_one_process_mixes(ranks: int) -> None:
    found = on_ranks(ranks, ring)
    for name, (shards, ids) in packed_cases(ranks).items():
        *inputs, gradient = drawn(ids, shards.length)
        inputs = [x.requires_grad_() for x in inputs]
        z = plain(*inputs, ids)
        for i, wanted in enumerate((z, *torch.autograd.grad(z, inputs, gradient))):
            whole = shards.whole([of_rank[name][i] for of_rank in found])
            close(whole, wanted, 1e-12)


@given(st.integers(0, 2**16))
def test_every_key_that_a_query_sees_is_met_once(seed: int) -> None:
    draw = random.Random(seed)
    length, ranks, more = draw.randint(0, 12), draw.randint(1, 3), draw.randint(0, 4)
    bounds = (0, *sorted(draw.randint(0, length) for _ in range(ranks + more - 1)), length)
    owners = draw.sample([*range(ranks), *(draw.randrange(ranks) for _ in range(more))], ranks + more)
    shards = SequenceShards(bounds, tuple(owners), ranks)
    ids = torch.tensor([[draw.randrange(2) for _ in range(length)] for _ in range(2)], dtype=torch.int64)
    documents = Documents(ids.reshape(2, length))
    met = torch.zeros(2, length, length, dtype=torch.long)
    for of_queries, of_keys in product(range(ranks), repeat=2):
        for at in meetings(shards, documents.bounds, of_queries, of_keys):
            queries, keys = shards.positions(of_queries)[at.queries], shards.positions(of_keys)[at.keys]
            for row, t, s in product(range(at.rows.start, at.rows.stop), queries, keys):
                met[row, t, s] += not at.causal or s <= t
    same = documents.number[:, :, None] == documents.number[:, None]
    assert torch.equal(met, same.tril().long())


@given(st.integers(0, 40), st.integers(1, 5))
def test_shards_put_together_are_the_whole_and_differ_by_two_at_most(length: int, ranks: int) -> None:
    x = torch.randn(2, length, 3)
    for shards in (SequenceShards.contiguous(length, ranks), SequenceShards.zigzag(length, ranks)):
        parts = [shards.shard(x, rank) for rank in range(ranks)]
        assert torch.equal(shards.whole(parts), x)
        assert all(torch.equal(part, x[:, shards.positions(rank)]) for rank, part in enumerate(parts))
        sizes = [sum(shards.lengths(rank)) for rank in range(ranks)]
        assert max(sizes) - min(sizes) <= 2


def test_under_a_zigzag_all_ranks_see_as_many_keys() -> None:
    for ranks in (2, 3, 4):
        shards = SequenceShards.zigzag(8 * ranks, ranks)
        seen = [sum(t + 1 for t in shards.positions(rank)) for rank in range(ranks)]
        assert len(set(seen)) == 1


@pytest.mark.parametrize("causal", [False, True])
def test_what_meets_by_scores_meets_by_the_kernel(causal: bool) -> None:
    q, k, v, g = (torch.randn(2, 3, 5, width, dtype=torch.float64) for width in (4, 4, 3, 3))
    z, lse = _softmax(q, k, v, 0.7, causal, None)
    once = torch.ones(2, 3, 5, 5, dtype=torch.float64)
    for factors in (None, once):
        scored = _softmax_by_scores(q, k, v, 0.7, causal, factors)
        close(scored.value, z, 1e-13)
        close(scored.log_sum, lse, 1e-13)
    # more keys elsewhere: a larger sum, and another mean
    wider, mixed = lse + 0.3, z + 0.1
    kernel = _softmax_backward(g, q, k, v, mixed, wider, 0.7, causal, None)
    for factors in (None, once):
        found = _softmax_backward_by_scores(g, q, k, v, mixed, wider, 0.7, causal, factors)
        for own, wanted in zip(found, kernel, strict=True):
            close(own, wanted, 1e-13)


def test_factors_on_the_pattern_are_felt_as_autograd_says() -> None:
    q, k, v, g = (torch.randn(2, 3, 5, width, dtype=torch.float64) for width in (4, 4, 3, 3))
    own = [x.clone().requires_grad_() for x in (q, k, v)]
    factors = torch.nn.functional.dropout(torch.ones(2, 3, 5, 5, dtype=torch.float64), 0.3)
    wanted = ((own[0] @ own[1].mT * 0.7).softmax(-1) * factors) @ own[2]
    z, lse = _softmax(q, k, v, 0.7, False, factors)
    close(z, wanted, 1e-13)
    found = _softmax_backward(g, q, k, v, z, lse, 0.7, False, factors)
    for one, other in zip(found, torch.autograd.grad(wanted, own, g), strict=True):
        close(one, other, 1e-13)


@pytest.mark.parametrize(
    ("bounds", "owners", "message"),
    [
        ((1, 3), (0,), "begin at 0"),
        ((0, 3, 2), (0, 0), "rise"),
        ((0, 3), (0, 1), "1 chunks have 2 owners"),
        ((0, 3, 4), (1, 2), "each of 2 ranks owns a chunk"),
        ((0, 3), (1,), "if an empty one; found"),
    ],
)
def test_shards_that_do_not_fit_are_refused(bounds: tuple[int, ...], owners: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SequenceShards(bounds, owners, 2)
