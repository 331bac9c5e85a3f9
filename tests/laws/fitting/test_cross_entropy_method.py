"""Laws of the cross-entropy method: it finds what is known, draws by its seed alone, and breaks ties as asked."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.errors import ConfigError, TrainingDiverged
from glassformer.fitting import Search, SearchStep, cross_entropy_method

INSIDE = torch.tensor([0.2, 0.7, 0.45, 0.9], dtype=torch.float64)
# two coordinates lie beyond the box, so the best there is lies on its bounds
BEYOND = torch.tensor([0.3, 1.8, -0.5, 0.6], dtype=torch.float64)


def search(target: Tensor, **settings: Any) -> Search:
    return cross_entropy_method(lambda at: -float((at - target).square().sum()), 4, **settings)


@pytest.mark.parametrize("target", [INSIDE, BEYOND])
def test_the_largest_value_of_a_separable_quadratic_is_found_inside_the_box_and_on_its_bounds(target: Tensor) -> None:
    known = target.clamp(0, 1)
    for seed in range(2):
        # an elite of six narrows before it is there, one of thirty does not
        assert search(target, seed=seed).value > -1.1 * float((known - target).square().sum()) - 0.01
        found = search(target, population=160, seed=seed)
        assert found.value == -float((found.best - target).square().sum())
        assert (found.best - known).abs().max() < 1e-6
        # and a bound is met exactly
        for bound in (0, 1):
            assert torch.equal(found.best[known == bound], known[known == bound])


def test_a_search_is_a_function_of_its_seed_and_reports_each_step() -> None:
    told: list[SearchStep] = []
    one, two, other = (search(INSIDE, iterations=5, seed=seed, report=told.append) for seed in (4, 4, 5))
    assert torch.equal(one.best, two.best) and not torch.equal(one.best, other.best)
    assert [step.step for step in told] == [1, 2, 3, 4, 5] * 3
    assert tuple(told[:5]) == one.steps
    assert torch.equal(one.steps[-1].best, one.best) and one.steps[-1].value == one.value


def test_members_lie_in_the_box_and_the_best_so_far_is_valued_again_as_the_first() -> None:
    seen: list[Tensor] = []

    def objective(at: Tensor) -> float:
        seen.append(at)
        return float(at.sum())

    found = cross_entropy_method(objective, 3, iterations=4, population=8, low=-1.0, high=0.5, mean=0.0, std=2.0)
    members = torch.stack(seen).unflatten(0, (4, 8))
    assert float(members.min()) == -1.0 and float(members.max()) == 0.5
    for step, after in zip(found.steps, members[1:]):
        assert torch.equal(step.best, after[0])
    # a tenth of eight is less than one member, and one there is
    alone = cross_entropy_method(objective, 3, iterations=1, population=8, elite=0.1)
    assert torch.equal(alone.steps[0].mean, alone.best) and not alone.steps[0].std.any()


def test_each_distribution_has_the_mean_and_the_deviation_of_a_fifth_of_the_members() -> None:
    seen: list[Tensor] = []

    def objective(at: Tensor) -> float:
        seen.append(at)
        return -float(at.square().sum())

    found = cross_entropy_method(objective, 2, iterations=1)
    best = torch.stack(sorted(seen, key=lambda at: float(at.square().sum()))[:6])
    assert len(seen) == 32 and torch.allclose(found.steps[0].mean, best.mean(0), rtol=0, atol=1e-15)
    assert torch.allclose(found.steps[0].std, best.std(0, correction=0), rtol=0, atol=1e-15)
    # as many things are mixed equally in the beginning: the mean of many members lies there
    seen.clear()
    cross_entropy_method(objective, 2, iterations=1, population=4000, std=0.1)
    assert (torch.stack(seen).mean(0) - 0.5).abs().max() < 0.01


def test_members_of_equal_value_are_ordered_by_the_second_objective_which_others_are_not_asked() -> None:
    asked: list[float] = []

    def right(at: Tensor) -> float:
        # a coarse reward, as a share of few prompts is: all of the upper half is as good
        return float(at[0] > 0.5)

    def likely(at: Tensor) -> float:
        asked.append(float(at[0]))
        return -abs(float(at[0]) - 0.8)

    found = cross_entropy_method(right, 1, tie_break=likely, iterations=30)
    assert float(found.best) == pytest.approx(0.8, abs=1e-3) and found.value == 1
    assert found.steps[-1].tie_break == pytest.approx(0, abs=1e-3)
    asked.clear()
    found = cross_entropy_method(lambda at: float(at.sum()), 2, tie_break=likely, iterations=1, std=0.01)
    assert not asked and found.steps[0].tie_break is None


def test_a_value_that_was_luck_does_not_last() -> None:
    calls: list[int] = []

    def objective(at: Tensor) -> float:
        calls.append(1)
        # the fourth member of the first step is praised beyond all measure, once
        return 100.0 if len(calls) == 4 else -float(at.square().sum())

    found = cross_entropy_method(objective, 2, iterations=2)
    assert found.steps[0].value == 100 and found.steps[1].value < 0


def test_a_box_without_the_start_and_a_value_that_is_no_number_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"begins at 0\.5, which has to be within low=0 and high=0\.2"):
        cross_entropy_method(lambda at: 0.0, 2, high=0.2)
    with pytest.raises(TrainingDiverged, match=r"gave NaN in step 1 at \[.*minus infinity"):
        cross_entropy_method(lambda at: float("nan"), 2)
