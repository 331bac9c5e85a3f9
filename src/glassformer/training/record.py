"""The run folder: what a run writes, and how it is found again.

    config.json                 the whole recipe
    tokenizer.json              made once, when the run begins
    metrics.jsonl               one line per measured step
    samples.txt                 what the model wrote along the way
    step-00001200/              a model folder (load it like any other) plus facts.json and optimizer.safetensors
    lock                        held while a process trains here

A checkpoint is written beside its final name and then renamed, and renamed before it is removed, so a folder called
`step-*` is always whole. Nothing but the lock is written before `begin`: a run that cannot start leaves nothing behind.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse, save as serialise

from glassformer import checkpoints, files
from glassformer.config import Config
from glassformer.data import Tokenizer
from glassformer.errors import CheckpointError, RunFolderError, SaveError
from glassformer.json_text import json_text

CONFIG, METRICS, SAMPLES = "config.json", "metrics.jsonl", "samples.txt"
OPTIMIZER, FACTS, LOCK = "optimizer.safetensors", "facts.json", "lock"


_BUILDING, _REMOVING = ".building-", ".removing-"


class RunFolder:
    """One run's folder, locked for as long as this object is open."""

    def __init__(self, folder: str | Path, config: Config) -> None:
        self.path = Path(folder)
        self._made: list[Path] = []
        self._lock = self._locked()
        try:
            self._check(config)
            self._sweep()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the folder; if the run never began, remove what was made for it."""
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
        """Return the tokenizer this run began with; learning its merges again would only take time."""
        known = (self.path / CONFIG).exists() and (self.path / "tokenizer.json").exists()
        return Tokenizer.load(self.path) if known else None

    def begin(self, config: Config, tokenizer: Tokenizer) -> None:
        """Write the recipe and the tokenizer, unless they are there already."""
        # the recipe first: a tokenizer without one could be taken up by another recipe
        contents = {CONFIG: config.to_json(), "tokenizer.json": tokenizer.to_json()}
        files.write_all(self.path, {name: text for name, text in contents.items() if not (self.path / name).exists()})

    def steps(self) -> list[int]:
        """Return the steps that have a whole checkpoint, in order."""
        return sorted(int(p.name[5:]) for p in self.path.glob("step-*") if re.fullmatch("step-[0-9]{8,}", p.name))

    def at(self, step: int) -> Path:
        return self.path / f"step-{step:08d}"

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        self._append(METRICS, json_text(metrics) + "\n")

    def sample(self, step: int, text: str) -> None:
        self._append(SAMPLES, f"=== step {step}\n{text}\n\n")

    def save(self, step: int, model: Any, optimizer: torch.optim.Optimizer, facts: dict[str, Any], keep: bool) -> None:
        """Write a checkpoint; older ones lose their optimizer state, or vanish unless they were to be kept.

        Raises:
            SaveError: It could not be written; the last one is whole.
        """
        if (self.at(step) / OPTIMIZER).exists():
            return  # a step has one state, and there it is
        building = self.path / f"{_BUILDING}{step:08d}"
        state = serialise(_flat(optimizer))
        facts = facts | {"step": step, "keep": keep, "sha256": checkpoints.sha256(state)}
        try:
            checkpoints.save(model, building)
            files.write_all(building, {OPTIMIZER: state, FACTS: json_text(facts)})
            # one that has lost its optimizer state may stand there, if a damaged later one was deleted by hand
            self._remove(self.at(step))
            os.replace(building, self.at(step))
            self._thin_before(step)
        except SaveError:
            raise
        except OSError as error:
            raise files.refused(self.at(step), error) from error
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Load the newest checkpoint into model and optimiser; return its facts, or None if there is none.

        Metrics and samples that a killed run wrote after that checkpoint are dropped.

        Raises:
            CheckpointError: The newest checkpoint is damaged.
        """
        steps = [step for step in self.steps() if (self.at(step) / OPTIMIZER).exists()]
        if not steps:
            self._forget_after(-1)
            return None
        folder = self.at(steps[-1])
        try:
            model.load_state_dict(checkpoints.load(folder).state_dict())
            facts = self._facts(steps[-1])
            state = (folder / OPTIMIZER).read_bytes()
            if facts.get("sha256", "") not in ("", checkpoints.sha256(state)):
                raise ValueError(f"{OPTIMIZER} does not match its digest")
            _restore(optimizer, parse(state))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(
                f'cannot resume from "{folder}": {error}. Delete that folder to begin again.'
            ) from error
        self._forget_after(steps[-1])
        self._thin_before(steps[-1])
        return facts

    def _facts(self, step: int) -> dict[str, Any]:
        facts = json.loads((self.at(step) / FACTS).read_text(encoding="utf-8"))
        missing = [name for name in ("step", "tokens", "seconds", "threads", "torch", "keep") if name not in facts]
        if missing:
            raise ValueError(f"{FACTS} lacks {', '.join(missing)}")
        return {"losses": []} | facts

    def _thin_before(self, step: int) -> None:
        for older in self.steps():
            if older < step:
                self._thin(older)

    def _thin(self, step: int) -> None:
        try:
            keep = bool(self._facts(step)["keep"])
        except (OSError, ValueError, TypeError):
            keep = True  # a folder that is not ours to remove
        if keep:
            (self.at(step) / OPTIMIZER).unlink(missing_ok=True)
        else:
            self._remove(self.at(step))

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
        for name in (CONFIG, METRICS, SAMPLES, "tokenizer.json"):
            for leftover in self.path.glob(f".{name}-*"):
                leftover.unlink(missing_ok=True)

    def _locked(self) -> IO[str]:
        try:
            made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / LOCK).open("w")
        except OSError as error:
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

    def _check(self, config: Config) -> None:
        path = self.path / CONFIG
        if not path.exists():
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict):
                raise ValueError("not an object")
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(f'"{path}" is damaged ({error}). Give this run a folder of its own.') from error
        ours = json.loads(config.to_json())
        different = sorted(k for k in found | ours if found.get(k) != ours.get(k))
        if different:
            raise RunFolderError(
                f'"{self.path}" holds a run of another recipe (different: {", ".join(different)}). '
                "Give this run a folder of its own, or delete that one."
            )

    def _append(self, name: str, text: str) -> None:
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise files.refused(self.path / name, error) from error

    def _forget_after(self, step: int) -> None:
        for name, kept in ((METRICS, _lines_until), (SAMPLES, _samples_until)):
            path = self.path / name
            if path.exists():
                files.write(path, kept(path.read_text(encoding="utf-8", errors="replace"), step))


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Return the lines of a run's (or a shipped model's) metrics.jsonl."""
    path = Path(folder) / METRICS
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise RunFolderError(
            f'"{folder}" holds no {METRICS} ({error.strerror or error}). Give the folder of a run.'
        ) from error
    except ValueError as error:
        raise RunFolderError(f'"{path}" is damaged ({error}). Resuming the run drops what was cut off.') from error
    if not all(isinstance(line, dict) and {"step", "tokens"} <= line.keys() for line in lines):
        raise RunFolderError(f'"{path}" is damaged: a line lacks "step" or "tokens".')
    return lines


def _lines_until(text: str, step: int) -> str:
    kept = []
    for line in text.splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(f"{line}\n")
        except (ValueError, KeyError, TypeError):
            break  # the line a kill cut off
    return "".join(kept)


def _samples_until(text: str, step: int) -> str:
    parts = re.split(r"^(?==== step \d+$)", text, flags=re.MULTILINE)
    return "".join(part for part in parts if part and int(part.split(maxsplit=3)[2]) <= step)


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
