"""Which checkpoints of a run folder count: one rule for training, which goes on from them, and for whoever loads a run.

    step-00001200/               a model folder, plus what training alone writes:
      facts.json                 what going on needs, under its own digest
      optimizer.safetensors      the optimizer's state, as long as training may go on from here

Where ranks of a mesh wrote it, each its shards, weights and state lie in the files of `rank_files`. A folder counts if
its name is that of a step and it holds facts or state. What it says of itself is checked when
it is used, never when it is counted: a damaged checkpoint is an error, not one that was never there.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.checkpoints.own import OwnFolder, sha256, verify
from glassformer.checkpoints.rank_files import holds_state
from glassformer.errors import CheckpointError
from glassformer.files import MOST_JSON, json_text, read, read_json, reason
from glassformer.files.packaged import CONFIG

FACTS, OPTIMIZER = "facts.json", "optimizer.safetensors"
# more than the losses between two lines of metrics ever take
MOST_BYTES = 2**26
_NEEDED = {"step", "tokens", "seconds", "losses", "threads", "torch", "keep", "sha256"}


def at(run: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return run / f"step-{step:08d}"


def steps(run: Path) -> list[int]:
    """Return the steps whose checkpoints count, in order."""
    named = ((folder, re.fullmatch("step-([0-9]{8,18})", folder.name)) for folder in run.glob("step-*"))
    found = ((folder, int(match[1])) for folder, match in named if match)
    return sorted(step for folder, step in found if folder == at(run, step) and _is_checkpoint(folder))


def newest(run: Path) -> Path | None:
    """Return the folder of the last checkpoint that counts, or None if there is none.

    Raises:
        CheckpointError: It is damaged, or its facts are those of another.
    """
    found = steps(run)
    if not found:
        return None
    check(at(run, found[-1]))
    return at(run, found[-1])


def check(folder: Path) -> dict[str, Any]:
    """Return the facts of a checkpoint whose model is the one they are of.

    The model's config holds the digests of its weights and tokenizer, which loading it checks.

    Raises:
        CheckpointError: The facts are damaged, or the model is another, or something there is no regular file and would
            hang or never end when read.
    """
    for path in folder.iterdir():
        if not path.is_file():
            raise CheckpointError(f'"{path}" is no regular file.')
    facts = read_facts(folder)
    try:
        digest = sha256(read(folder / CONFIG, MOST_JSON))
    except OSError as error:
        raise CheckpointError(f'cannot read "{folder / CONFIG}": {reason(error)}.') from error
    if facts["sha256"].get(CONFIG) != digest:
        raise CheckpointError(
            f'"{folder / CONFIG}" does not match its digest in {FACTS}: it is damaged, or of another.'
        )
    return facts


def optimizer_files(folder: Path) -> list[Path]:
    """Return the files with the optimizer's state: none once it is gone, one, or one of each rank."""
    of_ranks = sorted(path for path in folder.glob("*.safetensors") if holds_state(path.name))
    return [folder / OPTIMIZER] if os.path.lexists(folder / OPTIMIZER) else of_ranks


def checked_optimizer_files(folder: Path) -> list[Path]:
    """Return the same, once each is what its digest says: in the config of the model, or in the facts.

    Raises:
        CheckpointError: There are others than those, one is damaged, or what says their digests is.
    """
    found = optimizer_files(folder)
    try:
        said = OwnFolder(folder, folder / CONFIG, read_json(folder / CONFIG)).optimizer
    except (OSError, ValueError) as error:
        raise CheckpointError(f'cannot read "{folder / CONFIG}": {reason(error)}.') from error
    if not said and found == [folder / OPTIMIZER]:
        said = {OPTIMIZER: read_facts(folder)["sha256"].get(OPTIMIZER, "")}
    if odd := {path.name for path in found} ^ said.keys():
        raise CheckpointError(
            f'"{folder}" has more or fewer files with the state of an optimizer than it says: {", ".join(sorted(odd))}.'
        )
    for path in found:
        verify(path, said[path.name])
    return found


def facts_text(facts: Mapping[str, Any]) -> str:
    """Return what is written into facts.json."""
    return json_text({"facts": facts, "sha256": _digest(facts)}, finite=True)


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of a checkpoint.

    Raises:
        CheckpointError: They cannot be read, do not match their digest, or are those of another step.
    """
    path = folder / FACTS
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise ValueError("missing, no regular file, or too large")
        said = json.loads(path.read_text(encoding="utf-8"))
        facts = said["facts"]
        if said["sha256"] != _digest(facts):
            raise ValueError("they do not match their digest")
        if missing := sorted(_NEEDED - facts.keys()):
            raise ValueError(f"they lack {', '.join(missing)}")
        if not isinstance(facts["sha256"], dict) or not isinstance(facts["step"], int):
            raise ValueError("they are not what training writes")
        if at(folder.parent, facts["step"]).name != folder.name:
            raise ValueError(f"they are those of step {facts['step']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f'the facts of a checkpoint in "{path}" cannot be used: {_reason(error)}.') from error
    return facts


def _is_checkpoint(folder: Path) -> bool:
    return folder.is_dir() and (os.path.lexists(folder / FACTS) or bool(optimizer_files(folder)))


def _digest(facts: Mapping[str, Any]) -> str:
    return sha256(json_text(facts, sort=True))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) if isinstance(error, ValueError) else "it is not what training writes"
