"""Softmax in pieces: equal to torch's in any pieces, any order and any tree, with as many reads as it says."""

import functools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.errors import ShapeMismatch
from glassformer.numerics.softmax import (
    Finished,
    Part,
    log_softmax,
    log_sum_exp,
    merge,
    merge_finished,
    online_attention,
    online_softmax,
    safe_softmax,
    tiled_attention,
)
from glassformer.testing import close

# a piece may be empty
SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any)
SEEDS = st.integers(0, 1000)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def heads(seed: int = 0, queries: int = 5, keys: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((2, 3, queries, 4), (2, 3, keys, 4), (2, 3, keys, 6))
    query, key, value = (drawn(seed + i, *shape) for i, shape in enumerate(shapes))
    return query, key, value


def tree(parts: list[Part], draw: random.Random) -> Part:
    """Merge neighbours and strangers in an order of its own."""
    parts = list(parts)
    while len(parts) > 1:
        one = parts.pop(draw.randrange(len(parts)))
        other = parts.pop(draw.randrange(len(parts)))
        parts.append(merge(one, other))
    return parts[0]


@pytest.mark.parametrize("function", [safe_softmax, online_softmax, log_softmax])
def test_of_no_pieces_there_is_nothing_and_an_iterator_gives_what_its_list_does(function: Any) -> None:
    pieces = [drawn(i, 2, 3) for i in range(3)]
    assert function([]) == [] and function(iter([])) == []
    assert all(map(torch.equal, function(pieces), function(iter(pieces)))) and len(function(iter(pieces))) == 3
    with pytest.raises(ShapeMismatch, match="no parts were given"):
        log_sum_exp([])


class Counted:
    """Pieces that count how often their elements are read."""

    def __init__(self, pieces: tuple[Tensor, ...]) -> None:
        self.pieces, self.reads = pieces, 0

    def __iter__(self) -> Iterator[Tensor]:
        for piece in self.pieces:
            self.reads += piece.numel()
            yield piece


@given(SIZES, SEEDS)
def test_softmax_in_pieces_equals_torchs_with_gradients(sizes: list[int], seed: int) -> None:
    x, probe = drawn(seed, 3, sum(sizes)).requires_grad_(), drawn(seed + 1, 3, sum(sizes))
    for form, known in ((safe_softmax, F.softmax), (online_softmax, F.softmax), (log_softmax, F.log_softmax)):
        found, expected = torch.cat(form(x.split(sizes, -1)), -1), known(x, dim=-1)
        close(found, expected, 1e-12)
        ours, theirs = (torch.autograd.grad((y * probe).sum(), x)[0] for y in (found, expected))
        close(ours, theirs, 1e-11)


@given(SIZES, SEEDS)
def test_merging_gives_the_same_in_any_order_and_by_any_tree(sizes: list[int], seed: int) -> None:
    x, values = drawn(seed, 2, sum(sizes)), drawn(seed + 1, sum(sizes), 3)
    parts = [Part.of(s, v) for s, v in zip(x.split(sizes, -1), values.split(sizes))]
    whole = Part.of(x, values)
    for draw in (random.Random(seed), random.Random(seed + 1)):
        found = tree(parts, draw)
        for ours, theirs in zip((*found, found.lse, found.out), (*whole, whole.lse, whole.out)):
            close(ours, theirs, 1e-12)
    close(whole.out, x.softmax(-1) @ values, 1e-12)
    close(log_sum_exp([part.lse for part in parts]), x.logsumexp(-1), 1e-12)
    finished = functools.reduce(merge_finished, [Finished(part.out, part.lse) for part in parts])
    close(finished.out, whole.out, 1e-12)
    close(finished.lse, whole.lse, 1e-12)


@given(SIZES, SEEDS, st.floats(-500, 500))
def test_a_shift_changes_nothing_and_log_probabilities_sum_to_one(sizes: list[int], seed: int, shift: float) -> None:
    pieces = drawn(seed, 2, sum(sizes)).split(sizes, -1)
    logs = torch.cat(log_softmax(pieces), -1)
    close(torch.cat(log_softmax([piece + shift for piece in pieces]), -1), logs, 1e-11)
    assert logs.logsumexp(-1).abs().max() < 1e-12
    assert (Part.of(torch.cat(pieces, -1)).total >= 1).all()


def test_the_gradient_of_a_log_probability_is_one_hot_less_softmax() -> None:
    x = drawn(0, 6).requires_grad_()
    (found,) = torch.autograd.grad(torch.cat(log_softmax(x.split(2)))[3], x)
    close(found, F.one_hot(torch.tensor(3), 6) - x.detach().softmax(-1), 1e-12)


@pytest.mark.parametrize(("normalise", "reads"), [(safe_softmax, 3), (online_softmax, 2), (log_softmax, 2)])
def test_every_element_is_read_once_a_pass_and_written_once(normalise, reads: int) -> None:
    pieces = Counted(drawn(0, 2, 12).split(5, -1))
    written = normalise(pieces)
    assert pieces.reads == reads * 24
    assert sum(piece.numel() for piece in written) == 24


def test_scores_of_a_thousand_overflow_the_plain_form_and_not_these() -> None:
    x = torch.tensor([999.0, 1000.0, 1001.0, -1000.0])
    assert (x.exp() / x.exp().sum()).log().isnan().any()
    assert x.softmax(-1).log().isinf().any()
    close(torch.cat(log_softmax(x.split(1))), x.double().log_softmax(-1).float())
    close(torch.cat(online_softmax(x.split(3))), x.softmax(-1))


def test_what_is_masked_is_neutral_and_a_row_of_nothing_else_gives_zero() -> None:
    x, values = drawn(0, 2, 6), drawn(1, 6, 3)
    nothing = Part.of(torch.full_like(x, -math.inf), values)
    none = Part.of(x[:, :0], values[:0])
    for empty in (nothing, none):
        for found in (merge(Part.of(x, values), empty), merge(empty, Part.of(x, values))):
            close(found.out, x.softmax(-1) @ values, 1e-12)
        assert not merge(empty, empty).out.any()
        assert (merge(empty, empty).lse == -math.inf).all()
    kept, empty = (Finished(part.out, part.lse) for part in (Part.of(x, values), nothing))
    for pair in ((kept, empty), (empty, kept)):
        for found, expected in zip(merge_finished(*pair), kept):
            close(found, expected, 1e-12)
    assert (merge_finished(empty, empty).lse == -math.inf).all()
    assert not merge_finished(empty, empty).out.any()
    rows = [torch.full((2, 3), -math.inf)] * 2
    assert not torch.cat(safe_softmax(rows)).any() and not torch.cat(online_softmax(rows)).any()
    assert (torch.cat(log_softmax(rows)) == -math.inf).all()


@pytest.mark.parametrize("tile", [1, 3, 100])
def test_attention_by_tiles_equals_torchs_with_gradients(tile: int) -> None:
    q, k, v = [x.requires_grad_() for x in heads()]
    mask = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[..., 0] = True
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    gradients = torch.autograd.grad(expected.square().sum(), (q, k, v))
    for form in (online_attention, tiled_attention):
        found = form(q, k, v, mask, tile=tile)
        close(found.out, expected, 1e-12)
        close(found.lse, (q @ k.mT / 2).masked_fill(~mask, -math.inf).logsumexp(-1), 1e-12)
        for ours, theirs in zip(torch.autograd.grad(found.out.square().sum(), (q, k, v)), gradients):
            close(ours, theirs, 1e-11)


def test_the_backward_written_by_hand_is_the_derivative_of_output_and_lse() -> None:
    q, k, v = [x[:1, :1].detach().requires_grad_() for x in heads(queries=3, keys=5)]
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 1, 1, 1], [1, 0, 0, 0, 0]]).bool()
    assert torch.autograd.gradcheck(lambda q, k, v: tuple(tiled_attention(q, k, v, mask, tile=2)), (q, k, v))


def test_a_query_that_may_look_nowhere_gets_zero_and_gives_no_gradient() -> None:
    q, k, v = [x.requires_grad_() for x in heads()]
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    for form in (online_attention, tiled_attention):
        found = form(q, k, v, mask, tile=3)
        assert not found.out[..., 2, :].any() and (found.lse[..., 2] == -math.inf).all()
        gradients = torch.autograd.grad(found.out.square().sum(), (q, k, v))
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert not gradients[0][..., 2, :].any()


def test_keys_may_be_split_between_two_calls_and_their_outputs_merged() -> None:
    q, k, v = heads()
    halves = [tiled_attention(q, k[..., part, :], v[..., part, :]) for part in (slice(3), slice(3, None))]
    for found, expected in zip(merge_finished(*halves), online_attention(q, k, v)):
        close(found, expected, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    # sums of 5000 ones in half precision end at 2048 or 256
    x = torch.zeros(5000, dtype=dtype)
    part = functools.reduce(merge, map(Part.of, x.split(1000)))
    assert part.total.dtype == torch.float32 and part.total == 5000
    assert {piece.dtype for piece in online_softmax(x.split(1000))} == {dtype}
    q, k, v = [x.to(dtype) for x in heads()]
    found = tiled_attention(q, k, v, tile=2)
    assert found.out.dtype == dtype and found.lse.dtype == torch.float32
    close(found.out.double(), online_attention(q.double(), k.double(), v.double()).out, 4 * torch.finfo(dtype).eps)
