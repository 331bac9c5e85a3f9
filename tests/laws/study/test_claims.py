"""Claims: a verdict is what the interval over seeds says, and nothing that went wrong becomes one."""

import math
import statistics

import mpmath
import pytest
from hypothesis import given, strategies as st

from glassformer.errors import ConfigError
from glassformer.study import Claim, above, below, decide, growth, interval, least_step, slope, value, within
from glassformer.study.claims import Measured

NUMBERS = st.floats(-100, 100, allow_nan=False)


def runs(values: dict[tuple[str, int], float], **undefined: str) -> list[Measured]:
    """Return runs of the axis `kind`, by (kind, seed)."""
    return [Measured({"kind": kind}, seed, {"loss": x}, undefined) for (kind, seed), x in values.items()]


def decided(values: list[float], expected, **more):
    found = runs({("a", seed): x for seed, x in enumerate(values)})
    return decide(Claim("it is so", value("loss", kind="a"), expected, **more), found, range(len(values)))


@given(values=st.lists(NUMBERS, min_size=2, max_size=40))
def test_the_interval_is_that_of_students_t(values):
    mean, low, high = interval(values)
    assert mean == pytest.approx(statistics.fmean(values))
    assert high - mean == pytest.approx(mean - low)
    error = statistics.stdev(values) / math.sqrt(len(values))
    freedom = len(values) - 1
    if error > 1e-6:
        t = (high - mean) / error
        outside = mpmath.betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True)
        assert float(outside) == pytest.approx(0.05, rel=1e-3)


@given(values=st.lists(NUMBERS, min_size=2, max_size=8), end=NUMBERS)
def test_a_claim_and_its_opposite_never_both_hold_and_fail_together(values, end):
    over, under = (decided(values, expected(end)).verdict for expected in (above, below))
    assert (over, under) in {("holds", "fails"), ("fails", "holds"), ("undecided", "undecided")} or min(values) == max(
        values
    )


def test_an_interval_within_the_range_holds_outside_fails_and_across_is_undecided():
    values = [1.0, 1.1, 0.9, 1.0]
    assert decided(values, above(0.5)).verdict == "holds"
    assert decided(values, above(1.5)).verdict == "fails"
    assert decided(values, within(0.5, 1)).verdict == "holds"
    across = decided(values, above(1.0))
    assert across.verdict == "undecided" and "reaches across" in across.why


def test_one_seed_decides_nothing_unless_the_quantity_is_exact():
    assert decided([1.0], above(0)).verdict == "undecided"
    assert decided([1.0], above(0)).why == "one seed has no interval"
    assert decided([1.0], above(0), exact=True).verdict == "holds"
    assert decided([1.0, 1.0], below(0), exact=True).verdict == "fails"


def test_what_is_missing_leaves_a_claim_undecided_however_clear_the_rest_is():
    found = runs({("a", seed): 1.0 + seed / 100 for seed in range(3)})
    claim = Claim("it is so", value("loss", kind="a"), above(0))
    assert decide(claim, found, range(3)).verdict == "holds"
    later = decide(claim, found, range(4))
    assert later.verdict == "undecided" and "1 of 4 seeds" in later.why
    broken = [*found, Measured({"kind": "a"}, 3, {}, {}, "RuntimeError: no")]
    assert "RuntimeError: no" in decide(claim, broken, range(4)).why
    nan = [*found, Measured({"kind": "a"}, 3, {"loss": math.nan}, {})]
    assert decide(claim, nan, range(4)).verdict == "undecided"


def test_a_measure_that_is_not_defined_for_a_case_says_so():
    found = [Measured({"kind": "a"}, 0, {}, {"loss": "there is no pattern"})]
    decision = decide(Claim("it is so", value("loss", kind="a"), above(0)), found, range(1))
    assert decision.verdict == "not defined" and "there is no pattern" in decision.why
    whole = [Measured({"kind": "a"}, 0, {}, {"*": "no such mechanism"})]
    decision = decide(Claim("it is so", value("loss", kind="a"), above(0)), whole, range(1))
    assert decision.verdict == "not defined" and "no such mechanism" in decision.why


@given(factor=st.floats(-5, 5), start=NUMBERS)
def test_slopes_and_growth_find_the_law_they_were_made_by(factor, start):
    straight = [Measured({"n": n}, 0, {"loss": start + factor * n}, {}) for n in (1, 2, 5)]
    assert slope("loss", "n").of(straight) == pytest.approx(factor, abs=1e-9)
    power = [Measured({"n": n}, 0, {"loss": 3 * n**factor}, {}) for n in (1, 2, 5)]
    assert growth("loss", "n").of(power) == pytest.approx(factor, abs=1e-9)


def test_an_order_holds_if_its_smallest_step_is_upwards():
    found = runs({("a", 0): 1.0, ("b", 0): 2.0, ("c", 0): 4.0})
    assert least_step("loss", "kind", ["a", "b", "c"]).of(found) == 1
    assert least_step("loss", "kind", ["a", "c", "b"]).of(found) == -2


def test_differences_and_ratios_are_of_the_same_seed():
    found = runs({("a", 0): 1.0, ("b", 0): 3.0, ("a", 1): 10.0, ("b", 1): 12.0})
    claim = Claim("b is more", value("loss", kind="b") - value("loss", kind="a"), above(1.9))
    assert decide(claim, found, range(2)).values == {0: 2.0, 1: 2.0}
    ratio = value("loss", kind="b") / value("loss", kind="a")
    assert ratio.of(found[:2]) == 3 and ratio.name == "loss (kind=b) / loss (kind=a)"
    zero = runs({("a", 0): 0.0, ("b", 0): 1.0})
    assert decide(Claim("b is more", ratio, above(1)), zero, range(1)).verdict == "undecided"


def test_a_range_without_numbers_is_refused():
    with pytest.raises(ConfigError, match="holds nothing"):
        within(-1, 0)


def test_what_is_too_large_for_a_number_decides_nothing():
    tall = runs({("a", 0): 1e200, ("a", 1): 1e200, ("b", 0): 1e-200, ("b", 1): 1e-200})
    ratio = Claim("it is so", value("loss", kind="a") / value("loss", kind="b"), above(0))
    found = decide(ratio, tall, (0, 1))
    assert found.verdict == "undecided" and found.values == {} and "is inf" in found.why
