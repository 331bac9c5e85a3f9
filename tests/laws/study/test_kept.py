"""What is kept of a study stands for its runs: it goes on from there, and ends as if it had been run in one go."""

import json
import os
import shutil

import pytest

from glassformer.cli import main
from glassformer.errors import AnalysisUnavailable, SaveError
from glassformer.files import read_json
from glassformer.study import Claim, Scale, Study, above, find, keep, run_study, survey, value, verify
from glassformer.study.kept import kept_at
from glassformer.study.report import document
from glassformer.study.sealed import seal

TRAINS = '''"""Does a model train?"""

import glassformer as gf
from glassformer.data import Copy
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, block, repeat
from glassformer.study import Claim, Scale, Study, above, value
from glassformer.training import OptimConfig, TrainConfig

DONE, LEFT = [], []


def run(case):
    if LEFT and len(DONE) == LEFT[0]:
        raise KeyboardInterrupt
    data = Copy(batch_size=2, length=4)
    model = DecoderConfig(data.build().vocab_size, 8, repeat(block(n_heads=1), 1), max_len=16)
    recipe = TrainConfig(model, data, optim=OptimConfig(lr=1e-2, warmup=1), steps=2, log_every=1, evaluate_every=2)
    size = sum(float(p.detach().sum()) for p in gf.load(case.train(recipe)).parameters())
    DONE.append(case)
    return {"size": size * case["by"], "none": float("nan"), "odd": lambda: refuse(case["by"])}


def refuse(by):
    if by == 3:
        raise AnalysisUnavailable("three is odd")
    return 1 / by


STUDY = Study(
    "trains", paper="Nobody 2000", question="Does it train?", run=run, grid={"by": (1, 3)},
    scales={"smoke": Scale(), "small": Scale(seeds=2)},
    claims=(
        Claim("size", "It has a size", value("size", by=1), above(-1e9)),
        Claim("odd", "Odd ones have one", value("odd", by=3), above(0)),
    ),
)
'''
PLAIN = """from glassformer.study import Claim, Scale, Study, above, value

STUDY = Study(
    "plain", "Nobody 2000", "Is it so?", lambda case: {"x": (1.0, 1.1).index(case["of"]) + 1}, grid={"of": (1.0, 1.1)},
    scales={"small": Scale(seeds=2)}, claims=(Claim("so", "it is so", value("x"), above(0)),),
)
"""
TIMES = {"cpu_seconds", "wall_seconds", "trained", "found"}


@pytest.fixture
def trains(tmp_path) -> str:
    path = tmp_path / f"trains_{os.getpid()}_{os.urandom(4).hex()}.py"
    path.write_text(TRAINS, encoding="utf-8")
    return str(path)


def untimed(found) -> str:
    """Return a report as it is written, without its times."""
    made = document(found)
    runs = [{name: told for name, told in run.items() if name not in TIMES} for run in made["runs"]]
    return json.dumps({name: told for name, told in made.items() if name not in TIMES} | {"runs": runs})


def simple(run, **more) -> Study:
    claims = (Claim("so", "it is so", value("x"), above(0)),)
    return Study("made-up", "Nobody 2000", "Is it so?", run, claims, {"small": Scale(seeds=3)}, **more)


def twice(x: int) -> float:
    """Run for some of the runs."""
    return 2.0 * x


def test_a_study_that_was_kept_half_way_goes_on_without_its_runs_and_ends_as_one_run_in_one_go(trains, tmp_path):
    runs, study = tmp_path / "runs", find(trains)
    done, left = study.run.__globals__["DONE"], study.run.__globals__["LEFT"]
    # what is kept in memory from here on would make the first of all runs another
    run_study(trains, "smoke", folder=tmp_path / "before")
    left.append(len(done) + 1)
    with pytest.raises(KeyboardInterrupt):
        run_study(trains, folder=runs)
    path, kept = keep(trains, folder=runs)
    assert (path, kept) == (tmp_path / "kept" / "trains-small.json", 1)
    shutil.rmtree(runs)
    assert survey(study, "small", runs) == ["current"] + ["missing"] * 3
    left.clear()
    # the second case reads the model that was trained for the first, and is gone
    went_on = run_study(trains, folder=runs)
    assert len(done) == 2 + 4 and len(list((runs / "trains").iterdir())) == 3
    path.unlink()
    whole = run_study(trains, folder=tmp_path / "whole")
    assert len(done) == 2 + 8 and untimed(went_on) == untimed(whole)


def test_runs_of_several_machines_come_together_in_one_file_that_only_a_new_run_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.study.kept.KEPT", tmp_path / "kept")
    broken: set[int] = set()

    def run(case):
        assert case.seed not in broken
        return {"x": 1.0 + case.seed}

    made = simple(run)
    with pytest.raises(AnalysisUnavailable, match="glassformer study run made-up --scale small"):
        keep(made, folder=tmp_path)
    broken |= {1, 2}
    run_study(made, folder=tmp_path / "one")
    assert keep(made, folder=tmp_path / "one")[1] == 1
    broken ^= {0, 1}
    found = run_study(made, folder=tmp_path / "two")
    assert [run.error == "" for run in found.runs] == [True, True, False]
    path, kept = keep(made, folder=tmp_path / "two")
    before = path.read_bytes()
    assert kept == 2 and keep(made, folder=tmp_path / "three")[1] == 2 and path.read_bytes() == before
    # an error at home does not hide what elsewhere ended well
    assert survey(made, "small", tmp_path / "one") == ["current", "current", "error"]


def test_what_is_kept_of_other_code_is_outdated_and_what_is_current_stands_wherever_it_lies(tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.study.kept.KEPT", tmp_path / "kept")
    made = simple(lambda case: {"x": 1.0 + case.seed})
    run_study(made, folder=tmp_path / "home")
    path, _ = keep(made, folder=tmp_path / "home")
    whole = path.read_bytes()
    told = {name: inner for name, inner in read_json(path).items() if name != "sha256"}
    for part in told["code"]:
        part.update({name: "0" * 16 for name in part})
    seal(path, told)
    assert survey(made, "small", tmp_path / "away") == ["outdated"] * 3
    assert survey(made, "small", tmp_path / "home") == ["current"] * 3
    run_study(made, folder=tmp_path / "away")
    assert keep(made, folder=tmp_path / "away")[1] == 3 and survey(made, "small", tmp_path / "new") == ["current"] * 3
    # the other way about: what was run here is of other code
    for own in (tmp_path / "home" / "made-up").iterdir():
        record = {name: inner for name, inner in read_json(own).items() if name != "sha256"}
        seal(own, record | {"code": {name: "0" * 16 for name in record["code"]}})
    path.write_bytes(whole)
    assert survey(made, "small", tmp_path / "home") == ["current"] * 3
    path.unlink()
    assert survey(made, "small", tmp_path / "home") == ["outdated"] * 3


def test_a_file_that_could_not_be_written_anew_is_the_one_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.study.kept.KEPT", tmp_path / "kept")
    made = simple(lambda case: {"x": 1.0 + case.seed})
    run_study(made, folder=tmp_path)
    path, _ = keep(made, folder=tmp_path)
    before = path.read_bytes()

    def stopped(*places):
        raise OSError("no room")

    run_study(made, folder=tmp_path, anew=True)
    with monkeypatch.context() as broken, pytest.raises(SaveError):
        broken.setattr("os.replace", stopped)
        keep(made, folder=tmp_path)
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]
    assert len(verify(made, folder=tmp_path / "nowhere").runs) == 3


def test_functions_that_ran_for_the_same_runs_are_written_once(tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.study.kept.KEPT", tmp_path / "kept")

    def run(case):
        return {"x": twice(case.seed) if case.seed else 1.0}

    found = run_study(made := simple(run), folder=tmp_path / "runs")
    path, _ = keep(made, folder=tmp_path / "runs")
    told = read_json(path)
    assert [run["code"] for run in told["runs"]] == [[0], [0, 1], [0, 1]]
    parts = told["code"]
    names = [name for part in parts for name in part]
    assert len(names) == len(set(names)) == len({name for run in found.runs for name in run.code}) > 0
    again = verify(made, folder=tmp_path / "nowhere").runs
    assert [(run.code, list(run.code)) for run in again] == [(run.code, list(run.code)) for run in found.runs]


def test_a_study_that_no_file_holds_is_told_what_to_do(tmp_path):
    space: dict = {"__name__": "nowhere"}
    exec("def run(case):\n    return {'x': 1.0}", space)
    made = simple(space["run"])
    run_study(made, folder=tmp_path)
    assert kept_at(made, "small") is None
    with pytest.raises(AnalysisUnavailable, match="in no file"):
        keep(made, folder=tmp_path)


def test_the_command_keeps_runs_and_verifies_them_elsewhere(tmp_path, capsys):
    path = tmp_path / f"plain_{os.getpid()}.py"
    path.write_text(PLAIN, encoding="utf-8")
    plain = str(path)
    assert main(["study", "run", plain, "--folder", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert main(["study", "keep", plain, "--folder", str(tmp_path / "runs")]) == 0
    assert f"4 of 4 runs kept: {tmp_path / 'kept' / 'plain-small.json'}" in capsys.readouterr().out
    assert main(["study", "verify", plain, "--folder", str(tmp_path / "elsewhere")]) == 0
    assert "4 runs: 4 current" in capsys.readouterr().out
