"""The run folder: what a run writes, and how it is found again.

    config.json                 the whole recipe
    tokenizer.json              made once, when the run begins
    metrics.jsonl               one line per measured step
    samples.txt                 what the model wrote along the way
    step-00001200/              a model folder (load it like any other) plus facts.json and optimizer.safetensors,
                                or the files of `checkpoints.rank_files`, where ranks of a mesh keep their shards
    lock                        held while a process trains here

A checkpoint is written beside its final name and then renamed, and renamed before it is removed, so a folder called
`step-*` is always whole. Nothing but the lock is written before `begin`: a run that cannot start leaves nothing behind.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse, save as serialise

from glassformer import checkpoints, files
from glassformer.checkpoints import run_steps
from glassformer.checkpoints.own import sha256_of
from glassformer.checkpoints.rank_files import RankFiles
from glassformer.checkpoints.run_steps import FACTS, OPTIMIZER, optimizer_files
from glassformer.data import Tokenizer
from glassformer.errors import CheckpointError, RunFolderError, SaveError
from glassformer.training.config import TrainConfig
from glassformer.training.log import METRICS, SAMPLES, forget_after

CONFIG, TOKENIZER, LOCK = "config.json", "tokenizer.json", "lock"

_BUILDING, _REMOVING = ".building-", ".removing-"


class RunFolder:
    """One run's folder, locked for as long as this object is open; of several processes, by the one that `writes`."""

    def __init__(
        self, folder: str | Path, config: TrainConfig, begin_from: str | Path | None = None, *, writes: bool = True
    ) -> None:
        self.path, self._recipe, self.writes = Path(folder), config.identity(), writes
        self.begin_from = None if begin_from is None else Path(begin_from)
        self._made: list[Path] = []
        self._lock = self._locked() if writes else None
        try:
            self._check()
            if writes:
                self._sweep()
            # the checkpoint to go on from, and whether it is this run's own
            self.start = self.resumable()
            self.goes_on = self.start is not None
            if self.begin_from is not None and self.start is None:
                self.start = _beginning(self.begin_from)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the folder; if the run never began, remove what was made for it."""
        if self._lock is None:
            return
        if not (self.path / CONFIG).exists():
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
                for folder in self._made:
                    folder.rmdir()
        self._lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the checkpoint to go on from; learning its merges again would only take time.

        Raises:
            CheckpointError: It is damaged.
        """
        if self.start is None:
            return None
        try:
            run_steps.check(self.start)
            return Tokenizer.load(self.start) if (self.start / TOKENIZER).exists() else None
        except CheckpointError as error:
            raise _unusable(self.start, error) from error

    def begin(self, config: TrainConfig, tokenizer: Tokenizer | None) -> None:
        """Write the recipe and the tokenizer, if what is read has one, where they are not there already."""
        contents = {CONFIG: config.to_json()} | ({} if tokenizer is None else {TOKENIZER: tokenizer.to_json()})
        stale = {name: text for name, text in contents.items() if not _holds(self.path / name, text)}
        files.write_all(self.path, stale)

    def resumable(self) -> Path | None:
        """Newest checkpoint of this run that has its optimizer's state."""
        return _resumable(self.path)

    def building(self, step: int) -> Path:
        """Return the folder in which a step's checkpoint is written before it takes its name."""
        return self.path / f"{_BUILDING}{step:08d}"

    def save(self, step: int, model: Any, optimizer: torch.optim.Optimizer, facts: dict[str, Any]) -> None:
        """Write a checkpoint of a whole model; see `checkpoint`.

        Args:
            step: How many updates the weights have seen.
            model: Its weights.
            optimizer: Its state.
            facts: What else going on needs.

        Raises:
            SaveError: It could not be written; the last one is whole.
        """
        with self.checkpoint(step, facts) as building:
            if building is not None:
                checkpoints.save(model, building)
                files.write(building / OPTIMIZER, serialise(_flat(optimizer)))

    @contextlib.contextmanager
    def checkpoint(self, step: int, facts: dict[str, Any]) -> Iterator[Path | None]:
        """Yield the folder for a checkpoint's model and optimizer state, which is none yet; then give it its name.

        Older ones lose their optimizer state, or vanish unless they were to be kept. What is yielded is None where the
        checkpoint is there already: a step has one state.

        Args:
            step: How many updates the weights have seen.
            facts: What else going on needs; `keep` says whether the weights are kept for good.

        Raises:
            SaveError: It could not be written; the last one is whole.
        """
        place, building = run_steps.at(self.path, step), self.building(step)
        if optimizer_files(place):
            yield None
            return
        if os.path.lexists(place) and step not in run_steps.steps(self.path):
            raise SaveError(f'cannot write "{place}": what stands there is no checkpoint of this run. Move it away.')
        try:
            yield building
            # the model's own config holds the digests of its weights, its tokenizer and what ranks wrote
            said = [path for path in (building / CONFIG, building / OPTIMIZER) if path.exists()]
            digests = {path.name: sha256_of(path) for path in said}
            text = run_steps.facts_text(facts | self.said() | {"step": step, "sha256": digests})
            files.write(building / FACTS, text)
            # one that has lost its optimizer state may stand there, if a damaged later one was deleted by hand
            self._remove(place)
            os.replace(building, place)
            self._thin_before(step)
        except SaveError:
            raise
        except OSError as error:
            raise files.refused(place, error) from error
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def restore(self, model: torch.nn.Module, load: Callable[[Path], None]) -> dict[str, Any] | None:
        """Load the checkpoint to go on from; return its facts, or None if there is none.

        Metrics and samples that a killed run wrote after that checkpoint are dropped.

        Args:
            model: What is to be trained; whole, or a rank's part of it.
            load: Reads weights and optimizer state of a checkpoint.

        Raises:
            CheckpointError: The checkpoint is damaged, or of another model.
            RunFolderError: It was trained by another recipe, or began elsewhere.
        """
        if self.start is None:
            self._forget_after(-1)
            return None
        facts = _loaded(self.start, model, load)
        if self.goes_on:
            for name, said in self.said().items():
                if facts.get(name) != said:
                    raise RunFolderError(
                        f'"{self.start}" comes of another run (different: {name.replace("_", " ")}). '
                        "Give this run a folder of its own, or delete that one."
                    )
            if self.writes:
                self._thin_before(facts["step"])
        self._forget_after(facts["step"] if self.goes_on else -1)
        return facts

    def said(self) -> dict[str, Any]:
        """Return what every checkpoint says of the run it is of."""
        began = None if self.begin_from is None else str(self.begin_from.absolute())
        return {"recipe": checkpoints.sha256(self._recipe), "began_from": began}

    def _forget_after(self, step: int) -> None:
        if self.writes:
            forget_after(self.path, step)

    def _thin_before(self, step: int) -> None:
        for older in run_steps.steps(self.path):
            if older < step:
                self._thin(run_steps.at(self.path, older))

    def _thin(self, folder: Path) -> None:
        try:
            keep = bool(run_steps.read_facts(folder)["keep"])
        except CheckpointError:
            keep = True  # a folder that is not ours to remove
        if keep:
            for path in optimizer_files(folder):
                path.unlink(missing_ok=True)
        else:
            self._remove(folder)

    def _remove(self, folder: Path) -> None:
        """Remove a checkpoint under another name: a kill half-way must not leave a part of it under its own."""
        if folder.exists():
            condemned = self.path / f"{_REMOVING}{folder.name}"
            os.replace(folder, condemned)
            shutil.rmtree(condemned, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what a killed run left unfinished."""
        for pattern in (f"{_BUILDING}*", f"{_REMOVING}*"):
            for folder in self.path.glob(pattern):
                shutil.rmtree(folder, ignore_errors=True)
        files.sweep(self.path)

    def _locked(self) -> IO[str]:
        try:
            made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_files()
            # what a link of that name points at must not be emptied
            lock = (self.path / LOCK).open("a")
        # a name with a zero byte is none
        except (OSError, ValueError) as error:
            raise files.refused(self.path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # the holder before us may have removed the file between our two calls: then we hold nothing
            if not os.path.samestat(os.fstat(lock.fileno()), os.stat(self.path / LOCK)):
                raise BlockingIOError
        except OSError as error:
            lock.close()
            if not isinstance(error, (BlockingIOError, FileNotFoundError)):
                raise files.refused(self.path / LOCK, error) from error
            raise RunFolderError(
                f'another process is training in "{self.path}". Wait for it, or give this run a folder of its own.'
            ) from error
        self._made = made
        return lock

    def _check_files(self) -> None:
        """Refuse what would hang or fail in the middle of a run: a pipe, a folder, a link to nowhere."""
        for name in (CONFIG, METRICS, SAMPLES, TOKENIZER, LOCK):
            path = self.path / name
            if os.path.lexists(path) and not path.is_file():
                raise RunFolderError(
                    f'"{path}" is no regular file. Move it away, or give this run a folder of its own.'
                )

    def _check(self) -> None:
        path = self.path / CONFIG
        if not path.exists():
            return
        try:
            found = files.read_json(path)
            if not isinstance(found, dict):
                raise ValueError("not an object")
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(f'"{path}" is damaged ({error}). Give this run a folder of its own.') from error
        # a run may go on elsewhere
        found.pop("device", None)
        ours = json.loads(self._recipe)
        different = sorted(k for k in found | ours if found.get(k) != ours.get(k))
        if different:
            raise RunFolderError(
                f'"{self.path}" holds a run of another recipe (different: {", ".join(different)}). '
                f"Give this run a folder of its own, or delete that one.{_going_on(self.path, different)}"
            )


def _resumable(run: Path) -> Path | None:
    """Return the newest checkpoint that has its optimizer's state."""
    folders = (run_steps.at(run, step) for step in reversed(run_steps.steps(run)))
    return next((folder for folder in folders if optimizer_files(folder)), None)


def _going_on(path: Path, different: Sequence[str]) -> str:
    """Return how a run goes on from another of the same model."""
    if "model" in different:
        return ""
    return f'\n    To go on from its weights, give a new folder and begin from this one: --begin-from "{path}".'


def _beginning(asked: Path) -> Path:
    """Return the checkpoint that a path stands for: a run's newest, or the folder of a step."""
    found = asked if optimizer_files(asked) else _resumable(asked)
    if found is None:
        raise RunFolderError(
            f'"{asked}" holds no checkpoint to begin from. Give a run folder, or one of its step-* folders that has '
            f"{OPTIMIZER}, or shards of it: the newest has, older ones are kept for their weights."
        )
    return found


def load_whole(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a run's checkpoint, whole or in shards, into a whole model and its optimizer.

    Args:
        folder: Of the checkpoint.
        model: Of the same config.
        optimizer: Of its weights.

    Raises:
        CheckpointError: A file is damaged, or of another model.
    """
    try:
        state = _state(folder, model)
        model.load_state_dict(checkpoints.load(folder).state_dict())
        _restore(optimizer, state)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(str(error)) from error


def _state(folder: Path, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the optimizer's state as it lies on the disk, by number of the weight and name."""
    if not os.path.lexists(folder / OPTIMIZER):
        tensors = RankFiles(folder, [path.name for path in run_steps.checked_optimizer_files(folder)])
        return {name: tensors.read(name) for name in tensors}
    content = files.read(folder / OPTIMIZER, _most_of_state(model))
    if run_steps.read_facts(folder)["sha256"].get(OPTIMIZER) != checkpoints.sha256(content):
        raise ValueError(f"{OPTIMIZER} does not match its digest in {FACTS}.")
    return parse(content)


def _loaded(folder: Path, model: torch.nn.Module, load: Callable[[Path], None]) -> dict[str, Any]:
    """Let a checkpoint be loaded; return its facts. `CheckpointError` says that it is damaged, or another model's."""
    try:
        facts = run_steps.check(folder)
        unlike = sorted({name for name, _ in _shapes(model) ^ _shapes(_described(folder))})
        if not unlike:
            load(folder)
    # an exchange that fails is none of these
    except (OSError, CheckpointError) as error:
        raise _unusable(folder, error) from error
    if unlike:
        raise CheckpointError(
            f'"{folder}" holds another model than the recipe asks for: weights with another name or shape are '
            f"{', '.join(unlike[:3])}{', …' * (len(unlike) > 3)}. Begin from a checkpoint of that model, or train the "
            "one that is there."
        )
    return facts


def _described(folder: Path) -> torch.nn.Module:
    """Return the model that a checkpoint is of, without its weights."""
    with torch.device("meta"):
        return checkpoints.config_of(folder).build()


def _shapes(model: torch.nn.Module) -> set[tuple[str, torch.Size]]:
    return {(name, value.shape) for name, value in model.state_dict().items()}


def _most_of_state(model: torch.nn.Module) -> int:
    """Return the bytes that an optimiser's state may have: some numbers in float64 for each parameter, and a header."""
    return files.MOST_JSON + 64 * sum(p.numel() for p in model.parameters())


def _unusable(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f'cannot resume from "{folder}": {error} Delete that folder to begin again.')


def _holds(path: Path, text: str) -> bool:
    content = text.encode("utf-8")
    return path.exists() and path.stat().st_size == len(content) and path.read_bytes() == content


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"{i}.{name}": torch.as_tensor(value).contiguous() for i, part in state.items() for name, value in part.items()
    }


def _restore(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    whole = optimizer.state_dict()
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(whole | {"state": state})
