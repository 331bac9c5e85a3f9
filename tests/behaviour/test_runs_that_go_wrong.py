"""Runs that diverge, run folders that were tampered with, and held-out text that is not what was trained on."""

import json
import math
import os
import warnings
from pathlib import Path

import pytest
import torch

import glassformer as gf
from glassformer import files
from glassformer.analysis.learning import read_history
from glassformer.checkpoints import run_steps
from glassformer.data import Copy, MixtureConfig, Repeat, TextConfig
from glassformer.errors import CheckpointError, ConfigError, RunFolderError, SaveError, TrainingDiverged
from glassformer.models import RmsNorm, block, repeat
from glassformer.training import OptimConfig, loop, read_metrics, train
from glassformer.training.recipes import RECIPES
from tiny_runs import DATA, MODEL, recipe
from waiting import in_seconds

STEEP = OptimConfig(lr=1e30, schedule="constant", warmup=0)


@pytest.fixture(autouse=True)
def without_sync(monkeypatch):
    """Waiting for the disk is most of a tiny run's time, and shows only when the machine loses power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


def poisoned(monkeypatch, step, spoil):
    """Multiply the training loss by what `spoil` says from a step on."""
    kind, seeded = type(MODEL.build()), loop._seed
    loss, at = kind.loss, [0]

    def noted(seed, step):
        at[0] = step
        return seeded(seed, step)

    def spoilt(self, *arguments):
        return loss(self, *arguments) * (spoil if self.training and at[0] >= step else 1)

    monkeypatch.setattr(loop, "_seed", noted)
    monkeypatch.setattr(kind, "loss", spoilt)


@pytest.mark.parametrize(
    ("precision", "clip", "now"), [("float32", 1.0, "1"), ("bfloat16", 0.0, "0: none")], ids=["float32", "bfloat16"]
)
def test_a_run_whose_loss_is_not_finite_stops_at_the_step_and_says_what_to_change(precision, clip, now, tmp_path):
    with pytest.raises(TrainingDiverged, match=r"in step 2: loss is nan.*No checkpoint was made") as error:
        train(recipe(optim=STEEP.replace(clip=clip), precision=precision), tmp_path)
    named = ("optim.lr (now 1e+30)", "optim.warmup", f"optim.clip (now {now})")
    assert all(name in str(error.value) for name in named)
    assert ('precision="float32" (now bfloat16)' in str(error.value)) == (precision == "bfloat16")
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1]
    assert not list(tmp_path.glob("step-*"))


def test_a_gradient_that_is_not_finite_stops_a_run_whose_loss_is(tmp_path, monkeypatch):
    kind = type(MODEL.build())
    loss = kind.loss
    # the root of nothing has an infinite slope
    monkeypatch.setattr(kind, "loss", lambda self, *a: loss(self, *a) + (next(self.parameters()).sum() * 0).sqrt())
    with pytest.raises(TrainingDiverged, match="in step 1: gradient norm is nan"):
        train(recipe(), tmp_path)


@pytest.mark.parametrize("spoil", [math.nan, math.inf])
def test_the_last_good_checkpoint_of_a_run_that_diverged_is_named_and_goes_on_under_another_rate(
    spoil, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        poisoned(patch, 6, spoil)
        with pytest.raises(TrainingDiverged, match=r"in step 6.*\n?.*begin_from"):
            train(recipe(), tmp_path / "steep")
    # step 4 gave a loss and a gradient; the weights of step 5 were never kept
    good = tmp_path / "steep" / "step-00000004"
    assert same(weights(gf.load(tmp_path / "steep")), weights(gf.load(good)))
    gentle = recipe(optim=OptimConfig(lr=1e-4))
    found = train(gentle, tmp_path / "gentle", begin_from=tmp_path / "steep")
    assert all(value.isfinite().all() for value in weights(found).values())
    assert [line["step"] for line in read_metrics(tmp_path / "gentle")] == [4, 5, 6]
    assert same(weights(train(gentle, tmp_path / "again", begin_from=good)), weights(found))


def test_weights_that_give_no_loss_to_go_on_by_are_never_kept(tmp_path, monkeypatch):
    poisoned(monkeypatch, 5, math.nan)  # the very step after a checkpoint is due
    with pytest.raises(TrainingDiverged, match="step-00000002"):
        train(recipe(), tmp_path)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000002"]


def test_a_held_out_loss_that_is_not_finite_stops_a_run_too(tmp_path, monkeypatch):
    loss = type(MODEL.build()).loss
    monkeypatch.setattr(
        type(MODEL.build()), "loss", lambda self, *a: loss(self, *a) * (1 if self.training else math.nan)
    )
    with pytest.raises(TrainingDiverged, match="after step 0: held-out loss is nan"):
        train(recipe(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_measure_that_is_not_finite_is_null_in_the_metrics(tmp_path):
    train(recipe(steps=1), tmp_path, measures={"none": lambda model, data: {"none": math.nan, "some": [math.inf, 1.0]}})
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    assert (read_metrics(tmp_path)[0]["none"], read_metrics(tmp_path)[0]["some"]) == (None, [None, 1.0])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["lr", "floor", "eps", "weight_decay", "clip"])
def test_rates_that_are_not_finite_are_refused(name, number):
    with pytest.raises(ConfigError, match=rf"{name} must be a finite number"):
        OptimConfig(**{name: number})


def test_a_rate_by_which_float32_cannot_be_updated_is_refused_and_the_largest_other_one_is_taken(tmp_path):
    with pytest.raises(ConfigError, match=r"too large for weights in float32: at most 3\.4e\+37, found 1e\+38"):
        OptimConfig(lr=1e38)
    with pytest.raises(TrainingDiverged, match=r"optim\.lr \(now 3e\+37\)"):
        train(recipe(optim=STEEP.replace(lr=3e37)), tmp_path)


def test_a_number_that_is_not_finite_is_refused_wherever_it_stands_in_a_recipe():
    layers = repeat(block(n_heads=2, norm=RmsNorm(eps=math.inf)), 2)
    with pytest.raises(ConfigError, match=r"train\.model\.layers\.0\..*eps must be a finite number, found inf"):
        recipe(model=MODEL.replace(layers=layers))


@pytest.fixture
def stopped(tmp_path):
    def report(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe(), tmp_path, report=report, measures={"text": lambda model, data: {"text": "a sample"}})
    return tmp_path


@pytest.mark.parametrize("content", ["null", '"text"', "[]", '{"facts": "text", "sha256": ""}', "[" * 100_000])
def test_facts_that_are_no_facts_are_said(content, stopped):
    (stopped / "step-00000003" / "facts.json").write_text(content)
    with pytest.raises(CheckpointError, match="Delete that folder to begin again"):
        train(recipe(), stopped)
    with pytest.raises(CheckpointError, match=r"facts\.json"):
        gf.load(stopped)


def test_facts_too_large_to_be_facts_are_not_read(stopped):
    with (stopped / "step-00000003" / "facts.json").open("wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(CheckpointError, match="too large"):
        gf.load(stopped)


def test_a_changed_step_in_the_facts_is_noticed(stopped):
    path = stopped / "step-00000003" / "facts.json"
    path.write_text(path.read_text().replace('"step": 3', '"step": 1'))
    with pytest.raises(CheckpointError, match="do not match their digest"):
        train(recipe(), stopped)


def test_facts_of_another_step_are_noticed(stopped):
    facts = run_steps.read_facts(stopped / "step-00000003")
    (stopped / "step-00000003" / "facts.json").write_text(run_steps.facts_text(facts | {"step": 2}))
    with pytest.raises(CheckpointError, match="they are those of step 2"):
        gf.load(stopped)


def test_samples_with_a_header_that_names_no_step_do_not_stop_a_run(stopped):
    (stopped / "samples.txt").write_text("=== step x\nmine\n=== step 0\na sample\n\n=== step 5\nlater\n")
    train(recipe(), stopped)
    assert (stopped / "samples.txt").read_text() == "=== step x\nmine\n=== step 0\na sample\n\n"


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.txt", "config.json", "lock", "tokenizer.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_regular_file_in_a_run_folder_is_said(name, make, stopped):
    (stopped / name).unlink()
    make(stopped / name)
    with in_seconds(), pytest.raises(RunFolderError, match=f"{name}.*no regular file"):
        train(recipe(), stopped)


@pytest.mark.parametrize("name", ["facts.json", "config.json", "model.safetensors", "optimizer.safetensors"])
def test_what_is_no_regular_file_in_a_checkpoint_is_said(name, stopped):
    path = stopped / "step-00000003" / name
    path.unlink()
    os.mkfifo(path)
    for reads in (gf.load, lambda folder: train(recipe(), folder)):
        with in_seconds(), pytest.raises(CheckpointError, match="no regular file"):
            reads(stopped)
    with in_seconds(), pytest.raises(CheckpointError, match=f'{name}" is no regular file'):
        run_steps.check(path.parent)


def test_facts_that_are_no_regular_file_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "facts.json")
    with in_seconds(), pytest.raises(CheckpointError, match="no regular file"):
        run_steps.read_facts(tmp_path)


def _larger(path):
    with path.open("wb") as file:
        file.truncate(files.MOST_METRICS + 1)


@pytest.mark.parametrize(
    ("reads", "name"), [(read_metrics, "metrics.jsonl"), (read_history, "metrics.jsonl"), (read_history, "config.json")]
)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), _larger])
def test_who_reads_a_run_does_not_wait_for_what_is_special_or_too_large(make, reads, name, stopped):
    (stopped / name).unlink()
    make(stopped / name)
    with in_seconds(), pytest.raises(RunFolderError, match=r"no regular file|larger than") as error:
        reads(stopped)
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("samples.txt", files.MOST_METRICS), ("metrics.jsonl", files.MOST_METRICS),
        ("step-00000003/config.json", files.MOST_JSON), ("step-00000003/optimizer.safetensors", files.MOST_JSON * 2),
    ],
)  # fmt: skip
def test_a_run_does_not_go_on_from_what_is_too_large_to_be_its_own(name, size, stopped):
    (stopped / name).touch()
    os.truncate(stopped / name, size + 1)
    with pytest.raises((RunFolderError, CheckpointError), match=r"larger than the [0-9,]+ bytes"):
        train(recipe(), stopped)


def test_a_stray_step_counts_neither_for_training_nor_for_loading(stopped):
    gf.save(MODEL.build(5), stopped / "step-00000099")
    assert same(weights(gf.load(stopped)), weights(gf.load(stopped / "step-00000003")))
    expected = weights(train(recipe(), stopped))
    assert same(weights(gf.load(stopped)), expected)


def test_what_stands_in_the_place_of_a_checkpoint_is_not_written_over(stopped):
    gf.save(MODEL.build(5), stopped / "step-00000006")
    before = (stopped / "step-00000006" / "model.safetensors").read_bytes()
    with pytest.raises(SaveError, match="no checkpoint of this run"):
        train(recipe(), stopped)
    assert (stopped / "step-00000006" / "model.safetensors").read_bytes() == before


def test_a_checkpoint_of_another_recipe_is_refused_when_the_folder_has_lost_its_own(stopped):
    (stopped / "config.json").unlink()
    with pytest.raises(RunFolderError, match="comes of another run"):
        train(recipe(seed=1), stopped)


def texts(folder: Path, word: str) -> str:
    folder.mkdir()
    for i in range(12):
        (folder / f"{i}.txt").write_text(f"{word} number {i}, {word} and {word} again. " * 4)
    return str(folder)


def on(source: str) -> TextConfig:
    return TextConfig(batch_size=2, length=12, sources=(source,), vocab_size=257, heldout=0.3)


WIDE = MODEL.replace(vocab_size=257)


def test_a_held_out_loss_on_another_source_than_the_training_text_warns(tmp_path):
    mine, other = texts(tmp_path / "mine", "word"), texts(tmp_path / "other", "other")
    apart = recipe(model=WIDE, data=on(mine), evaluate=on(other), steps=1)
    with pytest.warns(UserWarning, match=r"training is on .*mine, but the held-out loss is measured on .*other"):
        train(apart, tmp_path / "apart")
    assert {line["heldout_on"] for line in read_metrics(tmp_path / "apart") if "heldout_loss" in line} == {other}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(apart.on_text(mine), tmp_path / "together")
    facts = json.loads((tmp_path / "together" / "step-00000001" / "facts.json").read_text())["facts"]
    assert facts["heldout_on"] == mine


@pytest.mark.filterwarnings("ignore:training is on")
@pytest.mark.parametrize("of_training", [True, False])
def test_text_that_changed_while_a_run_was_stopped_warns(of_training, tmp_path):
    mine, other = texts(tmp_path / "mine", "word"), texts(tmp_path / "other", "other")
    config = recipe(
        model=WIDE, data=on(mine if of_training else other), evaluate=on(other if of_training else mine), steps=2
    )

    def report(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", report=report)
    (tmp_path / "mine" / "more.txt").write_text("more words than before")
    with pytest.warns(UserWarning, match="the text this run began with has changed"):
        train(config, tmp_path / "run")


def test_on_text_changes_all_text_of_a_recipe_and_nothing_else():
    mixed = recipe(data=MixtureConfig((on("a"), DATA), (0.5, 0.5)), evaluate=on("a"))
    changed = mixed.on_text("b", "c")
    assert changed.data.origins() == ("b", "c", "repeat")
    assert changed.evaluate is not None and changed.evaluate.origins() == ("b", "c")
    assert changed.on_text("a") == mixed
    with pytest.raises(ConfigError, match="reads no text: its data are copy"):
        recipe(data=Copy()).on_text("b")


def test_a_recipe_says_what_of_its_batches_is_made_up():
    shares = {name: list(RECIPES[name]().data.synthetic().values()) for name in RECIPES}
    assert shares["attn-only-2l"] == [0.25] == shares["phase-change"]
    assert (shares["gpt-4l"], shares["prose-4l"], shares["zh-en"]) == ([0.04], [0.23, 0.03, 0.04], [1.0])
    nested = MixtureConfig((MixtureConfig((on("a"), DATA), (0.5, 0.5)), Repeat()), (0.8, 0.2))
    assert nested.synthetic() == {"Random tokens, repeated to the end of the row": pytest.approx(0.6)}
