"""Attention on an ellipsoid: what its equations conserve, four theorems, and what happens without what they ask."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.attention import Attention, Softmax
from glassformer.dynamics import (
    EllipsoidAttention,
    EllipsoidHead,
    ParticleFlow,
    check_theorem,
    hypotheses,
    in_one_half,
    on_sphere,
)
from glassformer.errors import ShapeMismatch, WrongArgument
from glassformer.testing import close
from glassformer.testing.layers import Layer

ONE = torch.eye(3, dtype=torch.float64)
X = on_sphere(6, 3)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positive(seed: int = 0) -> Tensor:
    drawn = normal(3, 3, seed=seed)
    return drawn @ drawn.mT / 3 + 0.3 * ONE


STILL, SWINGING = normal(3, 3, seed=1), normal(3, 3, seed=2)


def moving(time: float) -> Tensor:
    return STILL + math.sin(time) * SWINGING


HALF = torch.cat((X[:, :2], X[:, 2:].abs() + 0.1), 1)
LARGEST = torch.diag(torch.tensor([0.3, 0.8, 1.5], dtype=torch.float64))


def test_tokens_stay_on_the_ellipsoid_and_the_drift_is_the_slope_of_a_layer() -> None:
    system = EllipsoidAttention((EllipsoidHead(moving, normal(3, 3)), EllipsoidHead(positive())), positive(3))
    x = system.onto(X)
    close((x @ positive(3) * x).sum(-1), torch.ones(6, dtype=torch.float64))
    close((x @ positive(3) * system.drift(0.7, x)).sum(-1) + 1, torch.ones(6, dtype=torch.float64))
    # the tangent map of the projection
    _, slope = torch.autograd.functional.jvp(system.onto, x, system.pull(0.7, x))
    close(system.drift(0.7, x), torch.as_tensor(slope))
    close(system.layer(x, 0.7), system.onto(x + system.pull(0.7, x)))


def test_with_all_matrices_one_it_is_the_flow_of_particles_and_another_metric_is_another_basis() -> None:
    close(EllipsoidAttention((EllipsoidHead(ONE),)).drift(0.0, X), ParticleFlow(1 / math.sqrt(3)).drift(X))
    metric = positive(3)
    values, vectors = torch.linalg.eigh(metric)
    root, back = (vectors * values**power @ vectors.mT for power in (0.5, -0.5))
    ours = EllipsoidAttention((EllipsoidHead(moving(1.0)),), metric)
    round_one = EllipsoidAttention((EllipsoidHead(back @ moving(1.0) @ back),))
    close(ours.drift(0.0, ours.onto(X)) @ root, round_one.drift(0.0, ours.onto(X) @ root))


def test_what_heads_write_is_what_a_causal_layer_of_ours_does() -> None:
    layer = Attention(1, d_head=3, mixer=Softmax()).build(3, 8, 0, "").double().eval()
    read = Layer(layer).read(X[None], "pattern")
    # scores of one token with itself alone give the product of both matrices, up to sqrt(d)
    scores = Layer(layer).read(torch.cat((ONE, ONE))[None], "query", "key")
    system = EllipsoidAttention((EllipsoidHead(scores["query"][0, 0, :3] @ scores["key"][0, 0, :3].mT),), causal=True)
    close(system.pull(0.0, X), read["pattern"][0, 0] @ X)


def test_a_potential_falls_to_consensus_under_one_constant_positive_head() -> None:
    scores = positive()
    found = check_theorem("3.2", EllipsoidAttention((EllipsoidHead(scores),), scores), X, until=40.0)
    assert found.applies and found.reached()
    assert found.potential is not None and (found.potential.diff() < 1e-9).all()
    # on x . P x = 1 every product is at most one
    assert float(found.potential[-1]) == pytest.approx(-36 * math.exp(1 / math.sqrt(3)))


def test_tokens_of_one_half_come_to_consensus_whatever_moves_the_scores() -> None:
    system = EllipsoidAttention((EllipsoidHead(moving), EllipsoidHead(lambda t: math.cos(2 * t) * SWINGING)))
    found = check_theorem("4.1", system, HALF, until=30.0)
    assert found.applies and found.reached()


def test_under_a_causal_mask_all_come_to_where_the_first_is() -> None:
    found = check_theorem("5.1", EllipsoidAttention((EllipsoidHead(moving),), causal=True), HALF, until=40.0)
    assert found.applies and found.reached(1e-3)
    open_mask = check_theorem("5.1", EllipsoidAttention((EllipsoidHead(moving),)), HALF, until=40.0)
    assert not open_mask.applies and open_mask.reached() is None
    # they do agree, and elsewhere
    assert open_mask.distance[-1] > 0.1


def test_a_value_matrix_draws_all_to_its_largest_eigenvector_if_that_is_above_zero() -> None:
    for side in (1, -1):
        start = HALF * torch.tensor([1, 1, side])
        found = check_theorem(
            "6.1", EllipsoidAttention((EllipsoidHead(moving, LARGEST),), causal=True), start, until=40.0
        )
        assert found.applies and found.reached()
    away = check_theorem("6.1", EllipsoidAttention((EllipsoidHead(moving, -LARGEST),), causal=True), HALF, until=40.0)
    assert away.hypotheses["U constant, symmetric, its largest eigenvalue simple and above zero"] is False
    assert away.distance[-1] > 0.5


def test_opposite_tokens_rest() -> None:
    pair = torch.stack((X[0], -X[0]))
    rests: list[tuple[Any, Any]] = [("3.2", ONE), ("4.1", moving)]
    for theorem, scores in rests:
        found = check_theorem(theorem, EllipsoidAttention((EllipsoidHead(scores),)), pair, until=1.0)
        assert not found.applies
        close(found.distance, torch.full_like(found.distance, 2.0))


def test_a_theorem_says_which_of_its_hypotheses_a_system_lacks() -> None:
    def lacking(theorem, system, x=HALF):
        return [name for name, so in hypotheses(theorem, system, system.onto(x)).items() if not so]

    one, two = (EllipsoidHead(ONE),), (EllipsoidHead(ONE), EllipsoidHead(ONE, LARGEST))
    assert lacking("3.2", EllipsoidAttention(one)) == []
    assert lacking("3.2", EllipsoidAttention(two, causal=True)) == ["full mask", "one head", "U = 1"]
    assert lacking("3.2", EllipsoidAttention((EllipsoidHead(moving),))) == [
        "P constant", "P symmetric and positive definite", "W = P",
    ]  # fmt: skip
    assert lacking("3.2", EllipsoidAttention(one, positive())) == ["W = P"]
    around = torch.cat((X, -X))
    assert lacking("4.1", EllipsoidAttention(one), around) == ["all tokens in one open half"]
    assert lacking("5.1", EllipsoidAttention(one, causal=True), around) == ["no token opposite the first"]
    assert lacking("6.1", EllipsoidAttention(one, causal=True)) == [
        "U constant, symmetric, its largest eigenvalue simple and above zero",
        "all tokens on one side of its eigenvector",
    ]
    head = (EllipsoidHead(ONE, LARGEST),)
    assert lacking("6.1", EllipsoidAttention(head, causal=True), X) == ["all tokens on one side of its eigenvector"]
    assert in_one_half(HALF) and not in_one_half(around)


def test_what_is_no_ellipsoid_or_theorem_is_refused() -> None:
    with pytest.raises(WrongArgument, match="positive definite"):
        EllipsoidAttention((EllipsoidHead(ONE),), -ONE)
    with pytest.raises(WrongArgument, match="one entry or more"):
        EllipsoidAttention(())
    with pytest.raises(WrongArgument, match="of one head; found 2"):
        EllipsoidAttention((EllipsoidHead(ONE), EllipsoidHead(ONE))).potential(X)
    with pytest.raises(ShapeMismatch, match=r"width 4 for a matrix of shape \(3, 3\)"):
        check_theorem("5.1", EllipsoidAttention((EllipsoidHead(moving),), causal=True), on_sphere(6, 4))
    wide = torch.eye(4, dtype=torch.float64)
    for system in (
        EllipsoidAttention((EllipsoidHead(ONE),), wide),
        EllipsoidAttention((EllipsoidHead(wide),)),
        EllipsoidAttention((EllipsoidHead(ONE, wide),)),
    ):
        with pytest.raises(ShapeMismatch, match="must be 3 by 3"):
            hypotheses("3.2", system, X)
        with pytest.raises(ShapeMismatch, match="must be 3 by 3"):
            system.drift(0.0, X)
    with pytest.raises(ShapeMismatch, match="must be 4 by 4"):
        EllipsoidAttention((EllipsoidHead(ONE),)).potential(on_sphere(6, 4))
    with pytest.raises(WrongArgument, match="theorem= takes"):
        check_theorem("7.1", EllipsoidAttention((EllipsoidHead(ONE),)), X)  # type: ignore[arg-type]
