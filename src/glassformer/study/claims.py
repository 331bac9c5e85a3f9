"""Claims: a sentence of a paper, what is measured for it, and what was expected before it was measured.

    Claim("Softmax saturates without the scale", value("entropy", scale="none") / value("entropy", scale="sqrt"),
          below(0.5))

A quantity gives one number per seed, of runs of that seed. Over seeds that is a mean with an interval (Student's t,
95 %), and the expectation is a range of numbers:

    holds       the whole interval lies in the range
    fails       the whole interval lies outside of it
    undecided   it reaches across an end, there are fewer than two seeds, or a run is missing

Claims are decided one by one; of twenty that hold at 95 %, one may do so by chance.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from glassformer.config import require
from glassformer.errors import AnalysisUnavailable, nearest

Verdict = Literal["holds", "fails", "undecided", "not defined"]
VERDICTS: tuple[Verdict, ...] = ("holds", "fails", "undecided", "not defined")
LEVEL = 0.95
# Student's t, both sides 95 %, by degrees of freedom; beyond the last one by the expansion of the normal quantile
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip


class Missing(Exception):
    """A quantity has no number for a seed: its run is not there, ended in an error, or gave none."""


class NotDefined(Exception):
    """A quantity has no number, for a measure of it is not defined for its case."""


@dataclass(frozen=True)
class Measured:
    """What one run gave, as claims read it.

    Args:
        case: What was varied, by name.
        seed: Of the run.
        measures: Numbers by name.
        undefined: Why a measure is not defined for this case, by name; "*" stands for all of them.
        error: What ended the run, if something did.
    """

    case: Mapping[str, Any]
    seed: int
    measures: Mapping[str, float]
    undefined: Mapping[str, str]
    error: str = ""

    def measure(self, name: str) -> float:
        """Return a measure; raises `Missing` or `NotDefined` if there is none."""
        if self.error:
            raise Missing(f"{_spoken(self.case)}, seed {self.seed}: {self.error}")
        why = self.undefined.get(name, self.undefined.get("*"))
        if why is not None:
            raise NotDefined(f"{name} for {_spoken(self.case)}: {why}")
        if name not in self.measures:
            raise Missing(f'{_spoken(self.case)}, seed {self.seed}: no measure "{name}".{nearest(name, self.measures)}')
        found = self.measures[name]
        if not math.isfinite(found):
            raise Missing(f"{_spoken(self.case)}, seed {self.seed}: {name} is {found}")
        return found


Runs = Sequence[Measured]  # of one seed


@dataclass(frozen=True)
class Quantity:
    """A number of the runs of one seed, and what it is called.

    Args:
        name: As reports say it.
        of: From the runs of one seed to the number; raises `Missing` or `NotDefined`.
        measures: Which measures it takes.
        where: Which cases, one mapping for each it takes.
    """

    name: str
    of: Callable[[Runs], float]
    measures: tuple[str, ...]
    where: tuple[Mapping[str, Any], ...]

    def __sub__(self, other: "Quantity") -> "Quantity":
        return self._with(other, "less", lambda a, b: a - b)

    def __truediv__(self, other: "Quantity") -> "Quantity":
        def ratio(a: float, b: float) -> float:
            if b == 0:
                raise Missing(f"{other.name} is 0")
            return a / b

        return self._with(other, "/", ratio)

    def _with(self, other: "Quantity", sign: str, combined: Callable[[float, float], float]) -> "Quantity":
        def of(runs: Runs) -> float:
            return combined(self.of(runs), other.of(runs))

        measures = tuple(dict.fromkeys((*self.measures, *other.measures)))
        return Quantity(f"{self.name} {sign} {other.name}", of, measures, (*self.where, *other.where))


def value(measure: str, **where: Any) -> Quantity:
    """The measure of the one case that is named; where several are, their mean."""

    def of(runs: Runs) -> float:
        return statistics.fmean(run.measure(measure) for run in _matching(runs, where))

    return Quantity(_called(measure, where), of, (measure,), (where,))


def slope(measure: str, over: str, **where: Any) -> Quantity:
    """The slope of a measure over an axis of the grid, by least squares."""

    def of(runs: Runs) -> float:
        points = list(_along(runs, measure, over, where))
        if len({x for x, _ in points}) < 2:
            raise Missing(f"{over} takes one value only")
        return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope

    return Quantity(f"slope of {_called(measure, where)} over {over}", of, (measure,), (where,))


def growth(measure: str, over: str, **where: Any) -> Quantity:
    """The exponent of a measure that grows as a power of an axis: the slope of logarithms."""

    def of(runs: Runs) -> float:
        points = list(_along(runs, measure, over, where))
        if min(min(point) for point in points) <= 0:
            raise Missing(f"{measure} or {over} is not positive: it has no logarithm")
        logs = [(math.log(x), math.log(y)) for x, y in points]
        return statistics.linear_regression([x for x, _ in logs], [y for _, y in logs]).slope

    return Quantity(f"growth of {_called(measure, where)} with {over}", of, (measure,), (where,))


def least_step(measure: str, over: str, order: Sequence[Any], **where: Any) -> Quantity:
    """The smallest rise of a measure from one value of an axis to the next, in the order given.

    Above 0, the values are in that order.
    """
    require(len(order) > 1, "an order takes two values at least.")

    def of(runs: Runs) -> float:
        found = [value(measure, **where, **{over: at}).of(runs) for at in order]
        return min(later - earlier for earlier, later in pairwise(found))

    said = " < ".join(map(str, order))
    each = tuple({**where, over: at} for at in order)
    return Quantity(f"least step of {_called(measure, where)} along {over} {said}", of, (measure,), each)


@dataclass(frozen=True)
class Expectation:
    """A range of numbers; a side without an end is open.

    Args:
        low: Least.
        high: Largest.
    """

    low: float | int = -math.inf
    high: float | int = math.inf

    def __post_init__(self) -> None:
        require(self.low <= self.high, f"an expectation from {self.low:g} to {self.high:g} holds nothing.")

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"below {_end(self.high)}"
        return f"above {_end(self.low)}" if math.isinf(self.high) else f"from {_end(self.low)} to {_end(self.high)}"

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the ends; None for a side that is open."""
        return {name: None if math.isinf(end) else end for name, end in (("low", self.low), ("high", self.high))}


def _end(number: float | int) -> str:
    return f"{number:g}" if abs(number) >= 1000 else f"{number:.4g}"


def above(least: float | int) -> Expectation:
    """The expectation of a number above `least`."""
    return Expectation(low=least)


def below(most: float | int) -> Expectation:
    """The expectation of a number below `most`."""
    return Expectation(high=most)


def within(distance: float | int, of: float | int) -> Expectation:
    """The expectation of a number that equals `of`, give or take `distance`."""
    return Expectation(of - distance, of + distance)


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper that may turn out wrong.

    Args:
        text: The sentence.
        quantity: What is measured for it.
        expected: What the paper lets one expect, written down before the first full run.
        exact: The quantity is no sample: it is the same in every seed, as counts and algebra are, and has no interval.
    """

    text: str
    quantity: Quantity
    expected: Expectation
    exact: bool = False


@dataclass(frozen=True)
class Decision:
    """A claim, decided.

    Args:
        claim: The claim.
        verdict: One of `VERDICTS`.
        values: The quantity by seed.
        mean: Over seeds; NaN without any.
        low: Lower end of the interval; NaN where there is none.
        high: Upper end.
        why: What keeps it from being decided, or why it is not defined; empty otherwise.
    """

    claim: Claim
    verdict: Verdict
    values: Mapping[int, float]
    mean: float
    low: float
    high: float
    why: str = ""


def decide(claim: Claim, runs: Sequence[Measured], seeds: Sequence[int]) -> Decision:
    """A claim decided over seeds.

    Args:
        claim: The claim.
        runs: Of all cases and seeds.
        seeds: Those that were asked for. A seed without a number leaves the claim undecided, whatever the others say.
    """
    values: dict[int, float] = {}
    missing: list[str] = []
    for seed in seeds:
        own = [run for run in runs if run.seed == seed]
        try:
            values[seed] = _finite(claim.quantity, own)
        except NotDefined as error:
            return Decision(
                claim=claim,
                verdict="not defined",
                values={},
                mean=math.nan,
                low=math.nan,
                high=math.nan,
                why=str(error),
            )
        except Missing as error:
            missing.append(str(error))
    mean, low, high = interval(list(values.values()), exact=claim.exact)
    verdict: Verdict = "undecided"
    why = ""
    if missing:
        why = f"{len(missing)} of {len(seeds)} seeds have no number. The first: {missing[0]}"
    elif math.isnan(low):
        why = "one seed has no interval"
    elif claim.expected.low <= low and high <= claim.expected.high:
        verdict = "holds"
    elif high < claim.expected.low or low > claim.expected.high:
        verdict = "fails"
    else:
        why = f"the interval from {low:.3g} to {high:.3g} reaches across an end of what is expected"
    return Decision(claim=claim, verdict=verdict, values=values, mean=mean, low=low, high=high, why=why)


def _finite(quantity: Quantity, runs: Runs) -> float:
    """Return a quantity of the runs of one seed; raises `Missing` where it is too large for a number."""
    try:
        found = quantity.of(runs)
    except OverflowError as error:
        raise Missing(f"{quantity.name} is too large for a number") from error
    if not math.isfinite(found):
        raise Missing(f"{quantity.name} is {found}")
    return found


def interval(values: Sequence[float], *, exact: bool = False) -> tuple[float, float, float]:
    """The mean of some numbers and the ends of its 95 % interval by Student's t; NaN where there is none.

    Args:
        values: One per seed.
        exact: They are no sample: the interval is from the least to the largest.
    """
    if not values:
        return math.nan, math.nan, math.nan
    mean = statistics.fmean(values)
    if exact:
        return mean, min(values), max(values)
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = _t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


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


def _matching(runs: Runs, where: Mapping[str, Any]) -> list[Measured]:
    found = [run for run in runs if all(run.case.get(name) == wanted for name, wanted in where.items())]
    if not found:
        raise Missing(f"there is no run of {_spoken(where)}")
    return found


def _along(runs: Runs, measure: str, over: str, where: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    for run in _matching(runs, where):
        at = run.case.get(over)
        if not isinstance(at, int | float):
            raise AnalysisUnavailable(f"{over}={at!r} is no number: there is no slope over it.")
        yield float(at), run.measure(measure)


def _called(measure: str, where: Mapping[str, Any]) -> str:
    return measure + (f" ({_spoken(where)})" if where else "")


def _spoken(where: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={said}" for name, said in where.items()) or "the one case"
