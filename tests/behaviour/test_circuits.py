"""`glassformer circuits`: every model gets a report, and what cannot be read is one sentence and exit code 2."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import glassformer as gf
from explanations import TEXT, gpt, translator
from glassformer.analysis.heads.roles import heads
from glassformer.analysis.reports import circuits
from glassformer.cli import main
from glassformer.cli.progress import progress
from glassformer.data import Batch
from glassformer.data.batch import next_token_batch
from glassformer.data.text.sources import PACKAGE
from glassformer.handmade import induction_model
from glassformer.render.page import circuits_page
from glassformer.render.terminal.tables import tables
from glassformer.testing.models import ARCHITECTURES, subject
from glassformer.training import train
from glassformer.training.recipes import PACKAGES
from one_pass import first_of
from reports import SAMPLES, sample
from tiny_runs import recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with models, a run and texts."""
    found = tmp_path_factory.mktemp("circuits")
    mute = gpt()
    gf.save(mute, found / "model")
    mute.tokenizer = None
    gf.save(mute, found / "mute")
    gf.save(translator(), found / "translator")
    gf.save(induction_model(vocab=6, max_len=11), found / "hand")
    train(recipe(steps=4), found / "run")
    for name, text in {"code.txt": TEXT * 4, "short.txt": "ab", "blank.txt": " \n", "file": "in the way"}.items():
        (found / name).write_text(text)
    (found / "empty").mkdir()
    return found


@pytest.fixture(autouse=True)
def in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


BAD = {
    "": "give a model",
    "nope": 'no model "nope"',
    "attn-only-2": 'Nearest: "attn-only-2l"',
    "gpt2-small": "is a preset",
    "model --data code.txt --heads L0H99": 'no head "L0H99". Nearest: "L0H',
    "model --data code.txt --rows 0": "--rows must be at least 1, found 0",
    "model --top 0": "--top must be at least 1, found 0",
    "model --seed 99999999999999999999": "--seed must fit in 64 bits",
    "model --seed 9223372036854775807": "--seed must be in 0 to",
    "model --data blank.txt": "no usable text",
    "model --data nothing.txt": 'no file "nothing.txt"',
    "model --data empty": 'the folder "empty" holds no files',
    "model --data code.txt --html file/page.html": "cannot write",
    "model --data code.txt --json empty": "it is a folder",
    "model --data code.txt --html same --json same": "--html and --json would both write",
    "mute --data code.txt": "this one has no tokenizer",
    "translator --data code.txt": "this one reads pairs of texts",
    "hand --data code.txt": "words outside the vocabulary",
    "--run nowhere": "is no run folder",
    "--run empty": "is no run folder",
    "--run file": "is no run folder",
    "hand --run run": "brings its own 20 symbols",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_a_sentence_and_exit_code_2(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path().rglob("*"))
    assert main(["circuits", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert BAD[arguments] in err and "Traceback" not in out + err
    assert sorted(Path().rglob("*")) == before


GOOD = {
    "model --data short.txt --top 2": ["Heads by role", "Bandwidth: heads read"],
    "mute --top 2": ["Not available: ablation: ablation needs text"],
    "translator --rows 2 --top 2": ["Heads by role"],
    "hand --top 2": ["L1H0 is an induction head", "Its keys read what L0H0"],
    "--run run --top 2": ["Heads by role"],
}


@pytest.mark.full
@pytest.mark.parametrize("arguments", first_of(GOOD))
def test_every_kind_of_model_gets_a_report(
    arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["circuits", *arguments.split()]) == 0
    out = capsys.readouterr().out
    assert [words for words in GOOD[arguments] if words not in " ".join(out.split())] == []
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.full
@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_how_far_it_is_and_a_file_holds_no_trace_of_it(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.cli.progress.PATIENCE", 0.0)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["circuits", "hand", "--top", "2"]) == 0
    err = capsys.readouterr().err
    assert ("ETA" in err and "token pairs" in err and "11/11" in err) if terminal else err == ""


def test_what_is_done_in_a_moment_shows_no_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("a moment") as report:
        report(1, 2)
    assert capsys.readouterr().err == ""


def test_missing_text_is_asked_for_by_the_name_of_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["circuits", "hand", "--top", "1"]) == 0
    assert "--data on the command line" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("text", [True, False], ids=["with-text", "without"])
def test_steps_done_rise_to_all_of_them(text: bool) -> None:
    chosen = subject("gpt2", batch=3, length=12)
    told: list[tuple[int, int, str]] = []
    batches = [next_token_batch(chosen.inputs[-1])] if text else []
    circuits(chosen.model, *batches, k=1, report=lambda *step: told.append(step))
    done, total, names = zip(*told)
    assert list(done) == sorted(done) and done[0] == 0 and done[-1] == total[0] and set(total) == {total[0]}
    # one step per head for their ablation
    steps = [d for d, name in zip(done, names) if name == "ablation"]
    assert max(steps) - min(steps) == (len(heads(chosen.model)) if text else 1)


@pytest.mark.full
def test_page_and_document_are_written_and_say_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--data code.txt --rows 2 --top 3 --heads L0H1 L3H2 --json new/found.json --html page.html"
    assert main(["circuits", "model", *options.split()]) == 0
    found = json.loads(Path("new/found.json").read_text())
    assert [pairs["label"] for pairs in found["pairs"]] == ["L0H1", "L3H2"]
    assert all(len(pairs["ov"]) == 3 for pairs in found["pairs"]) and found["ablated_loss"] > 0
    assert found["training"] is None and Path("page.html").read_text().startswith("<!doctype html>")
    out = capsys.readouterr().out
    assert f"JSON: {Path('new/found.json').absolute()}" in out and "page.html" in out


@pytest.mark.full
def test_a_text_is_run_once_however_many_rows_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    losses = []
    for rows in ("3", "500"):
        assert (
            main(["circuits", "model", "--data", "code.txt", "--rows", rows, "--json", "rows.json", "--top", "1"]) == 0
        )
        losses.append(json.loads(Path("rows.json").read_text())["ablated_loss"])
    capsys.readouterr()
    n = len(gpt().require_tokenizer().encode(TEXT * 4))
    assert n < 3 * 256 and losses[0] == pytest.approx(losses[1])


def test_a_run_shows_its_training() -> None:
    assert main(["circuits", "--run", "run", "--json", "run.json", "--rows", "2"]) == 0
    found = json.loads(Path("run.json").read_text())
    assert found["training"]["charts"][0]["y"].startswith("Held-out loss")


@pytest.mark.parametrize("text", [True, False], ids=["with-text", "without"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gets_a_report_or_the_reason_why_not(name: str, text: bool) -> None:
    chosen = subject(name, batch=3, length=12)
    target = chosen.inputs[-1]
    batch = next_token_batch(target)
    if len(chosen.inputs) == 2:
        batch = Batch(batch.tokens, batch.targets, batch.weight, source=chosen.inputs[0])
    found = circuits(chosen.model, *([batch] if text else []), k=3)
    document = json.loads(found.to_json(), parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    assert len(document["heads"]) == len({head["label"] for head in document["heads"]}) > 0
    assert all(len(entry["why"].split()) > 3 for entry in document["unavailable"])
    lacking = {entry["analysis"] for entry in document["unavailable"]}
    # what a text costs is a matter of next tokens
    costs = text and chosen.model.one_vocabulary()
    assert ("ablation" in lacking) == (not costs)
    assert (found.ablated_loss is None) == (not costs)
    assert "<!doctype html>" in circuits_page(found.to_dict())
    assert max(map(len, shown(found).splitlines())) <= 80


@pytest.mark.full
@pytest.mark.parametrize("name", SAMPLES)
def test_reports_are_frames_too(name: str) -> None:
    pytest.importorskip("pandas")
    frame = sample(name).to_frame()
    assert list(frame.index) == [head.label for head in sample(name).heads]


def test_heads_that_share_a_place_are_told_apart_by_their_labels() -> None:
    found = sample("translation")
    assert {"enc L0H0", "L0H0", "L0X0"} <= {head.label for head in found.heads}
    assert found["enc L0H0"].stack == "encoder" and found["L0X0"].part == "cross"


def shown(report: object) -> str:
    out = io.StringIO()
    Console(file=out, width=80, color_system=None).print(tables(report))
    return out.getvalue()


@pytest.mark.full
@pytest.mark.parametrize("name", ["attn-only-1l", "attn-only-2l", "gpt-4l", "prose-4l", "zh-en"])
def test_every_shipped_model_is_reported(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    # all the English that prose-4l was trained on takes minutes to parse
    data = ["--data", f"prose:{PACKAGE}{PACKAGES[1]}"] if name == "prose-4l" else []
    assert main(["circuits", name, *data]) == 0
    shown = capsys.readouterr().out
    assert f"The circuits of {name}" in shown and "Strongest" in shown
