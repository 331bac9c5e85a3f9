"""kill -9 at random moments and inside file operations: what a run left goes on to the same weights, bit for bit.

A child is forked from the warm process, counts what it does to the disk, and kills itself at a drawn act: before it,
or half-way through what it was writing. Others are killed by the clock.
"""

import io
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from glassformer.training import read_metrics, train
from tiny_runs import recipe
from trials import Trials

# a run does fewer acts than this, so that some children come through
ACTS = 120
ATTEMPTS = 2


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read_metrics(folder)]


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, tuple[Any, Any, Any, Path | None]]]:
    """Return what a run ends in that nobody disturbs, from the beginning and from another run's checkpoint."""
    root = tmp_path_factory.mktemp("unbroken")
    train(recipe(steps=2), root / "other")
    found = {}
    for begun, begin_from in ((False, None), (True, root / "other")):
        folder = root / f"begun-{begun}"
        model = train(recipe(), folder, begin_from=begin_from)
        found[begun] = (weights(model), metrics(folder), names(folder), begin_from)
    yield found


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(number: int) -> None:
    """Make this process die at its n-th act on the disk."""
    count = 0

    def due() -> bool:
        nonlocal count
        count += 1
        return count == number

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            if due():
                die()
            return function(*arguments, **options)

        return act

    class HalfWritten(io.FileIO):
        def write(self, content: Any) -> int:
            if due():
                super().write(bytes(content)[: len(content) // 2])
                die()
            return super().write(content)

    for name in ("replace", "fsync", "unlink", "rmdir", "mkdir", "chmod"):
        setattr(os, name, before(getattr(os, name)))
    os.fdopen = lambda handle, mode: HalfWritten(handle, mode)  # type: ignore[assignment]
    opened = Path.open

    def half_appended(path: Path, mode: str = "r", **options: Any) -> Any:
        if mode != "a" or path.suffix not in (".jsonl", ".txt"):
            return opened(path, mode, **options)
        return io.TextIOWrapper(HalfWritten(path, mode), encoding="utf-8", write_through=True)

    Path.open = half_appended  # type: ignore[method-assign, assignment]


def forked(work: Callable[[], Any]) -> int:
    """Start work in a child that ends without cleaning up behind the test process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def outcome(child: int) -> str:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"a child ended with {status}"
    return "killed" if status else "came through"


def disturb(random: Random, folder: Path, begin_from: Path | None, by_clock: bool) -> str:
    """Train in a child that is killed, perhaps, and say what came of it."""

    def work() -> None:
        if not by_clock:
            deadly(1 + random.randrange(ACTS))
        train(recipe(), folder, begin_from=begin_from)

    child = forked(work)
    if by_clock:
        time.sleep(random.random() * 0.3)
        os.kill(child, signal.SIGKILL)
    return outcome(child)


@pytest.mark.full
@pytest.mark.parametrize("by_clock", [False, True], ids=["inside file operations", "by the clock"])
def test_a_killed_run_goes_on_to_the_weights_of_one_that_was_not(by_clock, trials: Trials, unbroken, tmp_path):
    for seed in trials(quick=3, sweep=24):
        random, folder = Random(seed), tmp_path / str(seed)
        expected, lines, files, begin_from = unbroken[seed % 3 == 2]
        for _ in range(random.randint(1, ATTEMPTS)):
            trials.count(disturb(random, folder, begin_from, by_clock))
        found = train(recipe(), folder, begin_from=begin_from)
        assert all(torch.equal(value, expected[name]) for name, value in weights(found).items())
        assert metrics(folder) == lines
        assert names(folder) == files
    assert trials.outcomes["killed"] > 0
