"""Claims: a verdict is what the interval over seeds says, and nothing that went wrong becomes one."""

import math
import statistics

import mpmath
import pytest
from hypothesis import given, strategies as st

from glassformer.errors import ConfigError
from glassformer.study import (
    MAJORITY,
    Claim,
    Condition,
    Expectation,
    above,
    below,
    count_interval,
    counted,
    decide,
    growth,
    held_by_chance,
    interval,
    least_step,
    slope,
    value,
    within,
)
from glassformer.study.quantities import Measured, Missing

NUMBERS = st.floats(-100, 100, allow_nan=False)


def runs(values: dict[tuple[str, int], float], **undefined: str) -> list[Measured]:
    """Return runs of the axis `kind`, by (kind, seed)."""
    return [Measured({"kind": kind}, seed, {"loss": x}, undefined) for (kind, seed), x in values.items()]


def decided(values: list[float], expected, **more):
    found = runs({("a", seed): x for seed, x in enumerate(values)})
    return decide(Claim("so", "it is so", value("loss", kind="a"), expected, **more), found, range(len(values)))


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
    assert decided([1.0], above(0), exact="it is counted").verdict == "holds"
    assert decided([1.0, 1.0], below(0), exact="it is counted").verdict == "fails"


def test_what_is_missing_leaves_a_claim_undecided_however_clear_the_rest_is():
    found = runs({("a", seed): 1.0 + seed / 100 for seed in range(3)})
    claim = Claim("so", "it is so", value("loss", kind="a"), above(0))
    assert decide(claim, found, range(3)).verdict == "holds"
    later = decide(claim, found, range(4))
    assert later.verdict == "undecided" and "1 of 4 seeds" in later.why
    broken = [*found, Measured({"kind": "a"}, 3, {}, {}, "RuntimeError: no")]
    assert "RuntimeError: no" in decide(claim, broken, range(4)).why
    nan = [*found, Measured({"kind": "a"}, 3, {"loss": math.nan}, {})]
    assert decide(claim, nan, range(4)).verdict == "undecided"


def test_a_measure_that_is_not_defined_for_a_case_says_so():
    found = [Measured({"kind": "a"}, 0, {}, {"loss": "there is no pattern"})]
    decision = decide(Claim("so", "it is so", value("loss", kind="a"), above(0)), found, range(1))
    assert decision.verdict == "not defined" and "there is no pattern" in decision.why
    whole = [Measured({"kind": "a"}, 0, {}, {"*": "no such mechanism"})]
    decision = decide(Claim("so", "it is so", value("loss", kind="a"), above(0)), whole, range(1))
    assert decision.verdict == "not defined" and "no such mechanism" in decision.why


@given(factor=st.floats(-5, 5), start=NUMBERS)
def test_slopes_and_growth_find_the_law_they_were_made_by(factor, start):
    straight = [Measured({"n": n}, 0, {"loss": start + factor * n}, {}) for n in (1, 2, 5)]
    assert slope("loss", "n").of(straight) == pytest.approx(factor, abs=1e-9)
    power = [Measured({"n": n}, 0, {"loss": 3 * n**factor}, {}) for n in (1, 2, 5)]
    assert growth("loss", "n").of(power) == pytest.approx(factor, abs=1e-9)


@pytest.mark.parametrize("kind", [slope, growth])
def test_over_one_value_of_an_axis_there_is_no_slope(kind):
    with pytest.raises(Missing, match="n takes one value only"):
        kind("loss", "n").of([Measured({"n": 2}, 0, {"loss": 1.0}, {})])


def test_an_order_holds_if_its_smallest_step_is_upwards():
    found = runs({("a", 0): 1.0, ("b", 0): 2.0, ("c", 0): 4.0})
    assert least_step("loss", "kind", ["a", "b", "c"]).of(found) == 1
    assert least_step("loss", "kind", ["a", "c", "b"]).of(found) == -2


def test_differences_and_ratios_are_of_the_same_seed():
    found = runs({("a", 0): 1.0, ("b", 0): 3.0, ("a", 1): 10.0, ("b", 1): 12.0})
    claim = Claim("more", "b is more", value("loss", kind="b") - value("loss", kind="a"), above(1.9))
    assert decide(claim, found, range(2)).values == {0: 2.0, 1: 2.0}
    ratio = value("loss", kind="b") / value("loss", kind="a")
    assert ratio.of(found[:2]) == 3 and ratio.name == "loss (kind=b) / loss (kind=a)"
    zero = runs({("a", 0): 0.0, ("b", 0): 1.0})
    assert decide(Claim("more", "b is more", ratio, above(1)), zero, range(1)).verdict == "undecided"


def test_a_range_without_numbers_is_refused():
    with pytest.raises(ConfigError, match="holds nothing"):
        within(-1, 0)


def test_what_is_too_large_for_a_number_decides_nothing():
    tall = runs({("a", 0): 1e200, ("a", 1): 1e200, ("b", 0): 1e-200, ("b", 1): 1e-200})
    ratio = Claim("so", "it is so", value("loss", kind="a") / value("loss", kind="b"), above(0))
    found = decide(ratio, tall, (0, 1))
    assert found.verdict == "undecided" and found.values == {} and "is inf" in found.why


@pytest.mark.parametrize(("n", "count"), [(3, 3), (8, 0), (8, 5), (8, 8), (40, 31)])
def test_the_interval_of_a_count_is_that_of_clopper_and_pearson(n, count):
    low, high = count_interval(count, n)
    # their ends are quantiles of beta distributions
    if count:
        assert float(mpmath.betainc(count, n - count + 1, 0, low, regularized=True)) == pytest.approx(0.025, rel=1e-9)
    if count < n:
        assert float(mpmath.betainc(count + 1, n - count, 0, high, regularized=True)) == pytest.approx(0.975, rel=1e-9)
    assert (low == 0) == (count == 0) and (high == 1) == (count == n)
    assert count_interval(n - count, n) == pytest.approx((1 - high, 1 - low))


def learns(values: list[float], expected: Expectation = MAJORITY):
    found = runs({("a", seed): x for seed, x in enumerate(values)})
    claim = Claim("learns", "it learns", counted(value("loss", kind="a"), below(0.1)), expected)
    return decide(claim, found, range(len(values)))


def test_what_is_learned_or_not_is_counted_over_eight_seeds_and_never_over_fewer():
    three = learns([0.01] * 3)
    assert three.verdict == "undecided" and "8 seeds at least, and there are 3" in three.why
    assert (three.mean, three.count) == (1.0, 3) and not three.by_interval
    assert learns([0.01] * 7).verdict == "undecided"
    # all numbers alike: they are counted, and a count has an interval
    assert learns([0.01] * 8).verdict == "holds" and learns([0.5] * 8).verdict == "fails"
    most = learns([0.01] * 6 + [0.5] * 2)
    assert most.verdict == "undecided" and (most.low, most.high) == count_interval(6, 8)


def test_seeds_that_give_one_number_have_no_interval_and_decide_nothing_unless_it_is_said_why():
    alike = decided([2.0] * 5, above(0))
    assert alike.verdict == "undecided" and "5 seeds gave one number" in alike.why
    assert decided([2.0] * 5, above(0), exact="it is counted").verdict == "holds"


def test_a_count_is_no_number_to_subtract():
    with pytest.raises(ConfigError, match="no number of a seed"):
        _ = counted(value("loss"), below(1)) - value("loss")


def given_that(values: list[float], **undefined: str):
    """Return a claim that holds of the kind `a`, given what `values` say of the kind `reference`."""
    found = [
        *runs({("a", seed): 5.0 + seed / 100 for seed in range(len(values))}),
        *runs({("reference", seed): x for seed, x in enumerate(values)}, **undefined),
    ]
    condition = Condition("The reference learns", value("loss", kind="reference"), below(0.1))
    claim = Claim("so", "it is so", value("loss", kind="a"), above(0), (condition,))
    return decide(claim, found, range(len(values)))


def test_a_claim_whose_condition_is_not_met_is_not_testable_and_says_what_was_asked_and_found():
    assert given_that([0.01, 0.02, 0.03]).verdict == "holds"
    unmet = given_that([0.01, 0.7, 0.02])
    assert unmet.verdict == "not testable here" and not unmet.by_interval and not unmet.near
    assert unmet.why == (
        '"The reference learns" is not met: loss (kind=reference) was to be below 0.1, and is so in 2 of 3 seeds '
        "(0.01, 0.7, 0.02)"
    )
    # what was measured is told all the same
    assert unmet.mean == pytest.approx(5.01)
    absent = given_that([1.0, 1.0], loss="there is no pattern")
    assert absent.verdict == "not testable here" and "there is no pattern" in absent.why


def test_of_many_seeds_a_few_may_miss_a_condition_where_most_are_sure_to_meet_it():
    assert given_that([0.01] * 8 + [0.7]).verdict == "holds"
    assert given_that([0.01] * 7 + [0.7]).verdict == "not testable here"
    assert given_that([0.01] * 12 + [0.7] * 3).verdict == "holds"


def test_a_condition_without_a_run_leaves_its_claim_undecided():
    # an error of a run is no sign that the reference has not learned
    found = given_that([0.01, math.nan, 0.02])
    assert found.verdict == "undecided" and 'of "The reference learns" 1 of 3 seeds have no number' in found.why


@given(
    mean=st.floats(-1, 1), spread=st.floats(0.1, 1), share=st.floats(0.01, 0.99), side=st.sampled_from([above, below])
)
def test_a_verdict_is_near_if_a_quarter_of_half_the_interval_separates_it_from_its_border(mean, spread, share, side):
    values = [mean - spread, mean, mean + spread]
    _, low, high = interval(values)
    half = (high - low) / 2
    end = low if side is above else high
    for distance in (-half * share, half * share):
        found = decided(values, side(end + distance))
        assert found.near == (share < 0.25) or math.isclose(share, 0.25)
    assert decided(values, within(100 * half, mean)).near is False


def test_of_claims_that_are_not_true_one_in_forty_is_expected_to_hold():
    assert held_by_chance(40) == pytest.approx(1) and held_by_chance(0) == 0
