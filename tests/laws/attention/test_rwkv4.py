"""Identities of RWKV-4's time mixing, and of the means that its chunks leave behind."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import Attention, MixerConfig, Rwkv4, Shifted
from glassformer.attention.kernels import chunked
from glassformer.attention.kernels.fading_softmax import (
    NOTHING,
    Mean,
    fading_scores,
    fading_softmax,
    fading_softmax_flops,
)
from glassformer.models.schedules import published_block
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream
from one_pass import in_one_pass

sizes, lengths = st.integers(1, 9), st.integers(1, 11)


def layer(mixer: MixerConfig | None = None, seed: int = 0, **kwargs: Any) -> Layer:
    config = Attention(3, **({"d_head": 1, "mixer": mixer or Rwkv4()} | kwargs))
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval(), seed))


def drawn(seed: int, n: int) -> list[Tensor]:
    """Return keys, values, what scores fall by, a bonus, and a mean with the logarithm of its weights."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 3, n), (2, 3, n, 2), (3,), (3,), (2, 3, 2), (2, 3))
    found = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    found[2] = -found[2].exp()
    return [x.requires_grad_() for x in found]


def ours(k: Tensor, v: Tensor, fall: Tensor, bonus: Tensor, mean: Tensor, total: Tensor, **more: Any) -> Any:
    z, left = fading_softmax(k, v, fall, bonus, Mean(mean, total), **more)
    return z, left.value, left.log_sum


def naive(
    k: Tensor, v: Tensor, fall: Tensor, bonus: Tensor, mean: Tensor, total: Tensor, documents: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The paper's sums as they stand: a numerator and a denominator; none across documents."""
    weight, rows = total.exp(), []
    for t in range(k.shape[-1]):
        if documents is not None:
            weight = weight * (documents[:, t] == documents[:, t + 1])[:, None]
        own, key = (bonus + k[..., t]).exp(), k[..., t].exp()
        rows.append((weight[..., None] * mean + own[..., None] * v[..., t, :]) / (weight + own)[..., None])
        before, weight = weight * fall.exp(), weight * fall.exp() + key
        mean = (before[..., None] * mean + key[..., None] * v[..., t, :]) / weight[..., None]
    return torch.stack(rows, -2), mean, weight.log()


def agree(one: Any, other: Any, inputs: list[Tensor]) -> None:
    """Hold what is mixed, what is left and all gradients to each other."""
    both = []
    for function in (one, other):
        z, mean, total = function(*inputs)
        weighted = (z * torch.sin(torch.arange(z.numel())).view_as(z)).sum() + mean.sin().sum() + total.sum()
        both.append([z, mean, total, *torch.autograd.grad(weighted, inputs)])
    for found, expected in zip(*both, strict=True):
        close(found, expected, 1e-10)


@given(seeds, lengths, sizes)
def test_chunks_of_any_size_equal_the_sums_and_have_their_gradients(seed: int, n: int, size: int) -> None:
    agree(partial(ours, size=size), naive, drawn(seed, n))


@given(seeds, st.lists(st.lists(st.booleans(), min_size=8, max_size=8), min_size=2, max_size=2), sizes)
def test_a_document_knows_nothing_of_the_one_before(seed: int, begins: list[list[bool]], size: int) -> None:
    """Wherever documents begin: inside a chunk, at its edges, several in one, and before the first position."""
    documents = torch.tensor(begins).cumsum(-1)
    agree(partial(ours, size=size, documents=documents), partial(naive, documents=documents), drawn(seed, 7))


@given(seeds, st.lists(st.booleans(), min_size=7, max_size=7), sizes)
def test_padding_is_skipped_wherever_it_stands(seed: int, real: list[bool], size: int) -> None:
    there = torch.tensor(real)
    if not there.any():
        return
    inputs = drawn(seed, 7)
    z, *left = ours(*inputs, size=size, real=there[None])
    skipped, *expected = naive(inputs[0][..., there], inputs[1][..., there, :], *inputs[2:])
    close(z[..., there, :], skipped)
    for found, one in zip(left, expected, strict=True):
        close(found, one)


@pytest.mark.parametrize(("n", "size"), [(16, 4), (23, 5)])
def test_a_long_text_goes_span_by_span(monkeypatch: pytest.MonkeyPatch, n: int, size: int) -> None:
    documents = (torch.arange(n + 1) // 5)[None]
    monkeypatch.setattr(chunked, "SPAN", 8)
    agree(partial(ours, size=size, documents=documents), partial(naive, documents=documents), drawn(0, n))


def test_keys_that_are_huge_neither_overflow_nor_hide_what_was_before_them() -> None:
    k, v, fall, bonus, mean, _ = (x.detach().float() for x in drawn(0, 40))
    k = k * 300
    z, _ = fading_softmax(k, v, fall, bonus, Mean(mean * 0, torch.full((2, 3), NOTHING)))
    expected = fading_scores(k.double(), fall.double(), bonus.double()).softmax(-1) @ v.double()
    close(z.double(), expected, 1e-5)
    assert k.max() > 500 and z.isfinite().all()


@given(seeds)
def test_a_constant_on_all_keys_changes_nothing_and_the_first_position_reads_itself(seed: int) -> None:
    k, v, fall, bonus, mean, _ = (x.detach() for x in drawn(seed, 9))
    nothing = Mean(mean * 0, torch.full((2, 3), NOTHING, dtype=torch.float64))
    one, other = (fading_softmax(k + c, v, fall, bonus, nothing)[0] for c in (0.0, 7.5))
    close(one, other)
    close(one[..., 0, :], v[..., 0, :])


def test_what_falls_at_once_reads_the_position_before_and_itself() -> None:
    k, v, fall, bonus, mean, _ = (x.detach() for x in drawn(0, 6))
    nothing = Mean(mean * 0, torch.full((2, 3), NOTHING, dtype=torch.float64))
    z, _ = fading_softmax(k, v, torch.full_like(fall, -1e4), bonus, nothing)
    pair = torch.stack((k[..., :-1], k[..., 1:] + bonus[:, None]), -1).softmax(-1)
    close(z[..., 1:, :], pair[..., :1] * v[..., :-1, :] + pair[..., 1:] * v[..., 1:, :])


@pytest.mark.full
def test_the_gradients_of_chunks_pass_finite_differences_twice() -> None:
    inputs = drawn(0, 5)
    assert torch.autograd.gradcheck(partial(ours, size=2), inputs)
    assert torch.autograd.gradgradcheck(partial(ours, size=2), inputs, fast_mode=True)


def test_rows_sum_to_the_share_that_the_receptance_opens() -> None:
    attention, x = layer(n_kv_heads=1), stream(2, 9)
    read = attention.read(x, "query", "key", "pattern")
    close(read["pattern"].sum(-1), read["query"][..., 0].sigmoid())
    mixer = attention.mixer
    scores = fading_scores(read["key"][..., 0].expand(-1, 3, -1), -mixer.rate.exp(), mixer.bonus)
    close(read["pattern"], scores.softmax(-1) * read["query"].sigmoid())


@in_one_pass
@pytest.mark.parametrize("d_head", [1, 3])
def test_a_head_has_one_key_and_one_receptance_the_sum_of_its_numbers(d_head: int) -> None:
    attention, x = layer(d_head=d_head, d_value=2), stream(2, 7)
    read = attention.read(x, "query", "key", "value", "z")
    q, k = (read[name].sum(-1) for name in ("query", "key"))
    mixer, nothing = attention.mixer, torch.zeros(2, 3, 2, dtype=torch.float64)
    mixed, *_ = naive(k, read["value"], -mixer.rate.exp(), mixer.bonus, nothing, torch.full((2, 3), -700.0).double())
    close(read["z"], q.sigmoid()[..., None] * mixed)


def test_rates_and_bonus_begin_as_the_paper_has_them_halfway_up() -> None:
    mixer: Any = Attention(7, d_head=1, mixer=Rwkv4()).build(8, 8, 0, "").mixer
    rate = mixer.rate.detach()
    close(rate, -5 + 8 * (torch.arange(7) / 6) ** 1.35, 1e-6)
    first = torch.tensor(0.3).log()
    close(mixer.bonus.detach()[:3], torch.stack((first, first + 0.5, first - 0.5)), 1e-6)


@in_one_pass
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_the_chunk_length_changes_nothing(chunk: int) -> None:
    x = stream(2, 40)
    close(layer(Rwkv4(chunk))(x), layer()(x))


def test_the_state_is_a_mean_and_a_logarithm_a_head_in_float32_however_long_the_text() -> None:
    mixer = Rwkv4()
    module: Any = layer(mixer, d_value=1, projection=Shifted()).module.bfloat16()
    for n in (1, 9):
        x = stream(1, n).bfloat16()
        _, state = module(x, causal_context(x), state=module.begin(1, x))
        assert [tuple(part.shape) for part in state.mixer] == [(1, 3, 1), (1, 3)]
        assert {part.dtype for part in state.mixer} == {torch.float32}
        assert mixer.state_numbers(n, module.dims) == 6


@in_one_pass
@pytest.mark.parametrize("documents", [False, True])
def test_a_long_text_makes_nothing_for_each_pair_of_positions(documents: bool) -> None:
    n = 2048
    attention = Layer(Attention(1, d_head=1, mixer=Rwkv4(16)).build(D_MODEL, 64, 0, "").float())
    x = stream(1, n).float().requires_grad_()
    ids = torch.arange(n)[None] // 300 if documents else None
    with Largest() as seen:
        attention(x, causal_context(x, document_ids=ids)).sum().backward()
    assert seen.numbers <= n * 32


def test_operations_grow_with_length_and_published_layers_are_shifted() -> None:
    assert fading_softmax_flops(64_000, 3, 16) == 4000 * fading_softmax_flops(16, 3, 16)
    # a chunk's rows and what it leaves, of its keys
    assert fading_softmax_flops(4, 3, 4) == 2 * 5 * 4 * 3
    attention: Any = published_block(Rwkv4(), n_heads=3, d_head=1).parts[0]
    assert attention.projection == Shifted() and attention.departures(0) == []
