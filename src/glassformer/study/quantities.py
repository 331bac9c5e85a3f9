"""Quantities: a number for each seed, made of what its runs measured, and the range that is expected of it.

value("loss", kind="linear") / value("loss", kind="softmax")        a number of the runs of one seed
counted(value("loss", kind="linear"), below(0.1))                   whether a seed lies in a range, to be counted
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from glassformer.config import require
from glassformer.errors import AnalysisUnavailable, nearest


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

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

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


MAJORITY = above(0.5)  # of seeds that are counted


Runs = Sequence[Measured]  # of one seed


@dataclass(frozen=True)
class Quantity:
    """A number of the runs of one seed, and what it is called.

    Args:
        name: As reports say it.
        of: From the runs of one seed to the number; raises `Missing` or `NotDefined`.
        measures: Which measures it takes.
        where: Which cases, one mapping for each it takes.
        counts: Where the number has to lie for a seed to count, if seeds are counted; None where numbers are averaged.
    """

    name: str
    of: Callable[[Runs], float]
    measures: tuple[str, ...]
    where: tuple[Mapping[str, Any], ...]
    counts: Expectation | None = None

    def __sub__(self, other: "Quantity") -> "Quantity":
        return self._with(other, "less", lambda a, b: a - b)

    def __truediv__(self, other: "Quantity") -> "Quantity":
        def ratio(a: float, b: float) -> float:
            if b == 0:
                raise Missing(f"{other.name} is 0")
            return a / b

        return self._with(other, "/", ratio)

    def taken(self, runs: Runs) -> float:
        """Return the number of one seed; raises `Missing` where it is none or too large, and `NotDefined`."""
        try:
            found = self.of(runs)
        except OverflowError as error:
            raise Missing(f"{self.name} is too large for a number") from error
        if not math.isfinite(found):
            raise Missing(f"{self.name} is {found}")
        return found

    def _with(self, other: "Quantity", sign: str, combined: Callable[[float, float], float]) -> "Quantity":
        require(not (self.counts or other.counts), "what counts seeds is no number of a seed to subtract or divide.")

        def of(runs: Runs) -> float:
            return combined(self.of(runs), other.of(runs))

        measures = tuple(dict.fromkeys((*self.measures, *other.measures)))
        return Quantity(f"{self.name} {sign} {other.name}", of, measures, (*self.where, *other.where))


def value(measure: str, **where: Any) -> Quantity:
    """The measure of the one case that is named; where several are, their mean."""

    def of(runs: Runs) -> float:
        return statistics.fmean(run.measure(measure) for run in _matching(runs, where))

    return Quantity(_called(measure, where), of, (measure,), (where,))


def counted(quantity: Quantity, where: Expectation) -> Quantity:
    """The share of seeds in which a quantity lies in a range: what to claim where a seed learns something or does not.

    A mean over such seeds is of no seed at all, and its interval takes them for a bell. A share has an exact one.
    """
    return replace(quantity, counts=where)


def slope(measure: str, over: str, **where: Any) -> Quantity:
    """The slope of a measure over an axis of the grid, by least squares."""

    def of(runs: Runs) -> float:
        return _slope(over, list(_along(runs, measure, over, where)))

    return Quantity(f"slope of {_called(measure, where)} over {over}", of, (measure,), (where,))


def growth(measure: str, over: str, **where: Any) -> Quantity:
    """The exponent of a measure that grows as a power of an axis: the slope of logarithms."""

    def of(runs: Runs) -> float:
        points = list(_along(runs, measure, over, where))
        if min(min(point) for point in points) <= 0:
            raise Missing(f"{measure} or {over} is not positive: it has no logarithm")
        return _slope(over, [(math.log(x), math.log(y)) for x, y in points])

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


def _matching(runs: Runs, where: Mapping[str, Any]) -> list[Measured]:
    found = [run for run in runs if all(run.case.get(name) == wanted for name, wanted in where.items())]
    if not found:
        raise Missing(f"there is no run of {_spoken(where)}")
    return found


def _slope(over: str, points: Sequence[tuple[float, float]]) -> float:
    if len({x for x, _ in points}) < 2:
        raise Missing(f"{over} takes one value only")
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


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
