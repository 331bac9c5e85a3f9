"""Soft committees: errors from overlaps, free energies and their slopes, and how much data tells units apart."""

import math
from itertools import permutations

import pytest
import torch
from torch import Tensor

from glassformer.dynamics import committee_error, committee_overlaps, committee_state, specialisation
from glassformer.errors import ShapeMismatch, WrongArgument
from glassformer.models import Mlp
from glassformer.studies.hidden_unit_symmetry import committee
from glassformer.testing import close

INPUTS = 6
TEACHER = math.sqrt(INPUTS) * torch.eye(2, INPUTS, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("activation", ["gelu", "tanh", "none"])
def test_the_error_is_that_of_a_layer_on_many_examples(activation: str) -> None:
    layer = committee(INPUTS, Mlp(2, activation=activation, bias=False))  # type: ignore[arg-type]
    student, x = normal(2, INPUTS), normal(100_000, INPUTS, seed=1)
    errors = (layer.outputs(student.flatten(), x) - layer.outputs(TEACHER.flatten(), x)).square() / 2
    found = committee_error(committee_overlaps(student, TEACHER), activation)  # type: ignore[arg-type]
    assert abs(float(errors.mean() - found)) < 4 * float(errors.std()) / math.sqrt(len(x))
    if activation == "none":
        close(found, (student - TEACHER).sum(0).square().sum() / (4 * INPUTS))


def test_a_student_that_is_its_teacher_has_no_error_whichever_unit_is_which() -> None:
    for order in permutations(range(2)):
        assert abs(float(committee_error(committee_overlaps(TEACHER[list(order)], TEACHER)))) < 1e-12
    student = normal(2, INPUTS)
    close(committee_error(committee_overlaps(student.flip(0), TEACHER)),
          committee_error(committee_overlaps(student, TEACHER)))  # fmt: skip


def test_the_order_is_one_for_the_teacher_and_zero_for_units_that_are_alike() -> None:
    k = 3
    teacher = 2 * torch.eye(k, 4, dtype=torch.float64)
    for order in permutations(range(k)):
        close(specialisation(committee_overlaps(teacher[list(order)], teacher).shared), torch.tensor(1.0).double())
    alike = normal(5, 1, 4).expand(-1, k, -1)
    # the best match of units to be had has no more than any other
    close(specialisation(committee_overlaps(alike, teacher).shared) + 1, torch.ones(5, dtype=torch.float64))
    some = normal(5, k, 4)
    found = specialisation(committee_overlaps(some, teacher).shared)
    assert (found >= 0).all()
    close(specialisation(committee_overlaps(some[:, [1, 2, 0]], teacher).shared), found)


@pytest.mark.full
def test_without_data_weights_have_their_prior_and_with_many_each_has_half_a_temperature() -> None:
    prior = committee_state(0.0)
    close(prior.overlaps.own, torch.eye(2, dtype=torch.float64), 1e-8)
    assert prior.overlaps.shared.abs().max() < 1e-8
    # of two units 2 N weights find their place; of units that add without a bend, N
    assert 300 * committee_state(300.0).error == pytest.approx(1, abs=0.02)
    assert 300 * committee_state(300.0, "none").error == pytest.approx(0.5, abs=0.02)


def test_units_become_unlike_beyond_a_threshold_and_then_that_is_better() -> None:
    few, many, held = committee_state(12.0), committee_state(20.0), committee_state(20.0, alike=True)
    assert few.order < 1e-6 and held.order == 0
    assert 0.4 < many.order < 0.6 and many.free_energy < held.free_energy - 0.01 and many.error < held.error
    assert committee_state(20.0, "none").order < 1e-6


@pytest.mark.full
def test_the_error_is_the_slope_of_the_free_energy_in_the_amount_of_data() -> None:
    less, more = (committee_state(30 + sign * 1e-3).free_energy for sign in (-1, 1))
    assert (more - less) / 2e-3 == pytest.approx(committee_state(30.0).error, rel=1e-5)


def test_what_is_no_committee_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="6 inputs and a teacher of 5"):
        committee_overlaps(normal(2, 6), normal(2, 5))
    with pytest.raises(ShapeMismatch, match="found 2 and 3"):
        specialisation(normal(2, 3))
    with pytest.raises(ShapeMismatch, match="as many units"):
        committee_error(committee_overlaps(normal(2, 4), normal(3, 4)))
    with pytest.raises(ShapeMismatch, match="n_units=1"):
        committee_state(1.0, n_units=1)
    with pytest.raises(WrongArgument, match="activation= takes"):
        committee_state(1.0, "relu")  # type: ignore[arg-type]
