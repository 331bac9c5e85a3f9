"""The run folder: what a run writes, and how it is found again.

    run.json                    the whole recipe
    tokenizer.json              made once, when the run begins
    metrics.jsonl               one line per measured step
    samples.txt                 what the model wrote along the way
    step-00001200/              a model folder (load it like any other) plus optimizer.safetensors
    lock                        held while a process trains here

A checkpoint is written beside its final name and then renamed, so a folder called `step-*` is always whole.
"""

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialise

from glassformer import checkpoints, files
from glassformer.config import Config
from glassformer.data import Tokenizer
from glassformer.errors import CheckpointError, RunFolderError, SaveError

CONFIG, METRICS, SAMPLES, OPTIMIZER = "run.json", "metrics.jsonl", "samples.txt", "optimizer.safetensors"


class RunFolder:
    """One run's folder, locked for as long as this object is open."""

    def __init__(self, folder: str | Path, config: Config) -> None:
        self.path = Path(folder)
        self._lock = self._locked()
        try:
            self._check(config)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer this run began with; learning its merges again would only take time."""
        return Tokenizer.load(self.path) if (self.path / "tokenizer.json").exists() else None

    def keep_tokenizer(self, tokenizer: Tokenizer) -> None:
        if not (self.path / "tokenizer.json").exists():
            tokenizer.save(self.path)

    def steps(self) -> list[int]:
        """Return the steps that have a whole checkpoint, in order."""
        return sorted(int(p.name.removeprefix("step-")) for p in self.path.glob("step-*") if p.name[5:].isdigit())

    def at(self, step: int) -> Path:
        return self.path / f"step-{step:08d}"

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        self._append(METRICS, json.dumps(metrics) + "\n")

    def sample(self, step: int, text: str) -> None:
        self._append(SAMPLES, f"=== step {step}\n{text}\n\n")

    def save(self, step: int, model: Any, optimizer: torch.optim.Optimizer, facts: dict[str, Any], keep: bool) -> None:
        """Write a checkpoint; older ones lose their optimizer state, or vanish unless they were to be kept."""
        building = self.path / f".building-{step:08d}"
        shutil.rmtree(building, ignore_errors=True)
        checkpoints.save(model, building)
        files.write(building / OPTIMIZER, serialise(_flat(optimizer)))
        files.write(building / "facts.json", json.dumps(facts | {"step": step, "keep": keep}))
        shutil.rmtree(self.at(step), ignore_errors=True)
        os.replace(building, self.at(step))
        for older in self.steps():
            if older < step:
                self._thin(older)

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Load the newest checkpoint into model and optimiser; return its facts, or None if there is none.

        Lines of metrics.jsonl that a killed run wrote after that checkpoint are dropped.
        """
        steps = [step for step in self.steps() if (self.at(step) / OPTIMIZER).exists()]
        self._forget_after(steps[-1] if steps else 0)
        if not steps:
            return None
        folder = self.at(steps[-1])
        model.load_state_dict(checkpoints.load(folder).state_dict())
        try:
            _restore(optimizer, load_file(folder / OPTIMIZER))
            return json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f'cannot resume from "{folder}": {error}. Delete that folder to go back one checkpoint.') from error

    def _thin(self, step: int) -> None:
        facts = json.loads((self.at(step) / "facts.json").read_text(encoding="utf-8"))
        if facts["keep"]:
            (self.at(step) / OPTIMIZER).unlink(missing_ok=True)
        else:
            shutil.rmtree(self.at(step), ignore_errors=True)

    def _locked(self) -> IO[str]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("w")
        except OSError as error:
            raise SaveError(f'cannot write to the run folder "{self.path}": {error.strerror or error}.') from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise RunFolderError(
                f'another process is training in "{self.path}". Wait for it, or give this run a folder of its own.'
            ) from error
        return lock

    def _check(self, config: Config) -> None:
        path = self.path / CONFIG
        if not path.exists():
            files.write(path, config.to_json())
            return
        found = json.loads(path.read_text(encoding="utf-8"))
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
            raise SaveError(f'cannot write "{self.path / name}": {error.strerror or error}.') from error

    def _forget_after(self, step: int) -> None:
        path = self.path / METRICS
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError):
                break  # the line a kill cut off
        files.write(path, "".join(f"{line}\n" for line in kept))


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Return the lines of a run's (or a shipped model's) metrics.jsonl."""
    path = Path(folder) / METRICS
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError as error:
        raise RunFolderError(f'"{folder}" holds no {METRICS}. Give the folder of a run.') from error
    except ValueError as error:
        raise RunFolderError(f'"{path}" is damaged ({error}).') from error


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": torch.as_tensor(value).contiguous() for i, part in state.items() for name, value in part.items()}


def _restore(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    whole = optimizer.state_dict()
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(whole | {"state": state})
