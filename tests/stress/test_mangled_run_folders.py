"""Damaged run folders end in a typed error or in the same weights, never in other weights unnoticed.

A run that was stopped after its third step is copied, one thing in it is damaged, and training goes on.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.errors import GlassformerError
from glassformer.training import train
from tiny_runs import recipe
from trials import Trials

JSON = [
    "null",
    '"text"',
    "3",
    "[]",
    "{}",
    "[" * 100_000,
    '{"facts": null, "sha256": ""}',
    '{"step": "x", "tokens": []}\n',
]


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


def sampled(model: Any, data: Any) -> dict[str, Any]:
    return {"sample": "a text"}


def trained(folder: Path, stop: int = 0) -> dict[str, torch.Tensor]:
    """Train in a folder, perhaps to a Ctrl-C, and return the weights."""

    def report(progress: Any) -> None:
        if progress.step == stop:
            raise KeyboardInterrupt

    return weights(train(recipe(), folder, measures={"sample": sampled}, report=report))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, torch.Tensor]]]:
    """Return the folder of a stopped run, and all weights that an undisturbed one ever stored, the last ones last."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.raises(KeyboardInterrupt):
        trained(root / "stopped", stop=3)
    stored = [weights(gf.load(root / "stopped" / f"step-{step:08d}")) for step in (2, 3)]
    return root / "stopped", [*stored, trained(root / "whole")]


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail rather than hang."""

    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def truncated(random: Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: random.randrange(len(content) + 1)])


def flipped(random: Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def replaced(random: Random, path: Path) -> None:
    others = sorted(other for other in path.parents[1].rglob("*") if other.is_file() and other != path)
    path.write_bytes(random.choice(others).read_bytes())


def other_json(random: Random, path: Path) -> None:
    path.write_text(random.choice(JSON))


def missing(random: Random, path: Path) -> None:
    path.unlink()


def a_folder(random: Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(random: Random, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link(random: Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(random.choice(["nowhere", path.name, "/dev/zero", path.parent, path.parent / "config.json"]))


def an_edited_number(random: Random, path: Path) -> None:
    content = path.read_bytes()
    digits = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
    if digits:
        at = random.choice(digits)
        path.write_bytes(content[:at] + str(random.randrange(10)).encode() + content[at + 1 :])


def a_bad_header(random: Random, path: Path) -> None:
    path.with_name("samples.txt").write_text(random.choice(["=== step x\n", "=== step\n", f"=== step {'9' * 5000}\n"]))


FILES = [
    truncated, flipped, replaced, other_json, missing, a_folder, a_pipe, a_link, an_edited_number, a_bad_header
]  # fmt: skip


def a_stray_copy(random: Random, folder: Path) -> None:
    """Put a model folder of another seed, or a copy of a checkpoint, under the name of a later step."""
    stray = folder / random.choice(["step-00000099", "step-00000004", "step-99", "step-000000007", "step-00000005.bak"])
    if random.random() < 0.5:
        gf.save(recipe().model.build(5), stray)
    else:
        shutil.copytree(folder / random.choice(["step-00000002", "step-00000003"]), stray)


def a_renamed_step(random: Random, folder: Path) -> None:
    os.replace(folder / "step-00000003", folder / f"step-{random.randrange(3, 9):08d}")


def a_lost_step(random: Random, folder: Path) -> None:
    shutil.rmtree(folder / random.choice(["step-00000002", "step-00000003"]))


def a_model_of_another_step(random: Random, folder: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(folder / "step-00000002" / name, folder / "step-00000003" / name)


def another_recipe(random: Random, folder: Path) -> None:
    (folder / "config.json").unlink()
    other = folder.with_name(f"{folder.name}-other")
    with pytest.raises(KeyboardInterrupt):
        train(recipe(seed=9), other, report=lambda progress: (_ for _ in ()).throw(KeyboardInterrupt))
    shutil.rmtree(folder / "step-00000003")
    shutil.copytree(other / "step-00000001", folder / "step-00000001")


FOLDERS = [a_stray_copy, a_renamed_step, a_lost_step, a_model_of_another_step, another_recipe]


def damage(random: Random, folder: Path) -> str:
    """Damage one thing in a run folder and say what was done."""
    if random.random() < 0.25:
        wrong: Callable[[Random, Path], None] = random.choice(FOLDERS)
        wrong(random, folder)
        return wrong.__name__
    path = random.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    wrong = random.choice(FILES)
    wrong(random, path)
    return f"{wrong.__name__}: {path.relative_to(folder)}"


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    return weights(gf.load(folder))


@pytest.mark.full
def test_a_damaged_run_is_refused_or_ends_in_the_same_weights(trials: Trials, runs, tmp_path):
    stopped, stored = runs
    for seed in trials(quick=16, sweep=160):
        random, folder = Random(seed), tmp_path / str(seed)
        shutil.copytree(stopped, folder)
        done = damage(random, folder)
        with at_most(20):
            opened = trials.attempt(partial(loaded, folder))
            assert isinstance(opened, GlassformerError) or any(same(opened, known) for known in stored), done
            found = trials.attempt(partial(trained, folder))
        assert isinstance(found, GlassformerError) or same(found, stored[-1]), done
        shutil.rmtree(folder)
