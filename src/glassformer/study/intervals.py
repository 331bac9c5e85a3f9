"""Intervals of 95 %: of a mean over seeds, of a count of seeds, and of where one more seed would lie."""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import cache

LEVEL = 0.95
# Student's t, both sides 95 %, by degrees of freedom; beyond the last one by the expansion of the normal quantile
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean of some numbers, one per seed, and the ends of its 95 % interval by Student's t; NaN where is none."""
    if not values:
        return math.nan, math.nan, math.nan
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = _t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


@cache
def count_interval(count: int, of: int) -> tuple[float, float]:
    """The ends of the 95 % interval of a share of which `count` of so many draws were found.

    It is exact, after Clopper and Pearson 1934, and so no shorter than it says: its ends are the shares with which as
    many or more, and as many or fewer, are found in one of forty cases.
    """
    tail = (1 - LEVEL) / 2
    low = 0.0 if count == 0 else _bisected(lambda share: 1 - _at_most(count - 1, of, share) - tail)
    high = 1.0 if count == of else _bisected(lambda share: tail - _at_most(count, of, share))
    return low, high


def _at_most(count: int, of: int, share: float) -> float:
    """Return the probability of at most `count` of so many draws, each with a share of probability."""
    return math.fsum(math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(count + 1))


def _bisected(rising: Callable[[float], float]) -> float:
    """Return where a rising function crosses zero between 0 and 1, to the last digit."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return middle


def next_draw(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of where one more draw lies in 95 % of cases, by Student's t; two numbers at least are needed."""
    mean, n = statistics.fmean(values), len(values)
    half = _t(n - 1) * statistics.stdev(values) * math.sqrt(1 + 1 / n)
    return mean - half, mean + half


def _t(freedom: int) -> float:
    if freedom <= len(_T):
        return _T[freedom - 1]
    # Fisher's expansion around the normal quantile, good to four digits from here on
    z = statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
