"""Whatever stops a recording, the folder holds the old state or the new, and what goes on makes the same bytes.

Each opening, write, sync and rename fails once in turn, by an error and by the end of the process; Ctrl-C comes in a
pass and while a file is written.
"""

import io
import os
import signal
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.analysis.activations import ActivationStore, record_activations
from glassformer.analysis.activations._manifest import read_manifest
from glassformer.errors import CheckpointError, SaveError
from glassformer.testing.models import subject

Act = Callable[[], None]
CALLS = ("open", "write", "fsync", "replace", "unlink")


@cache
def model() -> Any:
    return subject("attention_only", dtype=torch.float32).model


def texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 11, (2, 5), generator=generator) for _ in range(4)]


def record(folder: Path, **more: Any) -> ActivationStore:
    """Record four passes into two files."""
    return record_activations(model(), texts(), "blocks.1.resid_post", folder, shard=1000, second_moment=True, **more)


def files_in(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


@cache
def states(folder: Path) -> list[Mapping[str, bytes]]:
    """Return what the folder holds before, with the first manifest, with the first file, and in the end."""
    seen: list[Mapping[str, bytes]] = [{}]

    def look(done: int, total: int) -> None:
        if len(now := files_in(folder)) > len(seen[-1]):
            seen.append(now)

    record(folder, report=look)
    return seen


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, bytes]]:
    found = states(tmp_path_factory.mktemp("reference") / "store")
    # two passes a file
    assert [len(state) for state in found] == [0, 1, 3, 4]
    return found


class Nth:
    """Lets one call of the system fail, the nth of its kind, and counts them."""

    def __init__(self, patch: pytest.MonkeyPatch, call: str, number: int, act: Act) -> None:
        self.count, self.number, self.act = 0, number, act
        if call == "write":
            opened = os.fdopen

            def written(handle: int, mode: str) -> Any:
                return _HalfWritten(opened(handle, mode), self) if mode == "wb" else opened(handle, mode)

            patch.setattr(os, "fdopen", written)
        else:
            patch.setattr(os, call, self._before(getattr(os, call)))

    def due(self) -> bool:
        self.count += 1
        return self.count == self.number

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if self.due():
                self.act()
            return function(*args, **kwargs)

        return called


class _HalfWritten(io.BufferedWriter):
    def __init__(self, file: Any, nth: Nth) -> None:
        super().__init__(file.detach())
        self.nth = nth

    def write(self, content: Any) -> int:
        half = len(content) // 2
        super().write(bytes(content)[:half])
        if self.nth.due():
            self.flush()
            self.nth.act()
        super().write(bytes(content)[half:])
        return len(content)


def no_space() -> None:
    raise OSError(28, "No space left on device")


def in_a_state(folder: Path, reference: list[Mapping[str, bytes]]) -> int:
    """Return which state a folder is in; what its manifest does not name counts for nothing."""
    found = files_in(folder)
    manifest = read_manifest(folder)
    named = set() if manifest is None else {"manifest.json", manifest.moments, *(s.file for s in manifest.shards)}
    named.discard("")
    assert {name: found[name] for name in named} in reference
    return len(named)


@pytest.mark.parametrize("call", CALLS)
def test_each_call_that_fails_once_leaves_the_old_state_or_the_new(
    call: str, reference: list[Mapping[str, bytes]], tmp_path: Path
) -> None:
    failed, number = 0, 0
    while True:
        number += 1
        folder = tmp_path / f"{number}"
        with pytest.MonkeyPatch.context() as patch:
            nth = Nth(patch, call, number, no_space)
            try:
                record(folder)
            except (SaveError, CheckpointError):
                failed += 1
        if nth.count < number:
            break
        in_a_state(folder, reference)
        record(folder)
        assert files_in(folder) == reference[-1], number
    # what is not swept away is swept away the next time
    assert number > 1 and (failed == number - 1 if call != "unlink" else not failed)


@pytest.mark.full
@pytest.mark.parametrize("call", CALLS)
def test_a_process_that_ends_at_any_call_leaves_a_store_that_goes_on(
    call: str, reference: list[Mapping[str, bytes]], tmp_path: Path
) -> None:
    ended = []
    for number in range(1, 100):
        folder = tmp_path / f"{number}"
        child = os.fork()
        if child == 0:
            Nth(pytest.MonkeyPatch(), call, number, lambda: os._exit(7))
            try:
                record(folder)
            finally:
                os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
            break
        ended.append(in_a_state(folder, reference))
        record(folder)
        assert files_in(folder) == reference[-1], number
    assert ended and ended == sorted(ended)


def test_ctrl_c_is_obeyed_between_two_passes_and_never_inside_a_file(
    reference: list[Mapping[str, bytes]], tmp_path: Path
) -> None:
    for number in range(1, 5):
        folder = tmp_path / f"pass {number}"

        def ask(done: int, total: int, number: int = number) -> None:
            if done == number:
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            record(folder, report=ask)
        assert files_in(folder) == reference[1 + number // 2]
        record(folder)
        assert files_in(folder) == reference[-1]
    for call in ("write", "fsync", "replace"):
        folder = tmp_path / call
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            # the third is of what belongs to the first file, behind the manifest
            Nth(patch, call, 3, lambda: signal.raise_signal(signal.SIGINT))
            record(folder)
        assert files_in(folder) == reference[2]
        record(folder)
        assert files_in(folder) == reference[-1]


def test_a_store_that_is_not_finished_is_not_opened_and_one_that_is_makes_no_pass(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    model().name = "a name"
    with pytest.raises(KeyboardInterrupt):
        record(tmp_path / "store", report=stop)
    with pytest.raises(CheckpointError, match=r"holds 2 of 4 passes: its recording was stopped.\n.*same call"):
        ActivationStore.open(tmp_path / "store")
    told: list[tuple[int, int]] = []
    first = record(tmp_path / "store", report=lambda *n: told.append(n))
    assert told == [(2, 4), (3, 4), (4, 4)]
    before = files_in(tmp_path / "store")
    # what it is called does not make it another model
    model().name = "another name"
    again = record(tmp_path / "store", report=lambda *n: told.append(n))
    assert len(told) == 3 and files_in(tmp_path / "store") == before
    assert torch.equal(again.site("blocks.1.resid_post").mean, first.site("blocks.1.resid_post").mean)
