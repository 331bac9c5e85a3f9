"""`glassformer probe`: labels by name, what is told at each layer, and what erasing it costs."""

import json
import re
from pathlib import Path

import pytest

import glassformer as gf
from glassformer.cli import main
from glassformer.data import bytes_tokenizer
from glassformer.data.labels import labelled_text
from glassformer.data.labels.named import LABEL_SOURCES, split_label
from glassformer.errors import DataError

FEW = ("--n", "10", "--length", "16", "--folds", "2")


def test_layers_are_probed_and_what_is_told_is_erased(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "found.json", tmp_path / "found.html"
    asked = ["attn-only-1l", "--label", "copies.seen", *FEW, "--erase", "--json", str(out), "--html", str(page)]
    assert main(["probe", *asked]) == 0
    said = capsys.readouterr().out
    assert "What can be read linearly\nsite                 told" in said and "What is used costs" in said
    document = json.loads(out.read_text(encoding="utf-8"))
    probes, effects = document["results"]
    assert probes["accuracy"]["coords"]["site"] == ["blocks.0.resid_post"] and probes["documents"] == 10
    assert {"majority", "shuffled labels", "untrained model"} < {*probes["accuracy"]["coords"]["told_by"]}
    assert effects["loss"] > 0 and document["given"]["label"] == "copies.seen"
    assert "</html>" in page.read_text(encoding="utf-8")
    first = out.read_bytes()
    assert main(["probe", *asked[:-2]]) == 0
    assert out.read_bytes() == first
    assert main(["probe", *asked[:-2], "--seed", "1"]) == 0
    assert out.read_bytes() != first


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--label", "kind"], 'no labels "kind".* There are labels of: python, zh-en'),
        (["--label", "python"], 'a source and a property, as python.kind; found "python"'),
        (["--label", "copies.sen"], 'no property "sen".*Nearest: "seen"'),
        (["--label", "copies.seen", "--data", "x.py"], "copies makes its text"),
        (["--label", "copies.seen", "--sites", "resid_past"], 'no site "resid_past"'),
        (["--label", "copies.seen", "--folds", "1"], "folds is 2 or more"),
        (["--label", "copies.seen", "--n", "0"], "n"),
        (["--label", "python.kind", "--data", "nowhere.py"], "nowhere.py"),
    ],
)
def test_what_cannot_be_probed_is_said(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "attn-only-1l", *FEW, *given]) == 2
    assert re.search(said, capsys.readouterr().err, re.DOTALL)


def test_a_model_of_pairs_is_asked_of_sentences_in_two_languages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "zh-en", "--label", "python.kind", *FEW]) == 2
    assert "reads pairs of texts, which python does not make" in capsys.readouterr().err
    assert main(["probe", "zh-en", "--label", "zh-en.part", "--sites", "*.0.resid_post", "--n", "10"]) == 0
    said = capsys.readouterr().out
    assert "encoder.blocks.0.resid_post" in said and "decoder.blocks.0.resid_post" in said


def test_files_that_are_no_python_are_left_out(tmp_path: Path) -> None:
    for name, text in {"a.py": "a = 1\n", "b.py": "b = (\n", "c.py": "c = 'three'\n"}.items():
        (tmp_path / name).write_text(text)
    found = labelled_text("python", bytes_tokenizer(), data=[str(tmp_path)], length=7)
    assert {document.text for document in found} == {"a = 1\n", "c = 'three'\n"}
    assert max(len(document.ids) for document in found) == 7
    with pytest.raises(DataError, match="none of 1 files is Python"):
        labelled_text("python", bytes_tokenizer(), data=[str(tmp_path / "b.py")])


@pytest.mark.parametrize("source", LABEL_SOURCES)
def test_labels_of_every_source_are_as_many_as_asked_and_drawn_by_the_seed(source: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n" * 9)
    tokenizer = gf.load("zh-en").source_tokenizer if source == "zh-en" else bytes_tokenizer()
    assert tokenizer is not None
    options = {"data": [str(tmp_path / "a.py")], "length": 20}
    found = labelled_text(source, tokenizer, 1, **options)
    assert len(found) == 1 and 0 < len(found[0].ids) <= 20
    again = labelled_text(source, tokenizer, 1, **options)
    assert [one.ids for one in again] == [one.ids for one in found]
    name = found.properties[0].name
    assert split_label(f"{source}.{name.replace(' ', '-')}") == (source, name)
