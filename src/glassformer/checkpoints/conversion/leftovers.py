"""What a published folder holds beyond its weights: names that differ from those of its family, tensors nothing uses.

A model needs none of it, but whoever turns one into our layout and back again wants the files they had. So our folders
keep it, beside the weights, in `origin.safetensors`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from glassformer.checkpoints.checkpoint import Checkpoint
from glassformer.checkpoints.families import FAMILIES, Family
from glassformer.errors import CheckpointError
from glassformer.files import json_text

ORIGIN = "origin.safetensors"


@dataclass(frozen=True)
class Leftovers:
    """What comes back with a model that goes back to where it came from.

    Args:
        names: Under which names the files hold a tensor of the family's table, where that is not its own name alone.
        unused: Tensors that nothing uses, under their names.
    """

    names: Mapping[str, list[str]] = field(default_factory=dict)
    unused: Mapping[str, Tensor] = field(default_factory=dict)

    def save(self, folder: Path) -> list[str]:
        """Write it into a folder, and return the file's name; no file where there is nothing to keep."""
        if not self.names and not self.unused:
            return []
        # cloned: tensors that shared memory may have been stored twice
        tensors = {name: value.clone(memory_format=torch.contiguous_format) for name, value in self.unused.items()}
        save_file(tensors, folder / ORIGIN, {"names": json_text(self.names)})
        return [ORIGIN]


def leftovers_of(checkpoint: Checkpoint) -> Leftovers:
    """Return what a checkpoint of a published layout holds beyond its weights, or what one of ours kept of that.

    Raises:
        CheckpointError: What was kept is damaged.
    """
    if checkpoint.origin is None:
        return Leftovers()
    # only our own files have our names
    if checkpoint.stored.keys() == checkpoint.parts.keys():
        return _of_ours(checkpoint.folder / ORIGIN)
    family = next(family for family in FAMILIES if family.name == checkpoint.origin.family)
    copies = _copies(checkpoint, family)
    names = {name: [stored, *copies.get(name, [])] for name, stored in checkpoint.stored.items()}
    used = {stored for several in names.values() for stored in several}
    before = checkpoint.files.wrapper
    unused = {before + name: checkpoint.files.as_stored(name) for name in checkpoint.files if name not in used}
    names = {name: [before + stored for stored in several] for name, several in names.items()}
    return Leftovers({name: several for name, several in names.items() if several != [name]}, unused)


def _of_ours(path: Path) -> Leftovers:
    if not path.is_file():
        return Leftovers()
    try:
        with safe_open(path, "pt") as file:
            names = json.loads((file.metadata() or {})["names"])
            return Leftovers(names, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118  # no mapping
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(
            f'"{path}" is damaged ({error!r}); without it the model converts all the same.'
        ) from error


def _copies(checkpoint: Checkpoint, family: Family) -> dict[str, list[str]]:
    """Return for tensors of the table those in the files that hold the same numbers once more."""
    used, found = set(checkpoint.stored.values()), dict[str, list[str]]()
    for copy, of in family.copied(checkpoint.stored).items():
        ways = {copy, *(way for prefix in family.prefixes for way in (prefix + copy, copy.removeprefix(prefix)))}
        for name in sorted(ways):
            if name in checkpoint.files and name not in used and of in checkpoint.stored:
                one, other = (checkpoint.files.read(stored) for stored in (name, checkpoint.stored[of]))
                if one.dtype == other.dtype and torch.equal(one, other):
                    found.setdefault(of, []).append(name)
    return found
