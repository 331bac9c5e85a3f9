"""The verb that plans training: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest

from glassformer.cli import main


def test_a_plan_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"plan.{name}" for name in ("json", "html")}
    asked = ["--gpus", "4", "--mesh", "dp=2,tp=2", "--length", "16", "--batch", "4"]
    assert main(["plan", "attention-only-2l", *asked, "--json", str(files["json"]), "--html", str(files["html"])]) == 0
    shown = capsys.readouterr().out
    for words in ("parameters, mesh dp=2,tp=2 (4 ranks)", "what sub-layers write (all-reduce)", "Assumed"):
        assert words in shown
    document = json.loads(files["json"].read_text(encoding="utf-8"))
    (found,) = document["results"]
    assert found["result"] == "Plan" and document["given"]["mesh"] == "dp=2,tp=2"
    wire = dict(zip(found["wire"]["coords"]["collective"], found["wire"]["values"], strict=True))
    # two sub-layers, and two rows a rank, of which half the numbers go twice
    assert wire["what sub-layers write (all-reduce)"] == 2 * 2 * 16 * 256 * 4
    assert set(wire) == set(found["formulas"])
    assert "</html>" in files["html"].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt2-smal"], 'Nearest: "gpt2-small"'),
        (["gpt2-small", "--mesh", "ddp=2"], 'no axis "ddp". Nearest: "dp"'),
        (["gpt2-small", "--gpus", "8", "--mesh", "dp=4"], 'mesh "dp=4" takes 4 processes, and --gpus says 8'),
        (["gpt2-small", "--gpus", "0"], "must be at least 1"),
        (["gpt2-small", "--mesh", "dp=4", "--batch", "2"], "2 rows cannot be shared among 4 ranks"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_room_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt2-small", "--mesh", "dp=2", "--length", "16", "--memory", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "GiB more than it has. No mesh changes that: 1.9 GiB are of the whole model" in shown
