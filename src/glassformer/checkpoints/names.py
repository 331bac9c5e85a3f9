"""What a model's name stands for: one that ships with the package, a folder, or an id of the Hugging Face hub."""

import os
from importlib.resources import files as resources
from pathlib import Path

from glassformer.checkpoints import hub, run_steps
from glassformer.checkpoints.checkpoint import CONFIG
from glassformer.checkpoints.tensors import WEIGHTS
from glassformer.errors import CheckpointError, UnknownModel, nearest


def shipped() -> list[str]:
    """Return the names of the models that come with the package."""
    zoo = resources("glassformer") / "zoo"
    return sorted(entry.name for entry in zoo.iterdir() if (entry / CONFIG).is_file()) if zoo.is_dir() else []


def folder_of(name: str | Path, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the folder of a shipped model, the model folder a path stands for, or that of a hub model's local copy.

    A run folder stands for the newest of its checkpoints.

    Raises:
        UnknownModel: None of them is there.
        CheckpointError: It is a file, a run folder whose newest checkpoint is damaged, or the hub cannot be reached.
    """
    if str(name) in shipped():
        return Path(str(resources("glassformer") / "zoo" / str(name)))
    folder = Path(name)
    # os.path, unlike Path, takes any text for a name that may not exist, however long
    if not os.path.isdir(folder):
        if os.path.isfile(folder):
            raise CheckpointError(f'"{folder}" is a file; give the folder that holds {CONFIG} and {WEIGHTS}.')
        if hub.is_id(str(name)):
            return hub.download(str(name), revision, weights=weights)
        known = shipped()
        raise UnknownModel(
            f'no model "{name}".{nearest(str(name), known)} Shipped: {", ".join(known) or "none"}; or give a folder, '
            "or a hub id (owner/model)."
        )
    return folder if (folder / WEIGHTS).exists() else run_steps.newest(folder) or folder
