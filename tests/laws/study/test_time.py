"""What a run took is CPU time, training within it included; what earlier versions measured by the clock is said so."""

import time

import pytest

from glassformer.files import read_json
from glassformer.render.page import study_page
from glassformer.study import Claim, Scale, Study, above, records, run_study, shipped, value, verify
from glassformer.study.records import Record
from glassformer.study.replay import drawn, read_replays
from glassformer.study.report import document, markdown, time_of
from glassformer.study.sealed import seal
from glassformer.study.shelf import shipped_replays_at


def made(run, **more) -> Study:
    claims = (Claim("so", "it is so", value("x"), above(0)),)
    return Study("made-up", "Nobody 2000", "Is it so?", run, claims, {"small": Scale(seeds=1)}, **more)


def seconds(run: Record) -> float:
    assert run.cpu_seconds is not None
    return run.cpu_seconds


def trained(case):
    from glassformer.data import Copy
    from glassformer.models import DecoderConfig, block, repeat
    from glassformer.training import OptimConfig, TrainConfig

    data = Copy(batch_size=2, length=4)
    model = DecoderConfig(data.build().vocab_size, 8, repeat(block(n_heads=1), 1), max_len=16)
    case.train(TrainConfig(model, data, optim=OptimConfig(lr=1e-2, warmup=1), steps=2, log_every=1, evaluate_every=2))
    return {"x": 1.0}


def test_waiting_is_no_time_and_working_is(tmp_path):
    def run(case):
        start = time.process_time()
        if case["works"]:
            while time.process_time() < start + 0.2:
                pass
        else:
            time.sleep(0.2)
        return {"x": 1.0}

    waits, works = run_study(made(run, grid={"works": (False, True)}), folder=tmp_path).runs
    assert seconds(waits) < 0.1 and 0.2 <= seconds(works) < 0.4
    assert waits.wall_seconds is None and waits.trained == waits.found == {}


def test_training_within_a_run_counts_and_a_model_that_is_found_does_not_but_is_said(tmp_path):
    first, second = run_study(made(trained, grid={"of": (1, 2)}), folder=tmp_path).runs
    ((model, spent),) = first.trained.items()
    assert spent is not None and 0 < spent <= seconds(first) and first.found == {}
    assert second.found == {model: spent} and second.trained == {} and seconds(second) < seconds(first)
    report = document(verify(made(trained, grid={"of": (1, 2)}), folder=tmp_path))
    # what a run of the report trained is not counted once more
    assert report["found"] == {} and report["trained"] == {model: spent}
    assert report["cpu_seconds"] == pytest.approx(seconds(first) + seconds(second), abs=0.06)
    alone = document(verify(made(trained, grid={"of": (2,)}), folder=tmp_path))
    assert alone["found"] == {model: spent}
    assert time_of(alone | {"found": {model: 150.0}}).endswith("2 min of CPU time to train models that were there")


def test_training_that_an_earlier_call_began_or_that_was_not_timed_is_not_known(tmp_path):
    study = made(trained, grid={"of": (1, 2)})
    run_study(study, folder=tmp_path)
    (told,) = (tmp_path / "trained").glob("*/code.json")
    seal(told, {"code": read_json(told)["code"]})
    assert [list(run.found.values()) for run in run_study(study, folder=tmp_path, anew=True).runs] == [[None]] * 2
    # stopped before what ran was written: it goes on, and the time of before is lost
    told.unlink()
    first, second = run_study(study, folder=tmp_path, anew=True).runs
    assert list(first.found.values()) == list(second.found.values()) == [None] and first.trained == {}
    assert "and an unknown time to train models that were there" in markdown(document(verify(study, folder=tmp_path)))


def test_records_reports_and_replays_of_before_are_read_and_said_to_be_by_the_clock(tmp_path):
    study = made(lambda case: {"x": 1.0})
    run_study(study, folder=tmp_path)
    path = records.place(tmp_path, "made-up", study.cases("small")[0])
    of_now = {"cpu_seconds", "wall_seconds", "trained", "found", "sha256"}
    old = {name: told for name, told in read_json(path).items() if name not in of_now}
    seal(path, old | {"format": 1, "seconds": 150.0})
    record = verify(study, folder=tmp_path).runs[0]
    assert (record.cpu_seconds, record.wall_seconds) == (None, 150.0)
    report = document(verify(study, folder=tmp_path))
    assert ", 2 min by the clock on one thread (" in markdown(report) and "CPU time" not in markdown(report)
    mixed = report | {"cpu_seconds": 30.0}
    assert ", 30 s of CPU time, 2 min by the clock on one thread (" in markdown(mixed)
    ships = shipped("rank-collapse")
    assert ships is not None
    known = {name: ships[name] for name in ("cpu_seconds", "wall_seconds")}
    assert sum(seconds is not None for seconds in known.values()) == 1 and drawn(ships) in ships["runs"]
    assert '"wall_seconds"' in study_page(ships)
    for one in read_replays(shipped_replays_at()).values():
        assert (one.cpu_seconds is None) != (one.wall_seconds is None)
