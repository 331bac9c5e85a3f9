"""Training where the recipe says: the same numbers, batches made ahead included, and facts that say where."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elsewhere import elsewhere
from glassformer.analysis.learning.measures import MEASURES
from glassformer.checkpoints import run_steps
from glassformer.data import Batch
from glassformer.errors import ConfigError
from glassformer.files import json_text
from glassformer.testing import close
from glassformer.training import OptimConfig, TrainConfig, feed, read_metrics, train
from glassformer.training.feed import Feed
from tiny_runs import DATA, MODEL, recipe

STILL = MODEL.replace(layers=tuple(layer.replace(dropout=0.0) for layer in MODEL.layers))
# differences of rounding stay as small as they are, where Adam would divide them by small roots
STEADY = OptimConfig(eps=1e-3)


def facts(folder: Path) -> dict[str, Any]:
    newest = max(folder.glob("step-*"))
    return json.loads((newest / "facts.json").read_text())["facts"]


def as_before_devices(folder: Path) -> None:
    """Take out of a run's recipe and facts what they did not have."""
    said = json.loads((folder / "config.json").read_text())
    del said["device"]
    (folder / "config.json").write_text(json_text(said, indent=2))
    for path in folder.glob("step-*/facts.json"):
        known = json.loads(path.read_text())["facts"]
        del known["device"]
        path.write_text(run_steps.facts_text(known))


def stopped(config: TrainConfig, folder: Path) -> None:
    """Train three steps of a run."""

    def stop(progress: Any) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, folder, report=stop)


def same_run_on(device: str, tmp_path: Path, measures: dict[str, Any], **changes: Any) -> None:
    """Train here and there, to the same weights and metrics; only the CPU's own random numbers drop alike."""
    config = recipe(model=STILL, optim=STEADY, **changes)
    here = train(config.replace(device="cpu"), tmp_path / "here", measures=measures)
    there = train(config.replace(device=device), tmp_path / "there", measures=measures)
    assert {parameter.device.type for parameter in there.parameters()} == {torch.device(device).type}
    for name, value in here.state_dict().items():
        close(there.state_dict()[name].cpu(), value, 1e-4)
    for ours, theirs in zip(read_metrics(tmp_path / "there"), read_metrics(tmp_path / "here"), strict=True):
        name = "heldout_loss" if "heldout_loss" in theirs else "loss"
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4)
    assert facts(tmp_path / "there")["device"].startswith(torch.device(device).type)
    assert facts(tmp_path / "here")["device"] == "cpu"


@pytest.mark.parametrize(
    ("measures", "changes"),
    [({}, {"steps": 2}), pytest.param(MEASURES, {"accumulate": 3}, marks=pytest.mark.full)],
)
def test_a_run_elsewhere_ends_where_one_on_the_cpu_does(
    measures: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    with elsewhere():
        same_run_on("meta:1", tmp_path, measures, **changes)


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"accumulate": 3}, {"compile": True}])
def test_a_run_on_a_gpu_ends_where_one_on_the_cpu_does(
    changes: dict[str, Any], tmp_path: Path, cuda: torch.device
) -> None:
    same_run_on(str(cuda), tmp_path, MEASURES, **changes)


@pytest.mark.gpu
def test_a_run_on_a_gpu_that_was_stopped_ends_where_one_that_was_not_does(tmp_path: Path, cuda: torch.device) -> None:
    config = recipe(device=str(cuda), precision="bfloat16")
    whole = train(config, tmp_path / "whole").state_dict()

    stopped(config, tmp_path / "stopped")
    resumed = train(config, tmp_path / "stopped").state_dict()
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU pass for a device that computes by itself."""
    monkeypatch.setattr(feed, "is_accelerator", lambda device: True)


@pytest.mark.parametrize("changes", [{}, {"accumulate": 3}])
def test_batches_made_ahead_change_no_bit_of_a_run(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = train(recipe(**changes), tmp_path / "usual").state_dict()
    ahead(monkeypatch)
    found = train(recipe(**changes), tmp_path / "ahead").state_dict()
    assert all(torch.equal(found[name], value) for name, value in usual.items())
    logged = [[line | {"seconds": 0} for line in read_metrics(tmp_path / name)] for name in ("usual", "ahead")]
    assert logged[0] == logged[1]


def test_one_batch_is_made_ahead_in_order_and_none_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    built = DATA.build()
    usual = type(built).batch

    def batch(self: Any, step: int, split: Any = "train") -> Batch:
        if split == "train":
            asked.append(f"made {step}")
        return usual(self, step, split)

    monkeypatch.setattr(type(built), "batch", batch)
    ahead(monkeypatch)
    # no checkpoint on the way, which asks for the gradient of the next step
    train(
        recipe(save_every=6, keep=()), tmp_path, report=lambda progress: asked.append(f"step {progress.step}"),
    )  # fmt: skip
    expected = ["made 1", "made 1", "made 2"]
    for step in range(1, 6):
        expected += [f"step {step}", *([f"made {step + 2}"] if step + 2 <= 6 else [])]
    # the first is looked at before the run begins, for what the model has to read
    assert asked == [*expected, "step 6"]


def test_on_the_cpu_nothing_is_made_ahead() -> None:
    made: list[int] = []

    def make(step: int) -> list[Batch]:
        made.append(step)
        return [DATA.build().batch(step)]

    batches = Feed(make, torch.device("cpu"))
    batches.take(1)
    batches.look_ahead(2)
    assert made == [1]


def test_where_a_run_is_trained_is_no_part_of_its_recipe() -> None:
    there, here = recipe(device="cuda:3"), recipe()
    assert there.identity() == here.identity() and there.to_json() != here.to_json()
    assert TrainConfig.from_json(here.identity()) == here
    # what recipes were before they named a device
    assert "device" not in json.loads(here.identity())


def test_a_run_of_a_recipe_that_named_no_device_goes_on(tmp_path: Path) -> None:
    stopped(recipe(), tmp_path / "old")
    as_before_devices(tmp_path / "old")
    model = train(recipe(device="cpu"), tmp_path / "old")
    whole = train(recipe(), tmp_path / "whole").state_dict()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in whole.items())
    assert json.loads((tmp_path / "old" / "config.json").read_text())["device"] == "cpu"
    # whoever ran before devices were named ran on the CPU
    assert facts(tmp_path / "old")["device"] == "cpu"


def test_going_on_on_another_device_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(recipe(), tmp_path)
    monkeypatch.setattr("glassformer.training.loop.device_name", lambda device: "cuda: Some GPU")
    with pytest.warns(UserWarning, match="began with device=cpu and goes on with device=cuda: Some GPU.* not the same"):
        train(recipe(), tmp_path)


def test_a_device_that_is_not_there_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Devices here: cpu"):
        train(recipe(device="cuda:99"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("kind", "fused"), [("cpu", False), ("meta", False), ("cuda", True)])
def test_updates_are_one_kernel_where_a_device_has_that(
    kind: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Callable[[Any], torch.device] = lambda module: torch.device(kind)  # noqa: E731
    monkeypatch.setattr("glassformer.training.optim.place_of", place)
    group = OptimConfig().build(MODEL.build()).param_groups[0]
    assert (bool(group["fused"]), bool(group["foreach"])) == (fused, not fused)
