"""Identities of the selective state space, and of the chunks in which every position says what a memory keeps."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import Attention, Linear, MixerConfig, StateSpace
from glassformer.attention.kernels import chunked
from glassformer.attention.kernels.chunked import gated
from glassformer.errors import AnalysisUnavailable, ConfigError
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.largest import Largest
from glassformer.testing.layers import D_MODEL, Layer, causal_context, randomise, seeds, stream

chunk_sizes, lengths = st.integers(1, 9), st.integers(1, 10)


def layer(mixer: MixerConfig | None = None, seed: int = 0, **kwargs: Any) -> Layer:
    config = Attention(2, d_head=4, mixer=StateSpace() if mixer is None else mixer, **kwargs)
    return Layer(randomise(config.build(D_MODEL, 64, 0, "").double().eval(), seed))


def drawn(seed: int, n: int) -> list[Tensor]:
    """Return queries, keys, values, logarithms of what is kept, and a memory; with gradients."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 2, n, 4), (2, 2, n, 4), (2, 2, n, 3), (2, 2, n), (2, 2, 4, 3))
    q, k, v, log_keep, memory = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return [x.requires_grad_() for x in (q, k, v, -log_keep.abs(), memory)]


def naive(
    q: Tensor, k: Tensor, v: Tensor, log_keep: Tensor, memory: Tensor, documents: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The recurrence, position by position; a memory is let go where a document begins."""
    rows = []
    for t in range(q.shape[-2]):
        if documents is not None:
            memory = memory * (documents[:, t] == documents[:, t + 1])[:, None, None, None]
        memory = log_keep[..., t, None, None].exp() * memory + k[..., t, :, None] * v[..., t, None, :]
        rows.append((q[..., t, None, :] @ memory).squeeze(-2))
    return torch.stack(rows, -2), memory


def with_gradients(function: Any, inputs: list[Tensor]) -> list[Tensor]:
    """Return both outputs and the gradients of all inputs: a memory that goes on sends one back."""
    z, last = function(*inputs)
    weighted = (z * torch.sin(torch.arange(z.numel())).view_as(z)).sum() + (last * last.detach().cos()).sum()
    return [z, last, *torch.autograd.grad(weighted, inputs)]


@given(seeds, lengths, chunk_sizes)
def test_chunks_of_any_size_equal_the_recurrence_and_have_its_gradients(seed: int, n: int, size: int) -> None:
    inputs = drawn(seed, n)
    for found, expected in zip(with_gradients(partial(gated, size=size), inputs), with_gradients(naive, inputs)):
        close(found, expected, 1e-10)


@given(seeds, st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=2, max_size=2), chunk_sizes)
def test_a_document_knows_nothing_of_the_one_before(seed: int, begins: list[list[bool]], size: int) -> None:
    """Wherever documents begin: inside a chunk, at its edges, several in one, and before the first position."""
    inputs, documents = drawn(seed, 8), torch.tensor(begins).cumsum(-1)
    ours = with_gradients(partial(gated, size=size, documents=documents), inputs)
    for found, expected in zip(ours, with_gradients(partial(naive, documents=documents), inputs), strict=True):
        close(found, expected, 1e-10)


@pytest.mark.parametrize(("n", "size"), [(16, 4), (23, 4), (19, 9)])
def test_a_long_text_goes_span_by_span_and_sends_gradients_back(
    monkeypatch: pytest.MonkeyPatch, n: int, size: int
) -> None:
    inputs, documents = drawn(0, n), (torch.arange(n + 1) // 5)[None]
    expected = with_gradients(partial(naive, documents=documents), inputs)
    monkeypatch.setattr(chunked, "GATED_SPAN", 8)
    for found, one in zip(with_gradients(partial(gated, size=size, documents=documents), inputs), expected):
        close(found, one, 1e-10)


@pytest.mark.full
def test_the_gradients_of_chunks_pass_finite_differences_twice() -> None:
    inputs = drawn(0, 4)
    assert torch.autograd.gradcheck(partial(gated, size=3), inputs)
    assert torch.autograd.gradgradcheck(partial(gated, size=3), inputs, fast_mode=True)


def test_a_gate_that_shuts_neither_overflows_nor_forgets_what_comes_after() -> None:
    q, k, v, log_keep, memory = (x.detach().float() for x in drawn(0, 200))
    log_keep[..., 70] = -1e4
    log_keep.requires_grad_()
    z, last = gated(q, k, v, log_keep, memory)
    expected, held = naive(*(x.double() for x in (q, k, v, log_keep, memory)))
    close(z.double(), expected, 1e-5)
    close(last.double(), held, 1e-5)
    assert torch.autograd.grad(z.sum(), log_keep)[0].isfinite().all()


@given(seeds)
def test_one_decay_at_all_positions_is_that_of_a_head(seed: int) -> None:
    q, k, v, _, memory = drawn(seed, 9)
    decay = torch.tensor([0.9, 0.4], dtype=torch.float64)
    gates = decay.log()[:, None].expand(2, 2, 9)
    pairs = (gated(q, k, v, gates, memory, 4), chunked.chunked(q, k, v, decay, memory, 4))
    for one, other in zip(*pairs, strict=True):
        close(one, other)


def without_fading(seed: int) -> Layer:
    """Return a layer whose steps are one, which fades nothing and skips nothing."""
    attention = layer(seed=seed)
    with torch.no_grad():
        attention.mixer.step.weight.zero_()
        attention.mixer.step_bias.fill_(1.0).expm1_().log_()
        attention.mixer.log_rate.fill_(-torch.inf)
        attention.mixer.skip.zero_()
    return attention


@given(seeds)
def test_steps_of_one_that_fade_nothing_are_linear_attention(seed: int) -> None:
    attention, x = without_fading(seed), stream(2, 7)
    read = attention.read(x, "query", "key", "value", "z")
    close(read["z"], (read["query"] @ read["key"].mT).tril() @ read["value"])
    # features are themselves where they are positive
    features = layer(Linear(feature_map="relu", denominator=False), seed=seed)
    q, k = (read[name].abs() for name in ("query", "key"))
    args = (q, k, read["value"], x, attention.context(x), None, None)
    close(attention.mixer(*args)[0], features.mixer(*args)[0])


@given(seeds, chunk_sizes)
def test_the_layer_is_its_recurrence(seed: int, size: int) -> None:
    attention, x = layer(StateSpace(chunk=size), seed), stream(2, 7)
    read = attention.read(x, "query", "key", "value", "step", "log_decay", "z")
    memory, rows, mixer = torch.zeros(2, 2, 4, 4, dtype=torch.float64), [], attention.mixer
    for t in range(7):
        q, k, v = (read[name][..., t, :] for name in ("query", "key", "value"))
        step = (1 + (x[:, t] @ mixer.step.weight.T + mixer.step_bias).exp()).log()
        close(read["step"][..., t], step)
        close(read["log_decay"][..., t], -mixer.log_rate.exp() * step)
        kept = (-mixer.log_rate.exp() * step).exp()[..., None, None]
        memory = kept * memory + step[..., None, None] * k[..., None] * v[..., None, :]
        rows.append((q[..., None, :] @ memory).squeeze(-2) + mixer.skip[:, None] * v)
    close(read["z"], torch.stack(rows, -2))


@given(seeds)
def test_the_pattern_is_what_unit_values_are_mixed_to(seed: int) -> None:
    attention, x = layer(seed=seed), stream(2, 6)
    read = attention.read(x, "query", "key", "pattern")
    close(attention.mixer.probe(read["query"], read["key"], x, attention.context(x)), read["pattern"])


def test_a_token_without_a_step_leaves_no_trace_and_one_without_end_lets_all_before_it_go() -> None:
    attention, x = layer(), stream(1, 6)
    steps = attention.read(x, "step")["step"].clone()
    steps[..., 2], steps[..., 4] = 0.0, 1e4
    tape = attention.tape("pattern", edit=[("step", lambda _: steps)])
    attention(x, tape=tape)
    pattern = tape.values["pattern"]
    skip = attention.mixer.skip.diag_embed()[0, 0]
    assert pattern[0, 0, 3:, 2].abs().max() == 0 and pattern[0, 0, 4:, :4].abs().max() == 0
    close(pattern[0, 0, 2, 2], skip)


def test_limits_of_steps_hold_for_single_tokens_too() -> None:
    attention, x = layer(StateSpace(shortest=0.5, longest=0.8)), stream(2, 9)
    steps = attention.read(x, "step")["step"]
    assert 0.5 in steps and 0.8 in steps and ((steps >= 0.5) & (steps <= 0.8)).all()
    whole, state = attention(x), attention.module.begin(2, x)
    for t in range(9):
        one, state = attention.module(x[:, t : t + 1], causal_context(x[:, t : t + 1], past=t), state=state)
        close(one, whole[:, t : t + 1])


def test_limits_that_leave_no_step_are_refused() -> None:
    with pytest.raises(ConfigError, match="no step would be between"):
        StateSpace(shortest=0.5, longest=0.5)


def test_a_text_read_both_ways_is_refused() -> None:
    attention, x = layer(), stream(1, 4)
    with pytest.raises(AnalysisUnavailable, match="fades with time"):
        attention.module(x, make_context(1, 4, x.device, is_causal=False))


def test_steps_and_rates_begin_between_those_of_the_paper() -> None:
    torch.manual_seed(0)
    mixer: Any = Attention(400, d_head=1, mixer=StateSpace()).build(D_MODEL, 8, 0, "").mixer
    with torch.no_grad():
        step, rate = torch.nn.functional.softplus(mixer.step_bias), mixer.log_rate.exp()
    assert 1e-3 <= float(step.min()) < 2e-3 and 0.09 < float(step.max()) <= 0.1
    assert 1 <= float(rate.min()) < 1.5 and 15 < float(rate.max()) <= 16
    assert (mixer.skip == 1).all()


def test_the_state_is_one_matrix_a_head_in_float32_however_long_the_text() -> None:
    module = layer().module.bfloat16()
    for n in (1, 9):
        x = stream(1, n).bfloat16()
        _, state = module(x, causal_context(x), state=module.begin(1, x))
        assert [tuple(part.shape) for part in state.mixer] == [(1, 2, 4, 4)]
        assert state.mixer.memory.dtype == torch.float32 and StateSpace().state_numbers(n, module.dims) == 32


@pytest.mark.parametrize("documents", [False, True])
def test_a_long_text_makes_nothing_for_each_pair_of_positions(documents: bool) -> None:
    n = 2048
    attention = Layer(Attention(1, 1, 4, mixer=StateSpace(chunk=32)).build(D_MODEL, 64, 0, "").float())
    x = stream(1, n).float().requires_grad_()
    ids = torch.arange(n)[None] // 300 if documents else None
    with Largest() as seen:
        attention(x, causal_context(x, document_ids=ids)).sum().backward()
    assert seen.numbers <= n * 32
