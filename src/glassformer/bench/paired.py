"""Paired timing: how much longer one thing takes than another, on a machine that others use too.

A bare wall-clock figure says little where cores are shared. So subject and baseline run in one process, in rounds; each
round runs the subject once and the baseline twice, in an order drawn anew, and gives one ratio subject / baseline and
one ratio baseline / baseline (A/A). What slows a whole round cancels in its ratios. Reported is the median over rounds
with a bootstrap interval of that median, for CPU time (all threads of the process together) and for wall time.

A median's interval narrows with rounds that follow one another, and knows nothing of another hour. So the least and the
largest ratio of all rounds stand beside it, and rounds of several sittings are put `together`, each beside its own
baseline.

A/A is what the method itself says about two equal things: a subject whose interval lies within that of A/A differs from
its baseline by less than can be seen here.
"""

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import Literal, NamedTuple

RESAMPLES = 1000
LEAST_SECONDS = 0.01  # of work between two readings of the clock
LEAST_ROUNDS = 5  # however long they take


class Timing(NamedTuple):
    """CPU and wall seconds of one run."""

    cpu: float
    wall: float


@dataclass(frozen=True)
class Spread:
    """A median, the 95 % bootstrap interval of that median, and quartiles and ends of what it is a median of."""

    median: float
    low: float
    high: float
    first_quartile: float
    third_quartile: float
    least: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        draw = random.Random(0)
        medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
        ordered = sorted(values)
        return cls(
            median=median(values),
            low=medians[round(0.025 * RESAMPLES)],
            high=medians[round(0.975 * RESAMPLES) - 1],
            first_quartile=ordered[round(0.25 * (len(ordered) - 1))],
            third_quartile=ordered[round(0.75 * (len(ordered) - 1))],
            least=ordered[0],
            largest=ordered[-1],
        )

    def inverse(self) -> "Spread":
        """The spread of 1 / value: from ratios of time to ratios of speed."""
        return Spread(
            median=1 / self.median,
            low=1 / self.high,
            high=1 / self.low,
            first_quartile=1 / self.third_quartile,
            third_quartile=1 / self.first_quartile,
            least=1 / self.largest,
            largest=1 / self.least,
        )


Met = Literal["yes", "no", "unclear"]


def aim_met(found: float, low: float, high: float, aim: float, *, at_least: bool) -> Met:
    """Return whether a figure meets its aim: `yes` if its whole interval does, `no` if it does not itself.

    Args:
        found: What was measured.
        low: Lower end of its interval; itself if it has none.
        high: Upper end of it.
        aim: What is aimed at.
        at_least: The aim is the least figure, and not the largest.
    """
    far = low if at_least else high
    reached, surely = ((x >= aim) if at_least else (x <= aim) for x in (found, far))
    return "no" if not reached else "yes" if surely else "unclear"


def interval_said(found: float, low: float, high: float, digits: int = 3) -> str:
    """Return a figure with its interval, `1.230 (1.199-1.285)`: ends are rounded outwards, past no aim between."""
    power = 10**digits
    # what is a whole number but for its last bits is one
    low, high = math.floor(round(low * power, 6)) / power, math.ceil(round(high * power, 6)) / power
    return f"{found:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


class Seconds(NamedTuple):
    """CPU and wall seconds of one call, over rounds."""

    cpu: Spread
    wall: Spread

    @property
    def median(self) -> Timing:
        """Their medians."""
        return Timing(self.cpu.median, self.wall.median)


def aim_said(aim: float) -> str:
    """Return an aim in full, as a fraction where decimals do not end: what meets a rounded one may miss it."""
    exact, said = Fraction(aim).limit_denominator(100), f"{aim:.6g}"
    return said if Fraction(said) == exact else str(exact)


def rounds_said(rounds: int, sittings: Sequence[float], spread: Mapping[str, float]) -> str:
    """Return how many rounds there were, and between which ratios they lie: `15 in 3 sittings, 1.102-1.311`.

    Args:
        rounds: Of all sittings.
        sittings: The median of each.
        spread: A `Spread` as JSON data; of one that has no ends it is said between which ratios half of the rounds lie.
    """
    times = f"{rounds} in {len(sittings)} sittings" if len(sittings) > 1 else str(rounds)
    if "least" in spread:
        return f"{times}, {spread['least']:.3f}-{spread['largest']:.3f}"
    return f"{times}, half of them {spread['first_quartile']:.3f}-{spread['third_quartile']:.3f}"


@dataclass(frozen=True)
class Comparison:
    """Subject over baseline.

    Args:
        rounds: How many ratios went into each median.
        cpu: Ratio of CPU times.
        wall: Ratio of wall times.
        cpu_same: A/A ratio of CPU times: baseline over baseline.
        wall_same: A/A ratio of wall times.
        subject_seconds: Of one call of the subject.
        baseline_seconds: Of one call of the baseline.
        timings: What both took in each round, the baseline twice, in the order of rounds.
    """

    rounds: int
    cpu: Spread
    wall: Spread
    cpu_same: Spread
    wall_same: Spread
    subject_seconds: Seconds
    baseline_seconds: Seconds
    timings: Sequence[tuple[Timing, Timing, Timing]]

    @classmethod
    def of(cls, timings: Sequence[tuple[Timing, Timing, Timing]]) -> "Comparison":
        """Return what follows from what the subject, the baseline and the baseline once more took in each round."""
        subject, first, second = zip(*timings, strict=True)

        def ratio(over: Sequence[Timing], under: Sequence[Timing], clock: str) -> Spread:
            return Spread.of([getattr(a, clock) / getattr(b, clock) for a, b in zip(over, under)])

        def seconds_of(taken: Sequence[Timing]) -> Seconds:
            return Seconds(Spread.of([t.cpu for t in taken]), Spread.of([t.wall for t in taken]))

        return cls(
            rounds=len(timings),
            cpu=ratio(subject, first, "cpu"),
            wall=ratio(subject, first, "wall"),
            cpu_same=ratio(second, first, "cpu"),
            wall_same=ratio(second, first, "wall"),
            subject_seconds=seconds_of(subject),
            baseline_seconds=seconds_of(first),
            timings=timings,
        )

    @property
    def subject(self) -> Timing:
        """Median seconds of one call of the subject."""
        return self.subject_seconds.median

    @property
    def baseline(self) -> Timing:
        """Median seconds of one call of the baseline."""
        return self.baseline_seconds.median


def together(sittings: Sequence[Comparison]) -> Comparison:
    """Return one comparison of the rounds of several sittings, in their order."""
    return Comparison.of([timing for sitting in sittings for timing in sitting.timings])


def compare(
    subject: Callable[[], object],
    baseline: Callable[[], object],
    *,
    rounds: int,
    seconds: float,
    warmup: int = 3,
    wait: Callable[[], object] | None = None,
) -> Comparison:
    """Time two functions side by side.

    Args:
        subject: What is judged.
        baseline: What it is judged against.
        rounds: Ratios wanted.
        seconds: Stop after this long with fewer rounds (but at least 5).
        warmup: Untimed calls of each before the first round.
        wait: Returns when what was called is done, where calls only begin it: `torch.cuda.synchronize`.
    """
    for _ in range(warmup):
        subject()
        baseline()
    # each as often as it takes to be seen: one may be many times slower than the other
    ours, theirs = (max(1, round(LEAST_SECONDS / max(timed(run, wait=wait).wall, 1e-9))) for run in (subject, baseline))
    return compare_timed(
        lambda: timed(subject, ours, wait), lambda: timed(baseline, theirs, wait), rounds=rounds, seconds=seconds
    )


def compare_timed(
    subject: Callable[[], Timing], baseline: Callable[[], Timing], *, rounds: int, seconds: float
) -> Comparison:
    """Like `compare`, for functions that take their own time and return it."""
    runs = {"subject": subject, "first": baseline, "second": baseline}
    taken: dict[str, list[Timing]] = {name: [] for name in runs}
    order, draw = list(runs), random.Random(0)
    started = time.perf_counter()
    while len(taken["first"]) < rounds:
        if len(taken["first"]) >= LEAST_ROUNDS and time.perf_counter() - started > seconds:
            break
        draw.shuffle(order)
        for name in order:
            taken[name].append(runs[name]())

    return Comparison.of(list(zip(taken["subject"], taken["first"], taken["second"])))


def timed(run: Callable[[], object], calls: int = 1, wait: Callable[[], object] | None = None) -> Timing:
    """Return seconds per call; garbage is collected between measurements, not within. Arguments as for `compare`."""
    with uncollected():
        if wait is not None:
            wait()
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(calls):
            run()
        if wait is not None:
            wait()
        return Timing((time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls)


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect recent garbage now, and none inside."""
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
