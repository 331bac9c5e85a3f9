"""Heads as integral operators: layers are them, masses are repetitions, and samples miss by as much as they must."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.attention import (
    Alibi,
    Attention,
    AttentionLayer,
    Context,
    Linear,
    Mask,
    PositionsConfig,
    QueryKeyOnly,
    Rope,
    Smeared,
    Softmax,
)
from glassformer.dynamics import HeadOperator, PlacedTokens, TokenMeasure, sampling_errors, tokens_of
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, WrongArgument
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, stream
from one_pass import in_one_pass


def layer(**slots: Any) -> AttentionLayer:
    return randomise(Attention(4, 2, 4, **slots).build(D_MODEL, 32, 0, "").double().eval())


X = tokens_of(stream(1, 6)[0])
AT = tokens_of(stream(1, 3, 4)[0])


def whole(found: AttentionLayer, tokens: PlacedTokens, *, grad: bool = False) -> Tensor:
    at, of = tokens.positions[None], Layer(found)
    tape = of.tape("z", grad=grad)
    of(tokens.stream[None], Context(Mask(), at, at), tape=tape)
    return tape.values["z"][0]


@in_one_pass
@pytest.mark.parametrize("place", [None, Rope(), QueryKeyOnly()])
@pytest.mark.parametrize("head", [0, 3])
def test_a_layer_without_a_mask_is_the_operator_at_the_measure_of_its_text(
    place: PositionsConfig | None, head: int
) -> None:
    found = layer(mixer=Softmax(scale=0.7), **({} if place is None else {"positions": place}))
    operator = HeadOperator(found, head)
    close(operator.self_attention(X), whole(found, X)[head])
    # slopes too
    weights = torch.sin(torch.arange(24.0)).double().view(6, 4)
    x = X.stream.clone().requires_grad_()
    made = operator.self_attention(X._replace(stream=x)), whole(found, X._replace(stream=x), grad=True)[head]
    ours, theirs = (torch.autograd.grad((z * weights).sum(), x)[0] for z in made)
    close(ours, theirs)


def test_the_equation_is_what_is_computed() -> None:
    operator, mass = HeadOperator(layer(positions=Rope()), 1), torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 1.0]).double()
    measure = TokenMeasure(X, mass)
    kernel, values = operator.kernel(AT, X), operator.values(X)
    normaliser = kernel @ measure.shares
    close(operator.log_normaliser(AT, measure).exp(), normaliser)
    close(operator(AT, measure), (kernel * measure.shares) @ values / normaliser[:, None])
    close(operator.weights(AT, measure).sum(-1), torch.ones(3, dtype=torch.float64))
    close(operator(AT, TokenMeasure(X, 5 * mass)), operator(AT, measure))
    close(operator(AT, TokenMeasure(X)), operator(AT, TokenMeasure(X, torch.ones_like(mass))))


def test_masses_are_how_often_a_layer_reads_its_tokens_in_any_order() -> None:
    found, times = layer(positions=Rope()), torch.tensor([1, 3, 2, 1, 1, 2])
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    which = torch.arange(6).repeat_interleave(times)[order]
    repeated = PlacedTokens(X.stream[which], X.positions[which])
    operator = HeadOperator(found, 2)
    close(whole(found, repeated)[2], operator(X, TokenMeasure(X, times.double()))[which])


def test_a_measure_of_two_parts_mixes_them_by_their_normalisers() -> None:
    operator = HeadOperator(layer(), 0)
    parts = [TokenMeasure(PlacedTokens(X.stream[half], X.positions[half])) for half in (slice(0, 3), slice(3, 6))]
    sizes = torch.stack([operator.log_normaliser(AT, part).exp() for part in parts])
    mixed = sum(size[:, None] * operator(AT, part) for size, part in zip(sizes, parts))
    close(torch.as_tensor(mixed) / sizes.sum(0)[:, None], operator(AT, TokenMeasure(X)))


def test_weighted_errors_of_all_samples_have_the_variance_that_the_integral_gives() -> None:
    operator = HeadOperator(layer(positions=Rope()), 0)
    three = PlacedTokens(X.stream[:3], X.positions[:3])
    measure = TokenMeasure(three, torch.tensor([0.5, 0.2, 0.3]).double())
    exact = operator(AT, measure)
    for n in (1, 2, 4):
        every = torch.tensor([*itertools.product(range(3), repeat=n)])
        chance = measure.shares[every].prod(-1)
        found, ratio = operator.sampled(AT, measure, every)
        squared = (ratio[..., None] * (found - exact)).square().sum(-1)
        close(n * (chance[:, None] * squared).sum(0), operator.sampling_variance(AT, measure))
        close((chance[:, None] * ratio).sum(0), torch.ones(3, dtype=torch.float64))


def test_samples_come_nearer_by_the_root_of_how_many_they_are() -> None:
    operator, measure = HeadOperator(layer(positions=Rope()), 0), TokenMeasure(X)
    errors = sampling_errors(operator, AT, measure, [64, 1024], draws=400)
    weighted, plain, expected = errors.values
    # 400 draws of three tokens leave some per cent of chance
    assert ((weighted / expected - 1).abs() < 0.15).all()
    assert abs(float(plain[1] / expected[1]) - 1) < 0.15
    assert float(plain[0] / plain[1]) == pytest.approx(4, rel=0.2)
    assert torch.equal(sampling_errors(operator, AT, measure, [64, 1024], draws=400).values, errors.values)


def test_a_head_whose_kernel_is_another_or_none_is_refused() -> None:
    for found, what in (
        (layer(mixer=Linear()), 'mixer "linear"'),
        (layer(mixer=Softmax(window=3)), 'mixer "softmax", as set here'),
        (layer(mixer=Softmax(sinks=True)), 'mixer "softmax", as set here'),
        (layer(positions=Alibi()), 'positions "alibi"'),
        (layer(projection=Smeared()), 'projection "smeared"'),
        (layer(cross=True), "cross-attention"),
    ):
        with pytest.raises(AnalysisUnavailable, match=what):
            HeadOperator(found)
    with pytest.raises(WrongArgument, match="head= takes 0 to 3; found 4"):
        HeadOperator(layer(), 4)
    with pytest.raises(ShapeMismatch, match="width 5"):
        HeadOperator(layer()).self_attention(tokens_of(torch.zeros(2, 5, dtype=torch.float64)))
    with pytest.raises(ShapeMismatch, match="for 6 tokens"):
        TokenMeasure(X, torch.ones(5))
    with pytest.raises(WrongArgument, match="numbers above 0"):
        TokenMeasure(X, torch.zeros(6))
