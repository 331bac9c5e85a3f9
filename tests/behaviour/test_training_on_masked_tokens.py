"""An encoder from a recipe to what it says at a mask: trained, stopped, resumed, loaded, asked."""

import json
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.cli import main
from glassformer.data import Masked, TextConfig
from glassformer.errors import AnalysisUnavailable
from glassformer.models import EncoderConfig, Mlp, block, repeat
from glassformer.training import TrainConfig, read_metrics, train
from glassformer.training.recipes import recipe
from glassformer.zoo.build import measured
from glassformer.zoo.masked import masked_figures

WORDS = ("the", "a", "cat", "dog", "bird", "sat", "ran", "sang", "on", "in", "mat", "park", "roof", "small", "old")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    random = Random(0)
    for i in range(4):
        (folder / f"{i}.txt").write_text(" ".join(random.choice(WORDS) for _ in range(150)))
    return folder


@pytest.fixture(scope="module")
def tiny(texts: Path) -> TrainConfig:
    model = EncoderConfig(300, 16, repeat(block(n_heads=2, mlp=Mlp(24), dropout=0.1), 2), max_len=32)
    text = TextConfig(sources=(str(texts),), vocab_size=280, heldout=0.3)
    return TrainConfig(
        model, Masked(batch_size=4, length=24, text=text), steps=6, log_every=1, evaluate_every=3, evaluate_batches=2,
        save_every=2, device="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tiny: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    (folder.parent / "tiny.json").write_text(tiny.to_json())
    assert main(["train", str(folder.parent / "tiny.json"), "--folder", str(folder), "--threads", "1"]) == 0
    return folder


def without_time(folder: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read_metrics(folder)]


def test_a_run_that_was_stopped_goes_on_to_the_same_weights_and_metrics(tiny: TrainConfig, tmp_path: Path):
    def stop(progress: Any) -> None:
        if progress.step == 3:
            signal.raise_signal(signal.SIGINT)

    whole = train(tiny, tmp_path / "whole").state_dict()
    with pytest.raises(KeyboardInterrupt):
        train(tiny, tmp_path / "stopped", report=stop)
    resumed = train(tiny, tmp_path / "stopped").state_dict()
    assert whole.keys() == resumed.keys() and all(whole[name].equal(resumed[name]) for name in whole)
    assert without_time(tmp_path / "whole") == without_time(tmp_path / "stopped")


def test_accumulated_parts_are_weighted_by_what_is_masked_in_each(tiny: TrainConfig, tmp_path: Path):
    still = tiny.replace(model=tiny.model.replace(layers=repeat(block(n_heads=2, mlp=Mlp(24)), 2)), steps=2)
    whole, parts = (train(still.replace(accumulate=n), tmp_path / str(n)).state_dict() for n in (1, 3))
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, atol=2e-6, rtol=1e-4)


def test_the_command_logs_the_share_of_masked_tokens_told_right_and_writes_what_was_said(trained: Path):
    measured = [line for line in read_metrics(trained) if "heldout_loss" in line]
    assert [line["step"] for line in measured] == [0, 3, 6]
    assert all(0 <= line["masked_accuracy"] <= 1 and "loss_by_position" not in line for line in measured)
    assert "<mask>" in (trained / "samples.txt").read_text()


def test_the_encoder_is_asked_at_the_mask(trained: Path, capsys: pytest.CaptureFixture[str]):
    model = gf.load(trained)
    text = "the cat <mask> on the mat"
    found = gf.explain(model, text)
    mask = model.require_tokenizer().roles.mask
    place = [token.text for token in found.tokens].index("<mask>")
    run = gf.run(model, text)
    ids, logits = run.ids, run.logits
    assert ids is not None and logits is not None and int(ids[0, place]) == mask
    assert found.answer.text == model.require_tokenizer().token(int(logits[0, place].argmax()))
    assert main(["explain", str(trained), text]) == 0 and main(["attention", str(trained), text]) == 0
    assert "<mask>" in capsys.readouterr().out
    with pytest.raises(AnalysisUnavailable, match="Put the mask token where you want a word"):
        gf.generate(model, text)
    assert main(["generate", str(trained), text]) == 2
    assert "Put the mask token where you want a word" in capsys.readouterr().err


def test_the_recipe_of_the_small_encoder_is_on_the_data_of_gpt_4l_and_fits_three_megabytes(
    capsys: pytest.CaptureFixture[str],
):
    config, decoder = recipe("encoder-4l"), recipe("gpt-4l")
    assert isinstance(config.data, Masked) and isinstance(config.evaluate, Masked)
    assert (config.data.text, config.evaluate.text) == (decoder.data, decoder.evaluate)
    assert 2 * sum(p.numel() for p in config.model.build().parameters()) < 3e6
    assert main(["train", "encoder-4l", "--show", "--set", "data.share=0.3"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["data"]["kind"] == "masked" and shown["data"]["share"] == 0.3
    assert config.on_text("mine").data.origins() == ("mine",)


def test_the_card_of_an_encoder_measures_hidden_tokens_of_held_out_text(tiny: TrainConfig, trained: Path):
    model, data = gf.load(trained), tiny.data.build(gf.load(trained).tokenizer)
    found = masked_figures(model, tiny, data)
    untrained = tiny.model.build()
    untrained.tokenizer = model.tokenizer
    nothing = masked_figures(untrained, tiny, data)
    losses, right = [], 0
    for batch in found.rows:
        for row, targets, chosen in zip(batch.tokens, batch.targets, batch.weight):
            logits = model(row[None])[0]
            for place in chosen.nonzero().flatten().tolist():
                losses.append(float(-logits[place].log_softmax(-1)[targets[place]].detach()))
                right += int(logits[place].argmax() == targets[place])
    assert len(losses) > 20 and found.figures["masked_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert found.figures["masked_accuracy"] == pytest.approx(right / len(losses))
    assert found.figures["masked_loss"] != nothing.figures["masked_loss"]
    counted = ("unigram_loss", "bigram_loss", "commonest_token")
    assert all(found.figures[name] == nothing.figures[name] for name in counted)
    assert found.figures["unigram_loss"] < 4 and 0 < found.figures["commonest_token"] < 1
    assert "<mask>" in found.samples[0] and found.notes[0].startswith("overlap:")
    told = measured(model, tiny)
    assert told.figures.keys() == found.figures.keys() and "held-out rows" in told.findings[-1]
