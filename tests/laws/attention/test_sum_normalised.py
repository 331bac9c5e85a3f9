"""Identities of sum-normalised attention: what is left of attention without a softmax."""

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.attention import Attention, Context, Mask, SumNormalised, causal, documents, padding
from glassformer.attention.kernels import summed as kernel
from glassformer.models.stack import make_context
from glassformer.testing import close
from glassformer.testing.largest import Largest
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


MASKS = {
    "causal": causal(),
    "both ways": Mask(),
    "padded": causal() & padding(torch.tensor([7, 13])),
    "nothing to see": padding(torch.tensor([0, 13])),
    "documents": causal() & documents(torch.arange(13)[None] // 5),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("size", [None, 3])
def test_some_queries_at_a_time_give_what_the_pattern_gives(
    mask: str, function: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without weights by the formula among them: one head's queries are zero."""
    monkeypatch.setattr(kernel, "MOST", 4)
    config = Attention(4, 2, d_head=4, mixer=SumNormalised(function, size))  # type: ignore[arg-type]
    attention = Layer(randomise(config.build(D_MODEL, 16, 0, "").double()))
    x, positions = stream(2, 13).requires_grad_(), torch.arange(13)[None]
    context, found = Context(MASKS[mask], positions, positions), []
    for wanted in ((), ("pattern",)):
        zero = [("query", lambda q: q * torch.tensor([1.0, 0.0, 1.0, 1.0]).double()[:, None, None])]
        tape = attention.tape("out", *wanted, edit=zero, grad=True)
        attention(x, context, tape=tape)
        out = tape.values["out"]
        found.append((out, *torch.autograd.grad(out.pow(3).sum(), [x, *attention.module.parameters()])))
    for one, other in zip(*found, strict=True):
        close(one, other)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_long_text_makes_nothing_for_each_pair_of_positions(function: str) -> None:
    n = 4096
    config = Attention(1, 1, d_head=4, mixer=SumNormalised(function))  # type: ignore[arg-type]
    attention, x = Layer(config.build(D_MODEL, n, 0, "").float()), stream(1, n).float().requires_grad_()
    with Largest() as seen:
        attention(x).sum().backward()
    assert seen.numbers <= n * kernel.MOST
