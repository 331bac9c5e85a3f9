"""Runs in double precision on a mesh of processes or in one, and what they left, compared."""

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glassformer.testing import close
from glassformer.training import Progress, TrainConfig, read_metrics, train
from glassformer.training.parallel import Mesh
from glassformer.training.sharing import Checkpoints

FILES = ("model.safetensors", "optimizer.safetensors")


def run(
    recipe: TrainConfig,
    folder: Path,
    mesh: Mesh | None,
    until: int | None = None,
    checkpoints: Checkpoints = "whole",
    begin_from: Path | None = None,
) -> None:
    """Train in double precision, up to a step where somebody stops it; `begin_from` is as `train` has it."""

    def stop(progress: Progress) -> None:
        if progress.step == until:
            raise KeyboardInterrupt

    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(recipe, folder, mesh=mesh, report=stop, checkpoints=checkpoints, begin_from=begin_from)
    except KeyboardInterrupt:
        assert until is not None
    finally:
        torch.set_default_dtype(torch.float32)


def runs(recipe: TrainConfig, folder: Path, mesh: Mesh, stops: bool = True, checkpoints: Checkpoints = "whole") -> None:
    """One run without a stop; with stops, one that goes on on the same mesh, and one that another mesh goes on with."""
    run(recipe, folder / "straight", mesh, checkpoints=checkpoints)
    if stops:
        run(recipe, folder / "resumed", mesh, 7, checkpoints)
        run(recipe, folder / "resumed", mesh, checkpoints=checkpoints)
        run(recipe, folder / "elsewhere", mesh, 7, checkpoints)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Weights and moments after the last step."""
    last = max(folder.glob("step-*"))
    return {f"{name} {key}": value for name in FILES for key, value in load_file(last / name).items()}


def same(folder: Path, other: Path) -> None:
    """Weights, moments and metrics of two runs are equal up to the order of sums."""
    ours, theirs = tensors(folder), tensors(other)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        close(ours[key], value, 1e-9)
    for found, wanted in zip(read_metrics(folder), read_metrics(other), strict=True):
        assert found.keys() == wanted.keys()
        numbers = {name: value for name, value in wanted.items() if name not in ("seconds", "heldout_on")}
        assert {name: found[name] for name in numbers} == pytest.approx(numbers, rel=1e-9)


def same_as_one(recipe: TrainConfig, folder: Path, stops: bool = True) -> None:
    """What `runs` left is what one process trains, which also goes on with what a mesh began."""
    run(recipe, folder / "one", None)
    same(folder / "straight", folder / "one")
    if stops:
        run(recipe, folder / "elsewhere", None)
        same(folder / "elsewhere", folder / "one")
        straight, resumed = tensors(folder / "straight"), tensors(folder / "resumed")
        assert all(torch.equal(resumed[key], value) for key, value in straight.items())
