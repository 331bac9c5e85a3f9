"""The cross-entropy method: a box is searched by drawing from a normal distribution that is refitted to the best drawn.

    members ~ N(mean, std^2), clamped to [low, high];    mean, std <- those of the elite, the best members of the step

From the second step on, member 0 is the best of the step before, valued anew: a value that was luck does not last.
Members of equal value are ordered by a second objective, if there is one. What fits a step forgets those before: there
is no moving average.

Source: Rubinstein 1999; de Boer et al. 2005, "A Tutorial on the Cross-Entropy Method", section 3; as it mixes experts:
Sun, Cetin and Tang 2025, "Transformer^2", section 3.2 and the published code.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, Kinds, Positive, PositiveShare, checked
from glassformer.config import require
from glassformer.errors import TrainingDiverged

Objective = Callable[[Float[Tensor, " dimension"]], float]


@dataclass(frozen=True, eq=False)
class SearchStep:
    """A step of the cross-entropy method.

    Args:
        step: Its number, counted from 1.
        best: The best member.
        value: Its value in this step.
        tie_break: Its value by the second objective; None where no other member had the same value.
        mean: What the distribution is refitted to, by coordinate,
        std: and how far it reaches around that.
    """

    step: int
    best: Float[Tensor, " dimension"]
    value: float
    tie_break: float | None
    mean: Float[Tensor, " dimension"]
    std: Float[Tensor, " dimension"]


@dataclass(frozen=True, eq=False)
class Search:
    """What the cross-entropy method found.

    Args:
        best: The best member of the last step, float64.
        value: Its value in that step.
        steps: All steps.
    """

    best: Float[Tensor, " dimension"]
    value: float
    steps: tuple[SearchStep, ...]


@checked
def cross_entropy_method(
    objective: Objective,
    dimension: Kinds,
    *,
    tie_break: Objective | None = None,
    iterations: Count = 50,
    population: Count = 32,
    elite: PositiveShare = 0.2,
    low: float = 0.0,
    high: float = 1.0,
    mean: float | None = None,
    std: Positive = 0.5,
    seed: int = 0,
    report: Callable[[SearchStep], None] | None = None,
) -> Search:
    """Search a box for the point of largest value by the cross-entropy method.

    It needs no gradient. The same seed and objective give the same search. An elite of six settles before it is there,
    a tenth off at times; one of thirty finds the maximum of a quadratic to a millionth.

    Args:
        objective: Value of a point, float64 `dimension`; the larger, the better. May be minus infinity.
        dimension: How many coordinates a point has.
        tie_break: A second objective, asked only of members that are as good as another one.
        iterations: How many steps.
        population: Members of a step.
        elite: Share of the members that the next distribution is fitted to, rounded down, one at least.
        low: The least a coordinate may be,
        high: and the most.
        mean: Where each coordinate begins; `1 / dimension`, which mixes as many things equally, by default.
        std: Standard deviation of the first members, before they are clamped.
        seed: Source of all draws.
        report: Called after each step.

    Returns:
        The best point of the last step, and every step.

    Raises:
        ConfigError: The box is empty, or the first mean lies outside of it.
        TrainingDiverged: An objective gave NaN.

    Example:
        cross_entropy_method(lambda at: -float((at - 0.3).square().sum()), 4, seed=1).best
    """
    start = 1 / dimension if mean is None else mean
    require(
        -math.inf < low <= start <= high < math.inf,
        f"cross_entropy_method: the search begins at {start:g}, which has to be within low={low:g} and high={high:g}.",
    )
    random = torch.Generator().manual_seed(seed)
    centre, spread = (torch.full((dimension,), value, dtype=torch.float64) for value in (start, std))
    n_elite, steps = max(1, int(elite * population)), list[SearchStep]()
    for number in range(1, iterations + 1):
        drawn = torch.randn(population, dimension, generator=random, dtype=torch.float64)
        members = (centre + spread * drawn).clamp(low, high)
        if steps:
            members[0] = steps[-1].best
        values = [_value(objective, member, number) for member in members]
        # what is as good as another one is ordered by the second objective
        shared = Counter(values)
        second = [
            _value(tie_break, member, number) if tie_break is not None and shared[value] > 1 else None
            for member, value in zip(members, values)
        ]
        ranked = sorted(range(population), key=lambda i: (values[i], second[i] or 0.0), reverse=True)
        chosen, first = members[ranked[:n_elite]], ranked[0]
        centre, spread = chosen.mean(0), chosen.std(0, correction=0)
        steps.append(SearchStep(number, members[first].clone(), values[first], second[first], centre, spread))
        if report is not None:
            report(steps[-1])
    return Search(steps[-1].best, steps[-1].value, tuple(steps))


def _value(objective: Objective, member: Tensor, step: int) -> float:
    value = float(objective(member.clone()))
    if math.isnan(value):
        raise TrainingDiverged(
            f"cross_entropy_method: an objective gave NaN in step {step} at {[round(x, 4) for x in member.tolist()]}. "
            "Return minus infinity for a point that is not to be taken."
        )
    return value
