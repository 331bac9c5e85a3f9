"""A folder of weights, opened as one of our models with nothing read yet.

    checkpoint = open_folder("Llama-3.2-1B")      config and headers only
    checkpoint.config, checkpoint.model           the model, on the meta device
    checkpoint.read(["embed.matrix"])             a tensor under our name, mapped from the file where it lies as it is
    checkpoint.fill(dtype, device)                the model with its weights

Whose layout the folder has, ours or a published family's, matters nowhere else.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.checkpoints.families import Source, assembled
from glassformer.checkpoints.tensors import Tensors
from glassformer.errors import CheckpointError, ConfigError, nearest
from glassformer.files.packaged import CONFIG
from glassformer.models import Model, ModelConfig
from glassformer.models.generation_rules import NO_RULES, GenerationRules
from glassformer.numerics.decompositions import is_finite
from glassformer.numerics.placement import Device, NumberType, device_of, number_type
from glassformer.provenance import ModelNote


class Origin(NamedTuple):
    """Where a model came from: the family's name and the config it was translated from, to write it back."""

    family: str
    config: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What lies in a folder, under our names.

    Args:
        folder: The folder.
        config: Of the model.
        model: The model without weights, on the meta device.
        parts: What each of our tensors is made of.
        files: The tensors as they lie there.
        stored: The name in the files of each tensor that the parts name.
        origin: Family and config, for a published layout.
        trained_length: Tokens of the longest rows the model was trained on; None if the folder does not say.
        generation: What the folder says of generating.
        notes: What must be known of its weights.
    """

    folder: Path
    config: ModelConfig
    model: Any
    parts: Mapping[str, Source]
    files: Tensors
    stored: Mapping[str, str]
    origin: Origin | None = None
    trained_length: int | None = None
    generation: GenerationRules = NO_RULES
    notes: tuple[ModelNote, ...] = ()

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type that most of its numbers are stored in."""
        counted: dict[torch.dtype, int] = {}
        for place in self.files.values():
            if place.dtype is not None:
                counted[place.dtype] = counted.get(place.dtype, 0) + torch.Size(place.shape).numel()
        return max(counted, key=lambda kind: counted[kind], default=torch.float32)

    def read(self, names: Iterable[str], dtype: NumberType | None = None) -> dict[str, Tensor]:
        """Return tensors under our names.

        One that lies in the files as it is wanted is a view on the mapped file; others are put together in memory.

        Args:
            names: Ours, as in the model's state dict.
            dtype: Wanted type; the checkpoint's by default.

        Raises:
            CheckpointError: A tensor is unknown, damaged, or of another shape than the config asks for.
        """
        wanted, found = number_type(dtype) or self.dtype, dict[str, Tensor]()
        for name in names:
            if name not in self.parts:
                raise CheckpointError(f'"{self.folder}" has no tensor "{name}".{nearest(name, self.parts)}')
            found[name] = assembled(name, self.parts[name], lambda theirs: self.files.read(self.stored[theirs]), wanted)
            if not self.is_mapped(name, wanted):
                self.files.release(self.stored_as(name))
        return found

    def is_mapped(self, name: str, dtype: NumberType | None = None) -> bool:
        """Whether one of our tensors lies in a file as it is wanted, so that reading it copies nothing."""
        pieces = self.parts[name].pieces
        if not pieces:
            return False
        as_stored = self.files[self.stored[pieces[0].name]].dtype == (number_type(dtype) or self.dtype)
        return len(pieces) == 1 and pieces[0].is_whole and as_stored

    def stored_as(self, name: str) -> list[str]:
        """Return the tensors in the files that one of ours is made of."""
        return [self.stored[piece.name] for piece in self.parts[name].pieces]

    def require_finite(self, name: str, value: Tensor) -> None:
        """Raise `CheckpointError` if what was read for one of our tensors holds NaN or infinity."""
        if is_finite(value):
            return
        theirs = list(dict.fromkeys(self.stored_as(name)))
        lying = f' (of "{theirs[0]}" in the files)' if theirs != [name] else ""
        if all(is_finite(self.files.read(stored)) for stored in theirs):
            raise CheckpointError(
                f'"{self.folder}": numbers of "{name}"{lying} are too large for {value.dtype}. Load it in a wider '
                "type: dtype=torch.float32."
            )
        bad, size = int((~value.isfinite()).sum()), value.numel()
        raise CheckpointError(
            f'"{self.folder}": "{name}"{lying} holds {bad:,} numbers of {size:,} that are NaN or infinite: whatever '
            "reads them comes out as NaN.\n    Its training diverged, or it was damaged before it was saved: take an "
            "earlier checkpoint, or another copy.\n    To open it all the same: glassformer.load(…, "
            "allow_nonfinite=True); on the command line --allow-nonfinite."
        )

    def tell(self, model: Model) -> None:
        """Let a model know what else the folder says of it."""
        model.origin, model.trained_length, model.generation = self.origin, self.trained_length, self.generation
        model.checkpoint_notes = self.notes

    def fill(
        self,
        dtype: NumberType | None = None,
        device: Device | None = None,
        *,
        mapped: bool = True,
        allow_nonfinite: bool = False,
    ) -> Any:
        """Return the model with its weights, in evaluation mode: one copy of them.

        Args:
            dtype: Of the weights; the checkpoint's by default.
            device: Where to; the CPU by default.
            mapped: Leave weights in their files where they lie as they are wanted, instead of copying them. Where in a
                file a tensor begins decides which instructions read it, and so the last bits of results.
            allow_nonfinite: Do not look whether weights are finite, which takes reading all of them once.

        Raises:
            CheckpointError: As for `read`, or a tensor holds NaN or infinity.
        """
        there = device_of(device)
        for name in self.parts:
            value = self.read([name], dtype)[name]
            if not mapped and self.is_mapped(name, dtype):
                value = value.clone()
                self.files.release(self.stored_as(name))
            value = value if there is None else value.to(there)
            if not allow_nonfinite:
                self.require_finite(name, value)
                # looking at them has brought their pages into memory
                self.files.release(self.stored_as(name))
            place(self.model, name, value)
        self.tell(self.model)
        return self.model.eval()


def place(model: torch.nn.Module, name: str, value: Tensor) -> None:
    """Let a model have a tensor, as it is, for its parameter or buffer of that name."""
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    before = getattr(module, last)
    is_parameter = isinstance(before, torch.nn.Parameter)
    setattr(module, last, torch.nn.Parameter(value, before.requires_grad) if is_parameter else value)


def skeleton(config: ModelConfig, n_tensors: int, folder: Path) -> Any:
    """Build the model without memory for its weights, however many the config asks for."""
    blocks = sum(len(value) for value in vars(config).values() if isinstance(value, tuple))
    if blocks > n_tensors:
        raise CheckpointError(f'"{folder}" has {n_tensors} tensors: too few for the {blocks} blocks of its config.')
    try:
        with torch.device("meta"):
            return config.build()
    except ConfigError as error:
        raise CheckpointError(f'"{folder / CONFIG}": {error}') from error
    except (RuntimeError, OverflowError, TypeError, MemoryError) as error:  # what torch says of sizes beyond 64 bits
        reason = str(error).splitlines()[0]
        raise CheckpointError(f'"{folder / CONFIG}" asks for tensors of impossible sizes ({reason}).') from error
    except (ArithmeticError, ValueError) as error:  # a table of angles that cannot be computed
        raise CheckpointError(f'"{folder / CONFIG}" asks for what cannot be computed ({error}).') from error
