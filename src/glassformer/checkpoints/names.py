"""What a model's name stands for: one that ships with the package, a folder, or an id of the Hugging Face hub."""

import difflib
import os
from pathlib import Path

from glassformer.arguments import checked
from glassformer.checkpoints import hub, run_steps
from glassformer.checkpoints.tensors import GGUF, WEIGHTS
from glassformer.errors import CheckpointError, UnknownModel, nearest
from glassformer.files.packaged import CONFIG, shipped, shipped_folder

# of two names, from 0 to 1: a slip of one or two letters
NEAR = 0.75


@checked
def folder_of(name: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Folder of a shipped model, the model folder a path stands for, or that of a hub model's local copy.

    A GGUF file is a model by itself. A run folder stands for the newest of its checkpoints.

    Raises:
        UnknownModel: None of them is there; where a folder has nearly that name, the hub is not asked.
        CheckpointError: It is a file, a run folder whose newest checkpoint is damaged, or the hub cannot be reached.
    """
    if str(name) in shipped():
        return shipped_folder(str(name))
    folder = Path(name)
    # os.path, unlike Path, takes any text for a name that may not exist, however long
    if not os.path.isdir(folder):
        if os.path.isfile(folder) and folder.suffix == GGUF:
            return folder
        if os.path.isfile(folder):
            raise CheckpointError(f'"{folder}" is a file; give the folder that holds {CONFIG} and {WEIGHTS}.')
        require_no_slip(str(name), revision)
        if hub.is_id(str(name)):
            return hub.download(str(name), revision, weights=weights)
        known = shipped()
        raise UnknownModel(
            f'no model "{name}".{nearest(str(name), known)} Shipped: {", ".join(known) or "none"}; or give a folder, '
            "or a hub id (owner/model)."
        )
    return folder if (folder / WEIGHTS).exists() else run_steps.newest(folder) or folder


def require_no_slip(name: str, revision: str | None = None) -> None:
    """Raise `UnknownModel` if a name can only be that of a folder which is not there, or is nearly that of one.

    A hub id may look like a folder: beside a folder `runs/gpt-2`, `runs/gpt2` is taken for a slip, unless the hub's
    cache has it, or a revision of it is asked for.
    """
    near = _near_folder(name)
    if _is_path(name):
        raise UnknownModel(f'no folder "{name}".' + (f' Nearest: "{near}".' if near else ""))
    if near and hub.is_id(name) and revision is None and not hub.is_cached(name):
        raise UnknownModel(
            f'no folder "{name}". Nearest: "{near}".\n    If the hub\'s model of that id is meant, download it first '
            f'(hf download {name}), or say which revision: glassformer.load(…, revision="main").'
        )


def _is_path(name: str) -> bool:
    """Whether a name can be nothing but a path."""
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    starts = tuple(mark + separator for separator in separators for mark in ("", ".", "..", "~"))
    return name.startswith(starts) or name.endswith(tuple(separators)) or sum(map(name.count, separators)) > 1


def _near_folder(name: str) -> str:
    """Return the folder that a name is nearly the path of; empty if there is none."""
    parent, last = os.path.split(name.rstrip("/"))
    try:
        beside = [entry.name for entry in os.scandir(parent or ".") if entry.is_dir()]
    except (OSError, ValueError):  # no such folder, or a name that none can have
        return ""
    close = difflib.get_close_matches(last, beside, n=1, cutoff=NEAR)
    return os.path.join(parent, close[0]) if close else ""
