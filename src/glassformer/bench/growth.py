"""How a cost grows with length: the exponent of a power law, and how far it is from one.

    cost = c * length^exponent        1: linear, 2: quadratic

The exponent is the slope of a least-squares line through the logarithms. Its spread is not that of noise, which a
doubled length outweighs, but of what is no power law: between neighbouring lengths the exponent runs from the least to
the largest. Where a fixed cost weighs at short lengths, it rises along them.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import linear_regression
from typing import NamedTuple


class Growth(NamedTuple):
    """An exponent, and the least and the largest one between neighbouring lengths; NaN with fewer than two."""

    exponent: float
    low: float
    high: float


def growth_exponent(lengths: Sequence[int | float], costs: Sequence[float]) -> Growth:
    """Growth exponent: how costs grow with length.

    Args:
        lengths: In ascending order.
        costs: One for each; what is NaN or not positive was not measured, and is left out.
    """
    points = [(math.log(length), math.log(cost)) for length, cost in zip(lengths, costs, strict=True) if cost > 0]
    if len(points) < 2:
        return Growth(math.nan, math.nan, math.nan)
    between = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points)]
    slope = linear_regression([x for x, _ in points], [y for _, y in points]).slope
    return Growth(slope, min(between), max(between))
