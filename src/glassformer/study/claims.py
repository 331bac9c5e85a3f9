"""Claims: a sentence of a paper, what is measured for it, and what was expected before it was measured.

    Claim("saturates", "Softmax saturates without the scale",
          value("entropy", scale="none") / value("entropy", scale="sqrt"), below(0.5))

A quantity gives one number per seed, of runs of that seed, and is a mean over seeds with an interval (Student's t,
95 %), or seeds are counted whose number lies in a range, and their share has an exact one (Clopper and Pearson, 95 %).
The expectation is a range of numbers:

    holds               the whole interval lies in the range
    fails               the whole interval lies outside of it
    undecided           it reaches across an end, a run is missing, or there is none: seeds that are averaged are fewer
                        than two or all alike, seeds that are counted are fewer than eight
    not testable here   something that has to be true first is not: the reference has not learned the task, say
    not defined         a measure does not exist for that case

Claims are decided one by one. One that is not true holds by chance in one study of forty at most; `held_by_chance` says
how many of so many would.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from glassformer.study.intervals import LEVEL, count_interval, interval
from glassformer.study.quantities import MAJORITY, Expectation, Measured, Missing, NotDefined, Quantity

Verdict = Literal["holds", "fails", "undecided", "not testable here", "not defined"]
VERDICTS: tuple[Verdict, ...] = ("holds", "fails", "undecided", "not testable here", "not defined")
LEAST_COUNTED = 8  # seeds, of which all or none would be found in one of a hundred cases if the share were one half
NEAR = 0.25  # of half an interval


@dataclass(frozen=True)
class Condition:
    """What has to be true of the runs that a claim is taken from, or the claim cannot be tested by them.

    It is met if the quantity lies in the range in every seed; of many seeds, if it does in so many that the exact
    interval of their share lies above one half. It names the reference, a yardstick or the data, and never what is
    claimed about: see `Study.references`.

    Args:
        text: A sentence.
        quantity: What is measured for it.
        expected: Where its number has to lie.
    """

    text: str
    quantity: Quantity
    expected: Expectation


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper that may turn out wrong.

    Args:
        name: Identifies it in its study, whatever its sentence becomes: in lower case, with hyphens.
        text: The sentence.
        quantity: What is measured for it.
        expected: What the paper lets one expect, written down before the first full run; of seeds that are counted,
            their share.
        given: What has to be true first.
        exact: Why the quantity is no sample, if it is the same in every seed, as counts and algebra are; it then needs
            no interval.
    """

    name: str
    text: str
    quantity: Quantity
    expected: Expectation
    given: tuple[Condition, ...] = ()
    exact: str = ""

    @property
    def expects(self) -> str:
        """What is expected, in words: of seeds that are counted, what each of them has to give, and of how many."""
        counts = self.quantity.counts
        if counts is None:
            return str(self.expected)
        return f"{counts} in " + ("most seeds" if self.expected == MAJORITY else f"a share of seeds {self.expected}")


@dataclass(frozen=True)
class Met:
    """A condition of a claim, looked up in the runs.

    Args:
        condition: The condition.
        values: Its quantity by seed.
        missing: Why seeds have no number, one for each of them.
        undefined: Why it is not defined; empty otherwise.
    """

    condition: Condition
    values: Mapping[int, float]
    missing: Sequence[str] = ()
    undefined: str = ""

    @property
    def count(self) -> int:
        """How many seeds meet it."""
        return sum(value in self.condition.expected for value in self.values.values())

    @property
    def holds(self) -> bool:
        n = len(self.values)
        return n > 0 and (self.count == n or count_interval(self.count, n)[0] > 0.5)

    @property
    def why(self) -> str:
        """What was asked and what was found, in words."""
        asked = f"{self.condition.quantity.name} was to be {self.condition.expected}"
        found = self.undefined or f"is so in {self.count} of {len(self.values)} seeds ({_listed(self.values)})"
        return f'"{self.condition.text}" is not met: {asked}, and {found}'


@dataclass(frozen=True)
class Decision:
    """A claim, decided.

    Args:
        claim: The claim.
        verdict: One of `VERDICTS`.
        values: The quantity by seed.
        mean: Over seeds, or the share of those that count; NaN without any.
        low: Lower end of the interval; NaN where there is none.
        high: Upper end.
        why: What keeps it from being decided, or why it is not defined; empty otherwise.
        given: Its conditions, looked up.
    """

    claim: Claim
    verdict: Verdict
    values: Mapping[int, float]
    mean: float
    low: float
    high: float
    why: str = ""
    given: Sequence[Met] = ()

    @property
    def count(self) -> int | None:
        """How many seeds count; None where they are averaged."""
        counts = self.claim.quantity.counts
        return None if counts is None else sum(value in counts for value in self.values.values())

    @property
    def near(self) -> bool:
        """Whether an end of the interval is within a quarter of half its width of an end of what is expected.

        One seed more might well turn such a verdict.
        """
        most = NEAR * (self.high - self.low) / 2
        ends = (self.claim.expected.low, self.claim.expected.high)
        return self.by_interval and any(abs(end - found) < most for end in ends for found in (self.low, self.high))

    @property
    def by_interval(self) -> bool:
        """Whether an interval over seeds decides it, so that chance may."""
        few = self.count is not None and len(self.values) < LEAST_COUNTED
        tested = self.verdict in ("holds", "fails", "undecided") and not few
        return tested and not self.claim.exact and self.low < self.high


def decide(claim: Claim, runs: Sequence[Measured], seeds: Sequence[int]) -> Decision:
    """A claim decided over seeds.

    Args:
        claim: The claim.
        runs: Of all cases and seeds.
        seeds: Those that were asked for. A seed without a number leaves the claim undecided, whatever the others say.
    """
    by_seed = {seed: [run for run in runs if run.seed == seed] for seed in seeds}
    given = [Met(condition, *_taken(condition.quantity, by_seed)) for condition in claim.given]
    values, missing, undefined = _taken(claim.quantity, by_seed)
    mean, low, high = _interval(claim, list(values.values()))
    verdict, why = _verdict(claim, values, low, high)
    unmet = [met for met in given if not met.holds]
    for met in given:
        if met.missing:
            verdict, why = "undecided", f'of "{met.condition.text}" {_said_missing(met.missing, seeds)}'
            break
    else:
        if unmet:
            verdict, why = "not testable here", unmet[0].why
        elif undefined:
            verdict, why = "not defined", undefined
        elif missing:
            verdict, why = "undecided", _said_missing(missing, seeds)
    return Decision(
        claim=claim, verdict=verdict, values=values, mean=mean, low=low, high=high, why=why, given=given
    )  # fmt: skip


def held_by_chance(decisions: int) -> float:
    """The most claims that would be expected to hold of so many that intervals decide, if none of them were true.

    The interval of a claim that is not true has to lie wholly on one side of what is true, as one of forty does.
    """
    return decisions * (1 - LEVEL) / 2


def _taken(
    quantity: Quantity, by_seed: Mapping[int, Sequence[Measured]]
) -> tuple[dict[int, float], list[str], str]:  # fmt: skip
    """Return a quantity by seed, why seeds have none, and why it is not defined."""
    values: dict[int, float] = {}
    missing: list[str] = []
    for seed, own in by_seed.items():
        try:
            values[seed] = quantity.taken(own)
        except NotDefined as error:
            return {}, [], str(error)
        except Missing as error:
            missing.append(str(error))
    return values, missing, ""


def _interval(claim: Claim, values: Sequence[float]) -> tuple[float, float, float]:
    counts = claim.quantity.counts
    if counts is not None and values:
        found = sum(value in counts for value in values)
        return found / len(values), *count_interval(found, len(values))
    mean, low, high = interval(values)
    return (mean, min(values), max(values)) if claim.exact and values else (mean, low, high)


def _verdict(claim: Claim, values: Mapping[int, float], low: float, high: float) -> tuple[Verdict, str]:
    """Return what an interval says, and why if it says nothing."""
    if claim.quantity.counts is not None and len(values) < LEAST_COUNTED:
        return "undecided", f"a count takes {LEAST_COUNTED} seeds at least, and there are {len(values)}"
    if math.isnan(low):
        return "undecided", "one seed has no interval"
    if claim.quantity.counts is None and not claim.exact and len(set(values.values())) == 1:
        return "undecided", f"{len(values)} seeds gave one number, so that there is no interval"
    if claim.expected.low <= low and high <= claim.expected.high:
        return "holds", ""
    if high < claim.expected.low or low > claim.expected.high:
        return "fails", ""
    return "undecided", f"the interval from {low:.3g} to {high:.3g} reaches across an end of what is expected"


def _said_missing(missing: Sequence[str], seeds: Sequence[int]) -> str:
    return f"{len(missing)} of {len(seeds)} seeds have no number. The first: {missing[0]}"


def _listed(values: Mapping[int, float]) -> str:
    said = [f"{value:.3g}" for value in values.values()]
    return ", ".join(said if len(said) <= 8 else [*said[:8], "…"])
