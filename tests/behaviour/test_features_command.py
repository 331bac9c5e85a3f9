"""`glassformer features`: dictionaries trained, listed and shown from the command line."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.analysis import dictionaries
from glassformer.analysis.dictionaries import (
    DictionaryStep,
    FeatureExamples,
    FeatureTokens,
    load_dictionary,
    train_dictionary,
)
from glassformer.checkpoints import save
from glassformer.cli import main
from glassformer.data import bytes_tokenizer
from glassformer.labelled import Labelled
from glassformer.models import DecoderConfig, Mlp, block, repeat
from pages import NASTY, Opener, accessibility_report

SITE = "blocks.1.resid_post"
TRAIN = ["--data", "notes", "--rows", "32", "--steps", "6", "--batch-size", "64", "--sparsity", "3", "--width", "24"]


@pytest.fixture(autouse=True)
def a_small_model_and_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    torch.manual_seed(0)
    tokenizer = bytes_tokenizer()
    model = DecoderConfig(tokenizer.vocab_size, 12, repeat(block(n_heads=2, mlp=Mlp(16)), 3), max_len=32).build()
    model.tokenizer = tokenizer
    save(model, "tiny")
    Path("notes").mkdir()
    for i in range(4):
        Path("notes", f"{i}.txt").write_text(f"note {i}: some words come again, and some words do not. " * 12)


def done(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, Any]:
    assert main(["features", *words, "--json", "found.json"]) == 0, capsys.readouterr().err
    return capsys.readouterr().out, json.loads(Path("found.json").read_text(encoding="utf-8"))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["features", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return err


def test_a_dictionary_is_trained_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out, document = done(capsys, "train", "tiny", *TRAIN)
    folder = Path("runs/features/tiny") / SITE
    made = load_dictionary(folder)
    assert (made.config.kind, made.config.n_features, made.config.k) == ("topk", 24, 3)
    assert made.facts["site"] == SITE and made.facts["steps"] == 6
    assert [result["result"] for result in document["results"]] == ["DictionaryQuality", "SpliceLoss"]
    assert made.facts["held_out"]["l0"] == pytest.approx(document["results"][0]["l0"])
    assert str(folder) in out and "L0" in out
    # the same again is there already, and says the same
    again = done(capsys, "train", "tiny", *TRAIN)[1]
    assert again["results"] == document["results"]
    out, listed = done(capsys, "list", "tiny")
    (one,) = listed
    assert one["folder"] == str(folder) and one["held_out"] == made.facts["held_out"]
    assert f"{SITE}" in out and "topk" in out
    shown, document = done(capsys, "show", "tiny", str(folder), "--data", "notes", "--features", "2", "5")
    kinds = ["DictionaryQuality", "SpliceLoss", "FeatureExamples", "FeatureTokens"]
    assert [result["result"] for result in document["results"]] == kinds
    assert document["results"][2]["density"]["coords"]["feature"] == [2, 5] and "Features: where" in shown
    # of the same text it is measured on what it was not trained on
    assert document["results"][1]["loss"]["values"] == pytest.approx(again["results"][1]["loss"]["values"], rel=1e-3)


def test_features_are_drawn_among_those_alive(capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "train", "tiny", "mine", *TRAIN)
    asked = ["show", "tiny", "mine", "--data", "notes", "--top", "3"]
    one, again, other = (done(capsys, *asked, "--seed", seed)[1]["given"]["features"] for seed in ("0", "0", "5"))
    assert one == again != other and len(one) == 3
    density = gf.Labelled.from_dict(done(capsys, *asked)[1]["results"][0]["density"])
    assert all(density.values[feature] > 0 for feature in one + other)


@pytest.mark.parametrize("kind", ["relu", "jumprelu"])
def test_other_kinds_take_a_weight(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "tiny", "mine", "--kind", kind, "--site", "blocks.0.mlp.hidden", *TRAIN[:-4]]
    done(capsys, *words, "--sparsity", "0.5")
    config = load_dictionary("mine").config
    assert config.kind == kind and config.d_in == 16 and config.n_features == 64
    assert getattr(config, "l1", None) == 0.5 or config.l0 == 0.5


def test_ctrl_c_says_what_is_kept_and_the_same_command_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any, report: Any, **options: Any) -> Any:
        def told(step: DictionaryStep) -> None:
            report(step)
            if step.step == 2:
                signal.raise_signal(signal.SIGINT)

        return train_dictionary(*given, report=told, **options)

    room = "glassformer.analysis.dictionaries._folders.train_dictionary"
    monkeypatch.setattr(room, interrupted)
    assert main(["features", "train", "tiny", "stopped", *TRAIN]) == 130
    assert "interrupted: kept at step 2; the same command goes on" in capsys.readouterr().err
    assert not Path("stopped/cfg.json").exists()
    monkeypatch.setattr(room, train_dictionary)
    done(capsys, "train", "tiny", "stopped", *TRAIN)
    done(capsys, "train", "tiny", "whole", *TRAIN)
    assert torch.equal(load_dictionary("stopped").W_dec, load_dictionary("whole").W_dec)


def test_a_dictionary_of_another_model_is_refused_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    done(capsys, "train", "tiny", "mine", *TRAIN)
    other = gf.load("tiny")
    with torch.no_grad():
        next(other.parameters()).mul_(2)
    save(other, "other")
    assert 'this dictionary is of another model, or of "tiny"' in refused(capsys, "show", "other", "mine")
    out, listed = done(capsys, "list", "other", ".")
    assert listed == [] and "no dictionary of this model" in out and "1 of other models" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("trian tiny", 'ACTION takes no "trian". Nearest: "train"'),
        ("show tiny", "say which: glassformer features show tiny FOLDER"),
        ("show tiny nowhere", 'cannot read a dictionary from "nowhere"'),
        ("train tiny --features 3", "--features is of show"),
        ("list tiny --html page.html", "list has no page"),
        ("train tiny --site resid_post", "--site is one site"),
        ("train tiny --site blocks.1.resid_pos", 'Nearest: "blocks.1.resid_post"'),
        ("train tiny --site blocks.1.attn.pattern --data notes", "Record a site of single positions"),
        ("train tiny --sparsity 2.5", "a count of features"),
        ("train tiny --data notes --width 8 --sparsity 9", "k must be no more"),
    ],
)
def test_a_slip_is_a_sentence(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in refused(capsys, *words.split())


@pytest.mark.browser
def test_a_page_shows_texts_of_each_feature_and_what_it_promotes(opened: Opener) -> None:
    tokens = {feature: ["".join((*NASTY[:3], "«", NASTY[4], "»", " behind"))] for feature in (4, 7)}
    values = Labelled(torch.tensor([[2.5], [1.0]]), ("feature", "example"), {"feature": [4, 7]})
    density = Labelled(torch.tensor([0.25, 0.5]), ("feature",), {"feature": [4, 7]})
    examples = FeatureExamples(activations=values, density=density, texts=tokens, places={4: [(0, 1)], 7: [(0, 1)]})
    ranked = Labelled(torch.tensor([[3.0, 1.0], [2.0, 1.0]]), ("feature", "rank"), {"feature": [4, 7]})
    ids = Labelled(torch.tensor([[0, 1], [1, 0]]), ("feature", "rank"), {"feature": [4, 7]})
    names = {0: "0:one", 1: "1:two"}
    both = FeatureTokens(
        raised=ranked, raised_tokens=ids, lowered=ranked, lowered_tokens=ids, chance=density, names=names
    )
    shown = opened([examples, both])
    told = shown.locator("figure .gloss").first
    assert "fires at 25" in told.inner_text() and "2.5" in shown.locator(".findings").first.inner_text()
    shown.locator("select").first.select_option(index=1)
    assert "fires at 50" in told.inner_text()
    assert not accessibility_report(shown)


def test_a_site_is_found_by_itself_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    from glassformer.cli.features import _site

    assert _site(gf.load("gpt-4l"), None) == "blocks.2.resid_post"
    assert _site(gf.load("zh-en"), None).startswith("decoder.")
    assert dictionaries.dictionaries_in(".") == []
