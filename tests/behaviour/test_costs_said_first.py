"""What takes long says so before it is run, on a pipe too; a dry run says it and ends."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.cli import main
from glassformer.cli.progress import progress


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock that progress looks at."""
    now = [0.0]
    monkeypatch.setattr("glassformer.cli.progress.time.monotonic", lambda: now[0])
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return lambda passed: now.__setitem__(0, passed)


def test_a_pipe_is_told_the_cost_first_and_every_ten_seconds_how_far_it_is(
    seconds: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("patching") as report:
        for done, passed in ((1, 1), (3, 3), (9, 9), (12, 12), (14, 14), (20, 20)):
            seconds(passed)
            report(done, 40)
    assert capsys.readouterr().err.splitlines() == [
        "patching: 3 of 40 after 3 s, about 37 s to go",
        "patching: 14 of 40 after 14 s, about 26 s to go",
    ]


def test_what_comes_before_the_first_step_is_no_measure_of_the_others(
    seconds: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("pruning") as report:
        for done, passed in ((1, 60), (2, 61)):
            seconds(passed)
            report(done, 40)
    assert capsys.readouterr().err == "pruning: 2 of 40 after 61 s, about 38 s to go\n"


def test_what_is_left_of_steps_that_are_not_alike_is_not_foretold(
    seconds: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("circuits", alike=False) as report:
        report(0, 40, "copying")
        seconds(12)
        report(1, 40, "bandwidth")
    assert capsys.readouterr().err == "circuits, bandwidth: 1 of 40 after 12 s\n"


def test_a_dry_run_ends_as_soon_as_the_cost_is_known(
    seconds: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop, progress("pruning", dry_run=True) as report:
        for done in itertools.count(1):
            seconds(done)
            report(done, 3600)
    assert stop.value.code == 0
    assert capsys.readouterr().err == "pruning: 3 of 3,600 after 3 s, about 60 min to go\n"


def test_a_dry_run_of_what_takes_a_moment_shows_no_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patch", "attn-only-1l", "--n", "2", "--sites", "z", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("denoising: ")


@pytest.mark.full
def test_circuits_leaves_out_text_that_would_take_long_unless_rows_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.cli.circuits.UNASKED", 0.0)
    text, losses = tmp_path / "text.py", {}
    text.write_text("def add(first, second):\n    return first + second\n" * 40)
    for asked in ((), ("--rows", "1")):
        found = tmp_path / f"{len(asked)}.json"
        assert main(["circuits", "attn-only-1l", "--data", str(text), "--top", "1", "--json", str(found), *asked]) == 0
        losses[asked] = json.loads(found.read_text())["heads"][0]["ablation_loss"]
        left_out = "--rows asks for it" in capsys.readouterr().err
        assert left_out == (not asked)
    assert losses[()] is None and losses["--rows", "1"] is not None


def test_prune_tries_all_edges_unless_that_takes_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["prune", "attn-only-1l", "--n", "2", "--threshold", "0.5", "--json"]
    for name, limit in (("all", 1e30), ("some", 1e9)):
        monkeypatch.setattr("glassformer.cli.prune.UNASKED", limit)
        assert main([*command, str(tmp_path / name)]) == 0
    every, some = (json.loads((tmp_path / name).read_text()) for name in ("all", "some"))
    assert every["given"].get("candidates") is None and every["results"][0]["prefiltered"] == 0
    tried = some["given"]["candidates"]
    assert len(some["results"][0]["log"]) == tried and some["results"][0]["prefiltered"] > 0
