"""Identities of sum-normalised attention: what is left of attention without a softmax."""

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.attention import Attention, SumNormalised
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, seeds, stream

FUNCTIONS = {"square": lambda s: s * s, "relu": lambda s: max(s, 0.0), "identity": lambda s: s}


def layer(function: str, seed: int = 0) -> Layer:
    config = Attention(4, 2, d_head=4, mixer=SumNormalised(function))  # type: ignore[arg-type]
    return Layer(randomise(config.build(D_MODEL, 16, 0, "").double().eval(), seed))


@pytest.mark.parametrize("function", FUNCTIONS)
@given(seeds)
def test_weights_are_those_of_a_loop(function: str, seed: int) -> None:
    x, f = stream(1, 5, seed), FUNCTIONS[function]
    found = layer(function, seed).read(x, "query", "key", "pattern")
    for h in range(4):
        for i in range(5):
            row = [f(float(found["query"][0, h, i] @ found["key"][0, h // 2, j]) / 2) for j in range(i + 1)]
            total = sum(abs(weight) for weight in row)
            expected = [weight / total if total else 1 / (i + 1) for weight in row] + [0.0] * (4 - i)
            close(found["pattern"][0, h, i], torch.tensor(expected, dtype=torch.float64))


@given(seeds)
def test_the_pattern_of_the_score_itself_has_the_rank_of_a_head(seed: int) -> None:
    x = stream(1, 9, seed)
    context = make_context(1, 9, x.device, is_causal=False)
    ranks = {
        function: torch.linalg.matrix_rank(
            layer(function, seed).read(x, "pattern", context=context)["pattern"], rtol=1e-9
        )
        for function in ("identity", "square")
    }
    assert (ranks["identity"] <= 4).all()
    # squares of products of four numbers are products of ten
    assert (ranks["square"] > 4).all()


@pytest.mark.parametrize("function", FUNCTIONS)
@given(seeds, st.floats(0.01, 100.0))
def test_no_scale_matters(function: str, seed: int, factor: float) -> None:
    x, attention = stream(2, 5, seed), layer(function, seed)
    close(attention(x, tape=attention.tape(edit=[("query", lambda q: q * factor)])), attention(x))


def test_a_square_does_not_tell_a_score_from_its_opposite_and_the_score_itself_turns_around() -> None:
    x = stream(2, 5)
    for function, sign in (("square", 1), ("identity", -1)):
        attention = layer(function)
        turned = attention(x, tape=attention.tape(edit=[("query", lambda q: -q)]))
        close(turned, sign * attention(x))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_row_without_weights_is_shared_evenly_and_has_finite_gradients(function: str) -> None:
    x, attention = stream(2, 5).requires_grad_(), layer(function)
    tape = attention.tape("pattern", edit=[("query", lambda q: q * 0)], grad=True)
    out = attention(x, tape=tape)
    even = torch.ones(5, 5, dtype=torch.float64).tril()
    close(tape.values["pattern"], (even / even.sum(-1, keepdim=True)).expand(2, 4, 5, 5))
    assert torch.autograd.grad(out.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_traits_are_those_of_the_setting(function: str) -> None:
    attention = layer(function)
    pattern = attention.read(stream(2, 9), "pattern")["pattern"]
    assert attention.mixer.traits.rows_sum_to_one == (function != "identity")
    assert bool((pattern >= 0).all()) == (function != "identity")
    close(pattern.abs().sum(-1), torch.ones(2, 4, 9, dtype=torch.float64))
