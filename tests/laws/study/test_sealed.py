"""What studies keep is taken as it was written, or refused by name and with what to do; no damage decides a claim."""

import json
import os
from pathlib import Path

import pytest

from glassformer.cli import main
from glassformer.errors import CheckpointError
from glassformer.files import read_json
from glassformer.study import Claim, Scale, Study, above, keep, records, run_study, shipped, survey, value, verify
from glassformer.study.replay import keep_replay, read_replays, replay
from glassformer.study.report import write_report
from glassformer.study.sealed import seal
from glassformer.study.shelf import read_report, shipped_replays_at

MADE = Study(
    "made-up",
    paper="Nobody 2000",
    question="Is it so?",
    run=lambda case: {"x": case["at"] + case.seed / 100, "none": float("nan")},
    claims=(Claim("so", "it is so", value("x", at=1), above(0)),),
    scales={"small": Scale(seeds=2)},
    grid={"at": (1, 2)},
)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Return files of each kind, and what reads each."""
    monkeypatch.setattr("glassformer.study.kept.KEPT", tmp_path / "kept")
    found = run_study(MADE, folder=tmp_path)
    report = write_report(found, tmp_path / "made-up" / "small")
    told = read_report(report, "made-up", "small")
    assert told is not None
    keep_replay(tmp_path / "replays.json", "made-up", replay(MADE, told, tmp_path))
    kept, _ = keep(MADE, folder=tmp_path)
    record = records.place(tmp_path, "made-up", MADE.cases("small")[0])
    return {
        record: lambda: verify(MADE, folder=tmp_path),
        kept: lambda: verify(MADE, folder=tmp_path / "nothing was run here"),
        report: lambda: read_report(report, "made-up", "small"),
        tmp_path / "replays.json": lambda: read_replays(tmp_path / "replays.json"),
    }


def changed(data, change):
    """Return JSON data with its first number that is no version changed, however deep."""
    if isinstance(data, dict):
        for name, inner in data.items():
            if name not in {"format", "version"} and (made := changed(inner, change)) is not None:
                return data | {name: made}
    elif isinstance(data, list):
        for i, inner in enumerate(data):
            if (made := changed(inner, change)) is not None:
                return [*data[:i], made, *data[i + 1 :]]
    elif isinstance(data, int | float) and not isinstance(data, bool):
        return change(data)
    return None


def damages(text: str) -> dict[str, bytes]:
    """Return what a file may hold in place of a text, by what was done to it."""
    data = json.loads(text)
    deep = '{"a": ' * 100_000 + "1" + "}" * 100_000
    made = {
        "nothing": "",
        "truncated": text[: len(text) // 2],
        "not its kind": json.dumps([data]),
        "no object": "3",
        "another number": json.dumps(changed(data, lambda x: x + 1)),
        "a number in its last bit": json.dumps(changed(data, lambda x: x + 1e-15 if x else 5e-324)),
        "text for a number": json.dumps(changed(data, str)),
        "null for a number": json.dumps(changed(data, lambda x: [])),
        "not a number": json.dumps(changed(data, lambda x: float("nan"))),
        "infinity": json.dumps(changed(data, lambda x: float("inf"))),
        "beyond infinity": json.dumps(changed(data, lambda x: 0.123)).replace("0.123", "1e999"),
        "more digits than are read": json.dumps(changed(data, lambda x: 0.123)).replace("0.123", "9" * 5000),
        "an entry more": json.dumps(data | {"more": 1}),
        "a name twice": text.replace("{", '{\n "format": 7,', 1),
        "no digest": json.dumps({name: inner for name, inner in data.items() if name != "sha256"}),
        "another digest": json.dumps(data | {"sha256": "0" * 64}),
        "a digest that is none": json.dumps(data | {"sha256": {}}),
        "nested too deeply": deep,
        "nested too deeply within": text.replace("{", '{\n "more": ' + deep + ",", 1),
    }
    for name in data:
        made[f"no {name}"] = json.dumps({other: inner for other, inner in data.items() if other != name})
    return {name: said.encode() for name, said in made.items()} | {"not UTF-8": text.encode("utf-16")}


def test_whatever_happens_to_a_file_it_is_refused_by_its_name(files):
    for path, read in files.items():
        whole = path.read_bytes()
        for name, content in damages(whole.decode()).items():
            path.write_bytes(content)
            with pytest.raises(CheckpointError) as refused:
                read()
            assert str(path) in str(refused.value) and "\n    " in str(refused.value), (path.name, name)
        path.write_bytes(whole)
        read()
        # spaces and the order of names are nothing that is measured
        path.write_text(json.dumps(json.loads(whole), sort_keys=True), encoding="utf-8")
        read()


def test_what_was_sealed_anew_is_still_of_its_shape(files):
    for path, read in files.items():
        data = read_json(path)
        data.pop("sha256")
        for name in data:
            for wrong in ({other: inner for other, inner in data.items() if other != name}, data | {name: [True]}):
                seal(path, wrong)
                with pytest.raises(CheckpointError, match=r"lacks|cannot be|is no"):
                    read()
        seal(path, data | {"format": "glassformer.other" if isinstance(data["format"], str) else 7})
        with pytest.raises(CheckpointError, match=r"expected|reads"):
            read()


def test_no_pipe_folder_or_loose_link_is_waited_for_or_replaced(files, tmp_path):
    for path, read in files.items():
        whole = path.read_bytes()
        for made in (os.mkfifo, os.mkdir, lambda at: os.symlink(tmp_path / "nowhere", at)):
            path.unlink()
            made(path)
            with pytest.raises(CheckpointError, match="is no regular file"):
                read()
            if path.parent.name == "made-up":
                for anew in (False, True):
                    with pytest.raises(CheckpointError, match="is no regular file"):
                        run_study(MADE, folder=tmp_path, anew=anew)
            os.rmdir(path) if path.is_dir() else os.unlink(path)
            path.write_bytes(whole)


def test_a_record_under_the_name_of_another_is_none(files, tmp_path):
    places = [records.place(tmp_path, "made-up", case) for case in MADE.cases("small")]
    places[1].write_bytes(places[0].read_bytes())
    with pytest.raises(CheckpointError, match="record of another case"):
        verify(MADE, folder=tmp_path)
    run_study(MADE, folder=tmp_path, anew=True)
    assert survey(MADE, "small", tmp_path) == ["current"] * 4


def test_what_is_no_number_is_read_as_it_was_measured(files, tmp_path):
    run = verify(MADE, folder=tmp_path).runs[0]
    assert run.measures["none"] != run.measures["none"] and run.measured().measures["x"] == 1.0


def test_the_command_says_so_before_anything_runs(tmp_path, capsys):
    place = tmp_path / "scaled-scores" / "smoke" / "report.json"
    place.parent.mkdir(parents=True)
    place.write_text("{}", encoding="utf-8")
    for action in ("run", "report", "verify"):
        assert main(["study", action, "scaled-scores", "--scale", "smoke", "--folder", str(tmp_path)]) == 2
        told = capsys.readouterr().err
        assert str(place) in told.replace("\n", "") and "Remove it, and glassformer study run" in told
    assert [path for path in tmp_path.rglob("*.json") if path != place] == []


def test_what_comes_with_the_package_has_its_digests():
    paths = [path for path in (shipped_replays_at().parent / "found").iterdir() if path.suffix == ".json"]
    assert all(shipped(Path(path).stem) is not None for path in paths)
    assert set(read_replays(shipped_replays_at())) == {path.stem for path in paths}
