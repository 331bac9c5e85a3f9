"""Identities of linear concat attention: the query drops out, and causal attention is a running mean."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.attention import Alibi, Attention, Concat, ConcatLinear, LearnedTemperature, LogN, MixerConfig
from glassformer.attention.kernels.running_mean import running_mean
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, seeds, stream
from one_pass import in_one_pass


def layer(mixer: MixerConfig, seed: int = 0, **kwargs: object) -> Layer:
    config = Attention(4, 2, d_head=4, mixer=mixer, **kwargs)  # type: ignore[arg-type]
    return Layer(randomise(config.build(D_MODEL, 256, 0, "").double().eval(), seed))


def doubled_query(one: Layer, x: Tensor) -> Tensor:
    return one(x, tape=one.tape(edit=[("query", lambda q: -2 * q + 1)]))


@given(seeds)
def test_rows_are_alike_where_all_queries_see_all_keys(seed: int) -> None:
    x, attention = stream(2, 5, seed), layer(ConcatLinear(), seed)
    context = make_context(2, 5, x.device, is_causal=False)
    pattern = attention.read(x, "pattern", context=context)["pattern"]
    close(pattern, pattern[..., :1, :].expand_as(pattern))


@given(seeds)
def test_causal_rows_are_the_last_one_cut_off_and_rescaled(seed: int) -> None:
    pattern = layer(ConcatLinear(), seed).read(stream(2, 6, seed), "pattern")["pattern"]
    cut = pattern[..., -1:, :] * torch.ones(6, 6).tril()
    close(pattern, cut / cut.sum(-1, keepdim=True))


@in_one_pass
@pytest.mark.parametrize("positions", [{}, {"positions": Alibi()}])
@pytest.mark.parametrize("mixer", [ConcatLinear(), ConcatLinear(temperature=LogN(4)), ConcatLinear(window=3)])
def test_the_query_has_no_effect_and_its_weights_no_gradient(mixer: MixerConfig, positions: dict) -> None:
    x, attention = stream(2, 6), layer(mixer, **positions)
    close(doubled_query(attention, x), attention(x))
    for read in ((), ("pattern",)):
        out = attention(x, tape=attention.tape(*read))
        gradient = torch.autograd.grad(out.pow(3).sum(), attention.mixer.of_query, allow_unused=True)[0]
        # rounding, of gradients that cancel within a row
        assert gradient is None or float(gradient.abs().max()) <= 1e-13 * float(out.detach().abs().max() ** 3)


def test_on_the_quick_route_the_gradient_is_zero_exactly() -> None:
    x, attention = stream(2, 6), layer(ConcatLinear())
    out = attention(x).pow(3).sum()
    assert torch.autograd.grad(out, attention.mixer.of_query, allow_unused=True)[0] is None


@pytest.mark.parametrize("mixer", [Concat(), ConcatLinear(sinks=True), ConcatLinear(cap=0.5)])
def test_a_tanh_or_a_sink_lets_the_query_back_in(mixer: MixerConfig) -> None:
    x, attention = stream(2, 6), layer(mixer)
    assert float((doubled_query(attention, x) - attention(x)).detach().abs().max()) > 1e-3


@given(seeds, st.sampled_from([1, 31, 32, 33, 64, 100]), st.sampled_from([1.0, 40.0, 2000.0]))
def test_a_running_mean_is_the_recurrence(seed: int, n: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = size * torch.randn(2, 3, n, generator=generator, dtype=torch.float64)
    v = torch.randn(2, 3, n, 4, generator=generator, dtype=torch.float64)
    found, total, mean = running_mean(scores, v), torch.full((2, 3), -torch.inf).double(), torch.zeros(2, 3, 4).double()
    for t in range(n):
        total = torch.logaddexp(total, scores[..., t])
        share = (scores[..., t] - total).exp()[..., None]
        mean = mean + share * (v[..., t, :] - mean)
        close(found[..., t, :], mean)


def test_gradients_of_a_running_mean_are_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 40, generator=generator, dtype=torch.float64).requires_grad_()
    v = torch.randn(1, 40, 2, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(running_mean, (scores, v), fast_mode=True)


@pytest.mark.parametrize("mixer", [ConcatLinear(), ConcatLinear(temperature=LearnedTemperature(3.0))])
def test_a_text_of_several_chunks_is_the_same_by_both_routes(mixer: MixerConfig) -> None:
    x, attention = stream(1, 70), layer(mixer)
    close(attention(x), attention(x, tape=attention.tape("pattern")))
