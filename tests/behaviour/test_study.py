"""Studies from outside: what is run is kept, what is stopped goes on, what breaks decides nothing."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from glassformer.cli import main
from glassformer.data.text.sources import _installed_part, python_stdlib
from glassformer.errors import AnalysisUnavailable, CheckpointError, ConfigError
from glassformer.files import read_json
from glassformer.studies.sparse_probing_texts import PACKAGES
from glassformer.study import (
    MAJORITY,
    Claim,
    Condition,
    Measure,
    Scale,
    Study,
    above,
    below,
    counted,
    find,
    names,
    run_study,
    shipped,
    survey,
    value,
    verify,
)
from glassformer.study.claims import VERDICTS
from glassformer.study.records import TIME
from glassformer.study.replay import drawn, read_replays, replay, replay_reports
from glassformer.study.report import (
    chance_in_words,
    decided_anew,
    document,
    found_in_words,
    markdown,
    outdated,
    tallied,
    write_report,
)
from glassformer.study.sealed import seal
from glassformer.study.shelf import read_report
from one_pass import in_one_pass

OWN = '''"""Noise has mean zero."""

import torch

from glassformer.study import Claim, Measure, Scale, Study, above, value, within

SHIFT = 0.0


def run(case):
    """Draw."""
    drawn = torch.randn(case["n"], generator=case.generator()) * case["width"] + SHIFT
    return {"mean": float(drawn.mean()), "spread": lambda: float(drawn.std())}


STUDY = Study(
    "noise", paper="Nobody 2000", question="Is it noise?", run=run, grid={"width": (1, 4)},
    scales={"smoke": Scale(seeds=2, settings={"n": 10}), "small": Scale(seeds=4, settings={"n": 400})},
    measures={"mean": Measure("Mean of what is drawn"), "spread": Measure("Its standard deviation", "units")},
    claims=(
        Claim("mean", "The mean is 0", value("mean", width=1), within(0.2, 0)),
        Claim("spread", "Wide noise is narrow", value("spread", width=4), within(0.5, 1)),
    ),
)
'''


@pytest.fixture
def own(tmp_path) -> str:
    path = tmp_path / f"noise_{os.getpid()}_{time.monotonic_ns()}.py"
    path.write_text(OWN, encoding="utf-8")
    return str(path)


def study(run, claims, **more) -> Study:
    return Study("made-up", "Nobody 2000", "Is it so?", run, claims, {"small": Scale(seeds=2)}, **more)


def test_a_study_of_ones_own_is_run_and_its_claims_may_fail(own, tmp_path):
    found = run_study(own, "small", folder=tmp_path / "runs")
    assert [decision.verdict for decision in found.decisions] == ["holds", "fails"]
    assert len(found.runs) == 8 and survey(find(own), "small", tmp_path / "runs") == ["current"] * 8
    assert [d.verdict for d in verify(own, "small", folder=tmp_path / "runs").decisions] == ["holds", "fails"]


@pytest.mark.full
def test_runs_that_are_there_are_not_run_again_and_several_jobs_give_the_same(own, tmp_path):
    alone = run_study(own, "small", folder=tmp_path / "one")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*.json")}
    run_study(own, "small", folder=tmp_path / "one")
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*.json")}
    beside = run_study(own, "small", folder=tmp_path / "two", jobs=2)
    assert [run.measures for run in alone.runs] == [run.measures for run in beside.runs]
    assert [run.code for run in alone.runs] == [run.code for run in beside.runs]


def test_an_error_ends_its_run_decides_nothing_and_is_run_again(tmp_path):
    broken = [True]

    def run(case):
        if broken[0] and case.seed == 1:
            raise RuntimeError("no luck")
        return {"x": 1.0 + case.seed / 100}

    made = study(run, (Claim("so", "it is so", value("x"), above(0)),))
    found = run_study(made, folder=tmp_path)
    assert found.decisions[0].verdict == "undecided" and "RuntimeError: no luck" in found.decisions[0].why
    assert survey(made, "small", tmp_path) == ["current", "error"]
    broken[0] = False
    assert run_study(made, folder=tmp_path).decisions[0].verdict == "holds"


def test_where_an_analysis_is_not_defined_the_claim_says_so(tmp_path):
    def run(case):
        def refuse():
            raise AnalysisUnavailable("there is no pattern")

        return {"x": 1.0, "y": refuse}

    made = study(run, (Claim("x", "x", value("x"), above(0), exact="it is 1"), Claim("y", "y", value("y"), above(0))))
    found = run_study(made, folder=tmp_path)
    assert [decision.verdict for decision in found.decisions] == ["holds", "not defined"]
    assert "there is no pattern" in found.decisions[1].why


def test_the_report_says_what_was_expected_first(tmp_path):
    def run(case):
        return {"x": 1.0 + case.seed / 100}

    for expected in (above(2), above(0.5), above(0.5)):
        found = run_study(study(run, (Claim("so", "it is so", value("x"), expected),)), folder=tmp_path)
        path = write_report(found, tmp_path / "report")
    claim = read_json(path)["claims"][0]
    assert claim["expected"] == "above 0.5" and claim["verdict"] == "holds"
    assert [(old["expected"], old["verdict"]) for old in claim["earlier"]] == [("above 2", "fails")]
    told = (path.parent / "report.md").read_text(encoding="utf-8")
    assert "it is so: before this, x was expected above 2 (2 seeds), and the verdict was: fails." in told
    assert outdated(read_json(path)) == []


@pytest.mark.full
def test_code_that_changed_is_run_again_and_words_are_not(own, tmp_path):
    command = [sys.executable, "-m", "glassformer", "study", "run", own, "--scale", "smoke", "--folder", str(tmp_path)]

    def runs() -> dict[Path, float]:
        subprocess.run(command, check=True, capture_output=True)
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "noise").glob("*.json")}

    first = runs()
    assert len(first) == 4
    Path(own).write_text(OWN.replace('"""Draw."""', '"""Draw noise."""'), encoding="utf-8")
    assert runs() == first
    Path(own).write_text(OWN.replace("SHIFT = 0.0", "SHIFT = 1.0"), encoding="utf-8")
    assert all(runs()[path] > then for path, then in first.items())


SLOW = """
from glassformer.study import Claim, Scale, Study, above, value
from glassformer.training import OptimConfig, TrainConfig
from glassformer.data import Copy
from glassformer.models import DecoderConfig, block, repeat
import glassformer as gf


def run(case):
    data = Copy(batch_size=2, length=8)
    model = DecoderConfig(data.build().vocab_size, 8, repeat(block(n_heads=1), 1), max_len=32)
    optim = OptimConfig(lr=1e-3, warmup=1)
    recipe = TrainConfig(model, data, optim=optim, steps=800, log_every=10, evaluate_every=800, save_every=800)
    folder = case.train(recipe)
    return {"size": sum(float(p.sum()) for p in gf.load(folder).parameters())}


STUDY = Study(
    "slow", paper="Nobody 2000", question="Does it end?", run=run, grid={},
    scales={"small": Scale(seeds=2)}, claims=(Claim("size", "It has a size", value("size"), above(-1e9)),),
)
"""


@pytest.mark.full
def test_what_is_interrupted_goes_on_and_ends_alike(tmp_path):
    path = tmp_path / f"slow_{os.getpid()}.py"
    path.write_text(SLOW, encoding="utf-8")

    def command(folder: str) -> list[str]:
        return [sys.executable, "-m", "glassformer", "study", "run", str(path), "--folder", str(tmp_path / folder)]

    stopped = subprocess.Popen(command("stopped"), stderr=subprocess.PIPE, text=True, start_new_session=True)
    trained = tmp_path / "stopped" / "trained"
    while not list(trained.glob("*/metrics.jsonl")):
        assert stopped.poll() is None, stopped.communicate()[1]
        time.sleep(0.05)
    os.killpg(stopped.pid, signal.SIGINT)
    assert "the same command goes on" in stopped.communicate(timeout=60)[1] and stopped.returncode == 130
    subprocess.run(command("stopped"), check=True, capture_output=True)
    subprocess.run(command("whole"), check=True, capture_output=True)
    ends = [
        sorted(json.dumps(read_json(run)["measures"]) for run in (tmp_path / folder / "slow").glob("*.json"))
        for folder in ("stopped", "whole")
    ]
    assert ends[0] == ends[1] and len(ends[0]) == 2


def test_the_command_lists_shows_and_verifies(own, tmp_path, capsys):
    folder = ["--folder", str(tmp_path / "runs")]
    assert main(["study", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in names())
    assert main(["study", "report", own, *folder]) == 2
    assert "glassformer study run" in capsys.readouterr().err
    assert main(["study", "run", own, *folder]) == 0
    assert "fails" in capsys.readouterr().out
    assert main(["study", "report", own, "--json", *folder]) == 0
    assert json.loads(capsys.readouterr().out)["study"] == "noise"
    assert main(["study", "verify", own, *folder]) == 0
    assert "8 runs: 8 current" in capsys.readouterr().out
    report = next((tmp_path / "runs").rglob("report.json"))
    told = read_json(report)
    told["claims"][1]["verdict"] = "holds"
    report.write_text(json.dumps(told), encoding="utf-8")
    assert main(["study", "verify", own, *folder]) == 2
    assert "was changed or damaged" in capsys.readouterr().err
    seal(report, {name: inner for name, inner in told.items() if name != "sha256"})
    assert main(["study", "verify", own, *folder]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "scaled-score"], 'no study "scaled-score". Nearest: "scaled-scores"'),
        (["run"], "takes the names of studies"),
        (["run", "nowhere.py"], 'no Python file "nowhere.py"'),
        (["run", "/dev/null"], 'no Python file "/dev/null"'),
        (["run", "scaled-scores", "--scale", "full"], 'has no scale "full". Scales: smoke, small'),
    ],
)
def test_what_is_not_there_is_named(arguments, said, capsys):
    assert main(["study", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grid": {"kind": ("a",)}, "claims": (Claim("x", "x", value("x", king="a"), above(0)),)}, 'Nearest: "kind"'),
        ({"claims": ()}, "claims nothing"),
        ({"scales": {"huge": Scale()}}, 'no scale "huge"'),
        ({"scales": {"full": Scale()}}, "has no small scale"),
        ({"claims": (Claim("It is so", "x", value("x"), above(0)),)}, '"It is so" is not in lower case with hyphens'),
        ({"claims": (Claim("x", "x", value("x"), above(0)),) * 2}, 'two claims have the name "x"'),
    ],
)
def test_a_study_that_asks_for_what_it_has_not_is_refused(changes, said):
    whole = {"claims": (Claim("x", "x", value("x"), below(0)),), "scales": {"small": Scale()}} | changes
    with pytest.raises(ConfigError, match=said):
        Study("made-up", "Nobody 2000", "Is it so?", lambda case: {}, **whole)


BY_KIND = {"grid": {"kind": ("reference", "new")}, "scales": {"small": Scale()}}
LEARNS = value("learned", kind="reference")


@pytest.mark.parametrize(
    ("quantity", "condition", "references", "said"),
    [
        (value("x", kind="new"), LEARNS, {"kind": ("reference",)}, None),
        (
            value("x", kind="new"),
            value("learned", kind="new"),
            {"kind": ("reference",)},
            "is of a reference, and these",
        ),
        (value("x", kind="new"), value("learned"), {"kind": ("reference",)}, "is of a reference, and these"),
        (value("x", kind="new"), LEARNS - value("x", kind="new"), {"kind": ("reference",)}, "is of a reference"),
        (value("x", kind="new"), LEARNS, {}, "and these are: none"),
        (value("x", kind="new"), LEARNS, {"kind": ("old",)}, "no case has kind=old, which is a reference"),
        (counted(LEARNS, below(1)), LEARNS, {"kind": ("reference",)}, '"so" is given itself'),
        (value("x", kind="new"), counted(LEARNS, below(1)), {"kind": ("reference",)}, "as conditions do anyhow"),
        (value("x", kind="new"), value("y", kind="reference"), {"kind": ("reference",)}, "not among its measures"),
        (value("learned", kind="new"), LEARNS, {"kind": ("reference",)}, "takes the mean of learned, which a run has"),
    ],
)
def test_a_condition_is_of_a_reference_and_never_of_what_is_claimed_about(quantity, condition, references, said):
    claim = Claim("so", "it is so", quantity, MAJORITY, (Condition("the reference learns", condition, below(1)),))
    made = {
        "measures": {"x": Measure("x"), "learned": Measure("it is learned", learned=True)},
        "references": references,
    }
    if said is None:
        assert Study("made-up", "", "", lambda case: {}, (claim,), **BY_KIND, **made).references == references
        return
    with pytest.raises(ConfigError, match=said):
        Study("made-up", "", "", lambda case: {}, (claim,), **BY_KIND, **made)


def learning(seeds: int, learn: float, text: str = "it is small", steps: int = 1, **named: str) -> Study:
    """Return a study of a new kind, whose reference learns in a share of seeds, the first ones."""

    def run(case):
        return {"x": 1.0 + case.seed / 100, "learned": 0.0 if case.seed < learn * seeds else 1.0}

    given = (Condition("The reference learns", value("learned", kind="reference"), below(0.5)),)
    claim = Claim(named.get("name", "small"), text, value("x", kind="new"), below(2), given)
    return Study(
        "made-up", "Nobody 2000", "Is it so?", run, (claim,), {"small": Scale(seeds, {"steps": steps})},
        {"kind": ("reference", "new")}, references={"kind": ("reference",)},
    )  # fmt: skip


def test_a_claim_that_is_not_testable_is_counted_apart_and_says_why_everywhere(tmp_path):
    path = write_report(run_study(learning(3, 0.5), folder=tmp_path), tmp_path / "report")
    report = read_json(path)
    assert [claim["verdict"] for claim in report["claims"]] == ["not testable here"]
    assert report["claims"][0]["given"][0] == {
        "text": "The reference learns", "quantity": "learned (kind=reference)", "expected": "below 0.5",
        "range": {"low": None, "high": 0.5}, "values": {"0": 0.0, "1": 0.0, "2": 1.0}, "met": False,
    }  # fmt: skip
    assert tallied(report) == "1 not testable here" and report["chance"] == {"by_interval": 0, "false_holds": 0}
    told = (path.parent / "report.md").read_text(encoding="utf-8")
    assert "**not testable here**" in told and '"The reference learns" is not met: learned (kind=reference)' in told
    held = document(run_study(learning(3, 1), folder=tmp_path, anew=True))
    assert tallied(held) == "1 hold" and held["chance"] == {"by_interval": 1, "false_holds": 0.025}
    assert "1 of which a 95 % interval over seeds decides" in chance_in_words(held)
    assert "were none of these 1 true, 0.025 would be expected to hold" in chance_in_words(held)


def test_history_follows_the_name_of_a_claim_and_remembers_of_what_it_was_decided(tmp_path):
    def report(before=None, **more):
        return json.loads(json.dumps(document(run_study(learning(3, 1, **more), folder=tmp_path), before)))

    first = report()
    said_otherwise = report(first, text="in other words")["claims"][0]
    assert said_otherwise["text"] == "in other words" and said_otherwise["earlier"] == []
    longer = report(first, steps=2)
    (old,) = longer["claims"][0]["earlier"]
    assert (old["seeds"], old["settings"], old["grid"]) == (3, {"steps": 1}, {"kind": ["reference", "new"]})
    assert (old["verdict"], old["expected"]) == ("holds", "below 2") and old["given"][0]["met"]
    assert report(longer, steps=2)["claims"][0]["earlier"] == [old]
    # what is under another name is another claim
    assert report(longer, name="other")["claims"][0]["earlier"] == []
    first["code"]["test_study:learning"] = "other code of the study itself"
    assert len(report(first)["claims"][0]["earlier"]) == 1


def test_a_report_of_the_first_version_is_read_and_its_claims_are_known_by_their_sentences(tmp_path):
    path = tmp_path / "report.json"
    made = document(run_study(learning(3, 1), folder=tmp_path))
    # its claims had no names, and its time was that of the clock
    first = {name: told for name, told in made.items() if name not in {"chance", *TIME}} | {"version": 1, "seconds": 2}
    first["runs"] = [
        {name: told for name, told in run.items() if name not in TIME} | {"seconds": 1} for run in made["runs"]
    ]
    new = ("name", "counts", "exact", "given", "near")
    first["claims"] = [{name: told for name, told in claim.items() if name not in new} for claim in made["claims"]]
    first["claims"][0]["earlier"] = [{"expected": "above 7", "range": {"low": 7, "high": None}, "verdict": "fails"}]
    seal(path, first)
    read = read_report(path, "made-up", "small")
    assert read is not None and read["claims"][0]["name"] == "" and read["chance"]["by_interval"] == 1
    again = document(run_study(learning(3, 1), folder=tmp_path), read)["claims"][0]
    # it had no condition then
    assert [old["expected"] for old in again["earlier"]] == ["above 7", "below 2"] and again["name"] == "small"
    told = markdown(document(run_study(learning(3, 1), folder=tmp_path), read))
    assert "expected below 2 (3 seeds, steps=1, nothing given), and the verdict was: holds" in told
    assert "expected above 7 (scale not recorded, nothing given), and the verdict was: fails" in told


def test_what_ships_is_shown_where_nothing_was_run_and_says_if_it_is_older(tmp_path, monkeypatch, capsys):
    shown = [name for name in names() if shipped(name)]
    assert shown
    for name in shown:
        report = shipped(name)
        assert report is not None and report["scale"] == "small" and report["study"] == name
        assert decided_anew(find(name), report) == report, "python -m glassformer.studies --decide puts them there"
        assert not any(run["error"] for run in report["runs"])
    assert main(["study", "report", shown[0], "--folder", str(tmp_path)]) == 0
    assert shown[0] in capsys.readouterr().out
    monkeypatch.setattr("glassformer.study.report.changed", lambda code: ["glassformer.models.block:Block.forward"])
    assert main(["study", "report", shown[0], "--folder", str(tmp_path)]) == 0
    assert "of earlier code: glassformer.models.block:Block.forward changed since" in capsys.readouterr().out


def test_a_report_is_written_as_a_page_that_holds_it(tmp_path, capsys):
    page, folder = tmp_path / "page.html", ["--folder", str(tmp_path)]
    assert main(["study", "report", "rank-collapse", "--html", str(page), *folder]) == 0
    assert "report: " in capsys.readouterr().out
    carried = page.read_text(encoding="utf-8").partition('id="study">')[2].partition("</script>")[0]
    assert json.loads(carried) == shipped("rank-collapse")
    for asked in (["list"], ["report", "rank-collapse", "dispersion"], ["verify", "rank-collapse"]):
        assert main(["study", *asked, "--html", str(page), *folder]) == 2
        assert "--html writes the page of one study" in capsys.readouterr().err


@pytest.fixture(scope="module")
def short_library(tmp_path_factory) -> Iterator[None]:
    """Let the standard library be a quarter of its files, and the packages that studies ask for by name."""
    folder, whole = tmp_path_factory.mktemp("library"), sysconfig.get_paths
    root = Path(whole()["stdlib"])
    for i, file in enumerate(python_stdlib()):
        if i % 4 == 0 or file.name.startswith(PACKAGES):
            (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.name).symlink_to(root / file.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sysconfig, "get_paths", lambda *given, **named: whole(*given, **named) | {"stdlib": str(folder)})
        # what was read of either library is not of the other
        _installed_part.cache_clear()
        yield
    _installed_part.cache_clear()


@pytest.mark.full
@pytest.mark.parametrize("name", names())
def test_the_smoke_of_a_study_runs(name, short_library, tmp_path):
    found = run_study(name, "smoke", folder=tmp_path)
    assert [run.error for run in found.runs if run.error] == []
    made = document(found)
    assert {claim["verdict"] for claim in made["claims"]} <= set(VERDICTS)


@in_one_pass
@pytest.mark.parametrize(
    ("mean", "low", "high", "said"),
    [
        (0.99234, 0.97123, 1.0131, "0.992 [0.971, 1.013]"),
        (3e-14, 3.1e-15, 5.69e-14, "3e-14 [3.1e-15, 5.7e-14]"),
        (1234.5, 1000.0, 1469.0, "1234 [1000, 1469]"),
        (174.6123, 174.6123, 174.6123, "174.6"),
        (0.5, None, None, "0.5"),
        (None, None, None, ""),
    ],
)
def test_what_was_measured_is_said_to_two_digits_of_its_interval(mean, low, high, said):
    assert found_in_words({"mean": mean, "low": low, "high": high, "counts": None}) == said


def test_seeds_that_are_counted_are_told_with_the_interval_of_their_share():
    claim = {"mean": 0.6, "low": 0.245, "high": 0.915, "values": dict.fromkeys("01234", 1.0)}
    assert found_in_words(claim | {"counts": {"count": 3}}) == "3 of 5 seeds [0.24, 0.92]"


def test_an_expectation_of_equal_numbers_in_other_words_is_no_change(own, tmp_path):
    found = run_study(own, "small", folder=tmp_path / "runs")
    before = json.loads(json.dumps(document(found)))
    before["claims"][0]["expected"] = "said otherwise"
    assert document(found, before)["claims"][0]["earlier"] == []
    before["claims"][0]["range"] = {"low": 1.5, "high": None}
    assert [one["expected"] for one in document(found, before)["claims"][0]["earlier"]] == ["said otherwise"]


def noise(shift: float = 0.0, salt: int = 0) -> Study:
    """Return a study of noise: all of it drawn otherwise with another salt, and moved by a shift."""

    def run(case):
        numbers = torch.randn(50, generator=torch.Generator().manual_seed(case.seed + salt)) + shift
        return {"mean": float(numbers.mean()), "first": float(numbers[0]), "none": refuse}

    def refuse():
        raise AnalysisUnavailable("not here")

    return study(run, (Claim("none", "none", value("mean"), above(0)),), grid={"x": (1, 2)})


def test_a_replay_tells_equal_numbers_from_those_of_another_seed_and_from_others(tmp_path):
    report = json.loads(json.dumps(document(run_study(noise(), folder=tmp_path))))
    assert replay(noise(), report, tmp_path).outcome == "equal"
    another = replay(noise(salt=100), report, tmp_path)
    assert another.outcome == "agrees" and {one.name: one.outcome for one in another.measures}["none"] == "equal"
    moved = replay(noise(shift=50.0), report, tmp_path)
    assert moved.outcome == "differs" and moved.said().startswith("Stale: one run") and "mean is " in moved.said()
    # what is not defined any more, what is new and what breaks differ too
    for measures in ({"mean": 0.0}, {"mean": 0.0, "first": 0.0, "none": 1.0}):
        assert (
            replay(study(lambda case, m=measures: m, noise().claims, grid=noise().grid), report, tmp_path).outcome
            == "differs"
        )
    broken = replay(study(lambda case: 1 / 0, noise().claims, grid=noise().grid), report, tmp_path)
    assert (broken.outcome, broken.why) == ("differs", "ZeroDivisionError: division by zero")
    assert list(tmp_path.glob("replay-*")) == []


def test_the_run_that_is_made_again_is_cheap_and_depends_on_neither_order_nor_time():
    runs = [{"point": {"x": i}, "seed": 0, "cpu_seconds": float(i), "key": str(i), "error": ""} for i in range(9)]
    broken = {"point": {"x": -1}, "seed": 0, "cpu_seconds": 0.0, "key": "", "error": "no luck"}
    chosen = {name: drawn({"study": name, "runs": [broken, *runs]})["key"] for name in map(str, range(30))}
    assert chosen == {name: drawn({"study": name, "runs": runs[::-1]})["key"] for name in chosen}
    assert set(chosen.values()) == {"0", "1", "2"}
    with pytest.raises(AnalysisUnavailable, match="nothing to make again"):
        drawn({"study": "x", "runs": [broken]})


def test_replays_go_on_where_they_were_stopped_and_are_made_again_when_code_changes(own, tmp_path, monkeypatch):
    report = document(run_study(own, folder=tmp_path))
    made: list[str] = []

    def counted(*args):
        made.append(report["study"])
        return replay(*args)

    monkeypatch.setattr("glassformer.study.replay.replay", counted)
    found = replay_reports({own: report}, tmp_path / "replays.json", tmp_path)
    assert [one.outcome for one in found.values()] == ["equal"]
    assert replay_reports({own: report}, tmp_path / "replays.json", tmp_path) == found and len(made) == 1
    assert read_replays(tmp_path / "replays.json") == found
    Path(own).write_text(OWN.replace("SHIFT = 0.0", "SHIFT = 9.0"), encoding="utf-8")
    assert not found[own].is_current(report)
    replay_reports({own: report}, tmp_path / "replays.json", tmp_path)
    assert len(made) == 2
    (tmp_path / "replays.json").write_text("{}", encoding="utf-8")
    for anew in (False, True):
        with pytest.raises(CheckpointError, match="holds no replays"):
            replay_reports({own: report}, tmp_path / "replays.json", tmp_path, anew=anew)
    assert len(made) == 2  # it is read before anything runs


def test_an_interrupted_replay_keeps_what_was_finished_and_leaves_nothing_half_written(own, tmp_path, monkeypatch):
    report, path = document(run_study(own, folder=tmp_path / "runs")), tmp_path / "replays.json"
    made: list[str] = []

    def interrupted(study, *rest):
        made.append(study.name)
        if len(made) == 2:
            raise KeyboardInterrupt
        return replay(study, *rest)

    monkeypatch.setattr("glassformer.study.replay.replay", interrupted)
    other = Path(own).with_name("other.py")
    other.write_text(OWN, encoding="utf-8")
    reports = {own: report, str(other): report}
    with pytest.raises(KeyboardInterrupt):
        replay_reports(reports, path, tmp_path)
    assert list(read_replays(path)) == [own]
    assert list(replay_reports(reports, path, tmp_path)) == [own, str(other)] and len(made) == 3
    assert list(tmp_path.glob("replay-*")) == [] and set(read_replays(path)) == {own, str(other)}


@pytest.mark.full
def test_the_command_replays_a_report_and_names_what_is_stale(own, tmp_path, capsys):
    folder = ["--folder", str(tmp_path / "runs")]
    assert main(["study", "run", own, *folder]) == 0
    assert main(["study", "verify", "--replay", own, *folder]) == 0
    assert "1 equal, 0 agrees, 0 differs" in capsys.readouterr().out
    report = next((tmp_path / "runs").rglob("report.json"))
    told = read_json(report)
    del told["sha256"]
    for run in told["runs"]:
        run["measures"]["mean"] += 7.0
    seal(report, told)
    assert main(["study", "verify", "--replay", own, "--anew", "--json", *folder]) == 1
    assert json.loads(capsys.readouterr().out)[own]["outcome"] == "differs"
    assert main(["study", "run", "--replay", own, *folder]) == 2
    assert "glassformer study verify --replay" in capsys.readouterr().err
