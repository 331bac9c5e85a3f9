"""Where a verb computes, and in which type: `--device` and `--dtype`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from elsewhere import ELSEWHERE, elsewhere
from glassformer.cli import main
from one_pass import first_of

MODEL, TEXT = "attn-only-1l", "import os\nimport sys\nimport"
PAIRS = ("--n", "2")
VERBS: dict[str, tuple[str, ...]] = {
    "explain": (TEXT,),
    "attention": (TEXT,),
    "lens": (TEXT,),
    "route": (TEXT,),
    "attribute": (TEXT,),
    "backward": (TEXT,),
    "behaviour": (TEXT,),
    "trace": (TEXT, "--subject", "sys"),
    "patch": PAIRS,
    "edges": PAIRS,
    "paths": ("L0H1.v", *PAIRS),
    "prune": ("--threshold", "0.5", *PAIRS),
    "circuits": ("--rows", "2", "--heads", "L0H1"),
    "probe": ("--label", "copies.seen", "--n", "10", "--length", "16"),
    "heads": ("--tokens", "600", "--corpus", __file__),
}
# what was measured to float32's last digits is written with so many
DIGITS = 1e-6


def found(path: Path, verb: str, *options: str) -> Any:
    assert main([verb, MODEL, *VERBS[verb], "--dtype", "float64", *options, "--json", str(path)]) == 0
    return json.loads(path.read_text())


def numbers(document: Any) -> list[float]:
    if isinstance(document, dict | list):
        return [n for part in (document.values() if isinstance(document, dict) else document) for n in numbers(part)]
    return [document] if isinstance(document, int | float) else []


def words(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: words(part) for name, part in document.items()}
    if isinstance(document, list):
        return [words(part) for part in document]
    return 0 if isinstance(document, int | float) else document


@pytest.mark.parametrize("verb", first_of(VERBS))
def test_a_verb_says_the_same_wherever_it_computes(verb: str, tmp_path: Path) -> None:
    here = found(tmp_path / "here.json", verb, "--device", "cpu")
    with elsewhere():
        there = found(tmp_path / "there.json", verb, "--device", str(ELSEWHERE))
    # what a result is of names the device
    assert re.sub(str(ELSEWHERE), "cpu", json.dumps(words(there))) == json.dumps(words(here))
    assert numbers(there) == pytest.approx(numbers(here), rel=DIGITS, abs=DIGITS)


def test_text_is_generated_wherever_it_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    order = ["generate", MODEL, TEXT, "--temperature", "0", "--max-new-tokens", "4"]
    main(order)
    here = capsys.readouterr().out
    with elsewhere():
        main([*order, "--device", str(ELSEWHERE)])
    assert capsys.readouterr().out == here


def test_training_goes_where_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", MODEL, "--device", "cuda:3", "--show"])
    assert json.loads(capsys.readouterr().out)["device"] == "cuda:3"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--device", "warp:1"), r"device='warp:1' cannot be used"),
        (("--device", "meta"), r"device='meta' cannot be used"),
        (("--dtype", "float23"), "dtype='float23' is no type that weights are computed in. Nearest: \"float32\""),
    ],
)
def test_what_is_no_device_or_no_type_is_refused(
    options: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("lens", "circuits"):
        assert main([verb, MODEL, *VERBS[verb], *options]) == 2
        assert re.search(complaint, capsys.readouterr().err)
