"""`glassformer backward`: the grid of Python, on terminals, in documents and on a page, and facts that are written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.analysis.gradients import BackwardLens, backward_lens, edit_fact
from glassformer.attention import Softmax
from glassformer.checkpoints import save
from glassformer.cli import main
from glassformer.models import DecoderConfig, Mlp, block, repeat
from pages import Opener, accessibility_report

MODEL, TEXT, ANSWER = "gpt-4l", "def add(a, b):\n    return a +", " b"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def lens() -> BackwardLens:
    return backward_lens(gf.load(MODEL), TEXT, ANSWER)


def asked(capsys: pytest.CaptureFixture[str], *options: str, text: str = TEXT) -> tuple[str, dict[str, Any]]:
    assert main(["backward", MODEL, text, *options, "--json", "found.json"]) == 0, capsys.readouterr().err
    return capsys.readouterr().out, json.loads(Path("found.json").read_text(encoding="utf-8"))


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["backward", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return err


@pytest.mark.parametrize("flag", ["--answer", "--target"])
def test_the_command_says_what_python_says(flag: str, lens: BackwardLens, capsys: pytest.CaptureFixture[str]) -> None:
    out, document = asked(capsys, flag, ANSWER)
    (found,) = document["results"]
    for name in ("answer_rank", "norm", "most", "least"):
        ours, theirs = gf.Labelled.from_dict(found[name]), getattr(lens, name)
        assert ours.axes == theirs.axes and ours.coords == theirs.coords
        torch.testing.assert_close(ours.values.double(), theirs.values.double(), equal_nan=True, rtol=1e-5, atol=1e-6)
    assert document["given"]["answer"] == ANSWER and found["loss"] == pytest.approx(lens.loss)
    # the last output matrix moves towards the answer, and is told in full
    last = [line for line in out.splitlines() if line.startswith("L3 mlp out")]
    assert [line.split()[-1] for line in last[:1]] == ["1"] and "·b" in last[1].split()


def test_a_small_gradient_says_nothing_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = asked(capsys, "--answer", ANSWER, "--maps", "L3 mlp out", "--position", "-1")
    grid, _ = [line for line in out.splitlines() if line.startswith("L3 mlp out")]
    # nothing of earlier positions reaches the loss
    assert grid.split() == ["L3", "mlp", "out", "·b", "1"]
    assert asked(capsys, "--answer", ANSWER, "--position", "2", "--maps", "L3 mlp out")[1]["given"]["position"] == 2


def test_a_fact_is_written_beside_a_gradient_step_and_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--answer", " self", "--edit", "3", "--paraphrases", "def add(x, b):\n    return x +"]
    out, document = asked(capsys, *options, "--neighbours", "import os", "for i in")
    model = gf.load(MODEL)
    here = edit_fact(
        model, TEXT, " self", layer=3, size=0.05, paraphrases=["def add(x, b):\n    return x +"],
        neighbours=["import os", "for i in"],
    )  # fmt: skip
    found = document["results"][1]
    assert found["result"] == "FactEdit" and found["norm"] == pytest.approx(here.norm)
    torch.testing.assert_close(gf.Labelled.from_dict(found["scores"]).values.double(), here.scores.values.double())
    assert "A fact written into L3 mlp out" in out and "gradient step" in out


def test_a_translation_is_asked_about_where_its_target_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backward", "zh-en", "我吃了一个苹果", "--target", "I ate an", "--answer", "apple"]) == 0
    out = capsys.readouterr().out
    assert "reads   0:<bos> 1:I 2:ate 3:an" in out
    # the last output matrix of the decoder, where the target ends
    assert out.splitlines()[-1].startswith("L1 mlp out") and "  1  apple" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--answer", " slef"], 'and one next token is explained: give the first. Nearest: " self"'),
        (["--answer", " b", "--target", " a"], "both name the token that the loss wants"),
        (["--edit", "3"], "--edit writes a token that is named: give --answer TOKEN"),
        (["--answer", " b", "--edit", "9"], "layer"),
        (["--answer", " b", "--edit", "3", "--position", "1"], "leave --position out"),
        (["--neighbours", "import"], "go with --edit LAYER"),
        (["--answer", " b", "--maps", "L3 mlp ou"], 'no linear map "L3 mlp ou". Nearest: "L3 mlp out"'),
        (["--position", "99"], "99"),
    ],
)
def test_a_slip_is_a_sentence(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, MODEL, TEXT, *options)


def test_a_token_of_a_model_without_names_is_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    layer = block(Softmax(), n_heads=2, mlp=Mlp(12))
    folder = str(save(DecoderConfig(30, 16, repeat(layer, 2), max_len=8).build(), "ids"))
    assert main(["backward", folder, "1 2 3", "--target", "7", "--json", "found.json"]) == 0
    assert json.loads(Path("found.json").read_text())["results"][0]["answers"] == [7]
    capsys.readouterr()
    assert "outside the vocabulary" in refused(capsys, folder, "1 2 3", "--answer", "30")
    assert "a token is an id; found 'b'" in refused(capsys, folder, "1 2 3", "--answer", "b")


@pytest.mark.browser
def test_a_page_shows_what_a_step_writes_and_tells_both_ends_of_a_cell(lens: BackwardLens, opened: Opener) -> None:
    shown = opened(lens)
    row = lens.norm.labels("map").index("L3 mlp out")
    cells = shown.locator("table.lenses tbody tr").nth(row).locator("td")
    # what is too small has no token, and what is told first is where the loss is
    assert cells.first.inner_text() == "" and cells.last.inner_text() == "·b"
    told = shown.locator(".card.told")
    assert "L3 mlp out" in told.inner_text() and "rank of the answer 1" in told.inner_text()
    assert all(word.strip() in told.inner_text() for word in lens.tokens("L3 mlp out"))
    cells.first.hover()
    assert "Too small" in told.inner_text()
    assert not accessibility_report(shown)
