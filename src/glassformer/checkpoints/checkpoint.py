"""A folder of weights, opened as one of our models with nothing read yet.

    checkpoint = open_folder("Llama-3.2-1B")      config and headers only
    checkpoint.config, checkpoint.model           the model, on the meta device
    checkpoint.read(["embed.matrix"])             a tensor under our name, mapped from the file where it lies as it is
    checkpoint.fill(dtype, device)                the model with its weights

Whose layout the folder has, ours or a published family's, matters nowhere else.
"""

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.checkpoints.families import Family, Fields, Piece, Source, assembled, recognise, sources, stored_names
from glassformer.checkpoints.tensors import TensorFiles
from glassformer.errors import CheckpointError, ConfigError, nearest
from glassformer.models import ModelConfig

CONFIG = "config.json"


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
    """

    folder: Path
    config: ModelConfig
    model: Any
    parts: Mapping[str, Source]
    files: TensorFiles
    stored: Mapping[str, str]
    origin: Origin | None = None

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type that most of its numbers are stored in."""
        counted: dict[torch.dtype, int] = {}
        for place in self.files.values():
            if place.dtype is not None:
                counted[place.dtype] = counted.get(place.dtype, 0) + torch.Size(place.shape).numel()
        return max(counted, key=lambda kind: counted[kind], default=torch.float32)

    def read(self, names: Iterable[str], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Return tensors under our names.

        One that lies in the files as it is wanted is a view on the mapped file; others are put together in memory.

        Args:
            names: Ours, as in the model's state dict.
            dtype: Wanted type; the checkpoint's by default.

        Raises:
            CheckpointError: A tensor is unknown, damaged, or of another shape than the config asks for.
        """
        wanted, found = dtype or self.dtype, dict[str, Tensor]()
        for name in names:
            if name not in self.parts:
                raise CheckpointError(f'"{self.folder}" has no tensor "{name}".{nearest(name, self.parts)}')
            found[name] = assembled(name, self.parts[name], lambda theirs: self.files.read(self.stored[theirs]), wanted)
            if not self.is_mapped(name, wanted):
                self.files.release(self.stored_as(name))
        return found

    def is_mapped(self, name: str, dtype: torch.dtype | None = None) -> bool:
        """Whether one of our tensors lies in a file as it is wanted, so that reading it copies nothing."""
        pieces = self.parts[name].pieces
        if not pieces:
            return False
        as_stored = self.files[self.stored[pieces[0].name]].dtype == (dtype or self.dtype)
        return len(pieces) == 1 and pieces[0].is_whole and as_stored

    def stored_as(self, name: str) -> list[str]:
        """Return the tensors in the files that one of ours is made of."""
        return [self.stored[piece.name] for piece in self.parts[name].pieces]

    def fill(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Any:
        """Return the model with its weights, in evaluation mode: one copy of them, mapped where that is possible.

        Args:
            dtype: Of the weights; the checkpoint's by default.
            device: Where to; the CPU by default.
        """
        for name in self.parts:
            value = self.read([name], dtype)[name]
            place(self.model, name, value if device is None else value.to(device))
        self.model.origin = self.origin
        return self.model.eval()


def place(model: torch.nn.Module, name: str, value: Tensor) -> None:
    """Let a model have a tensor, as it is, for its parameter or buffer of that name."""
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    before = getattr(module, last)
    is_parameter = isinstance(before, torch.nn.Parameter)
    setattr(module, last, torch.nn.Parameter(value, before.requires_grad) if is_parameter else value)


def open_published(folder: Path, config: Mapping[str, Any], where: Path) -> Checkpoint:
    """Open a folder whose config.json another library wrote.

    Raises:
        CheckpointError: No family covers it, it is quantised, or config and tensors do not fit each other.
    """
    # what no family covers is told before the files are looked for
    translated(config, where)
    files = TensorFiles(folder)
    family, ours = translated(config, where, files)
    quantised = [(name, place.stored_as) for name, place in files.items() if place.dtype is None]
    # a tensor may hold all layers
    n_tensors = len(files) if not family.holds else sum(place.shape[0] for place in files.values() if place.shape)
    model = skeleton(ours, n_tensors, folder)
    with _read_as(family, where):
        table = family.table(Fields(config, str(where)), ours)
    parts = sources({name: tuple(v.shape) for name, v in model.state_dict().items()}, table)
    stored = stored_names(family, parts, files)
    wanted = set(stored.values())
    for name, kind in quantised:
        if name in wanted:
            raise CheckpointError(
                f'"{folder}": "{name}" is stored as {kind}; weights of F16, BF16, F32 and F64 are read, quantised ones '
                "are not."
            )
    return Checkpoint(folder, ours, model, parts, files, stored, Origin(family.name, dict(config)))


def translated(config: Mapping[str, Any], where: Path, names: Collection[str] = ()) -> tuple[Family, ModelConfig]:
    """Return the family of a published config beside tensors of these names, and our config of it.

    Raises:
        CheckpointError: No family covers it, it is quantised, or it says what cannot be represented.
    """
    if isinstance(method := config.get("quantization_config"), Mapping):
        raise CheckpointError(
            f'"{where}" describes a quantised model ({method.get("quant_method", "unknown method")}), and quantised '
            "weights are not read. Use the unquantised checkpoint, or dequantise it with the library that made it."
        )
    family = recognise(config, str(where), names)
    with _read_as(family, where):
        return family, family.config(Fields(config, str(where)))


@contextlib.contextmanager
def _read_as(family: Family, where: Path) -> Iterator[None]:
    """Turn what goes wrong while a config is translated into an error about that config."""
    try:
        yield
    except CheckpointError:
        raise
    except ConfigError as error:
        raise CheckpointError(f'"{where}", read as {family.name}: {error}') from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # no heads to divide by, no layers to look at, a list where a number belongs
        raise CheckpointError(
            f'"{where}" contradicts itself, read as {family.name} ({type(error).__name__}: {error}); check its sizes '
            "and lists."
        ) from error


def open_own(folder: Path, config: ModelConfig, origin: Origin | None = None) -> Checkpoint:
    """Open a folder in our own layout, whole or in several files, whose config was read already."""
    files = TensorFiles(folder)
    model = skeleton(config, len(files), folder)
    shapes = {name: tuple(v.shape) for name, v in model.state_dict().items()}
    missing = [name for name in shapes if name not in files]
    extra = [name for name in files if name not in shapes]
    if missing or extra:
        problems = [f'"{name}" is missing.{nearest(name, files)}' for name in missing[:3]]
        problems += [f'"{name}" is not in the model.{nearest(name, shapes)}' for name in extra[:3]]
        raise CheckpointError(f'"{folder}" does not fit its config: {" ".join(problems)}')
    parts = {name: Source(shape, (Piece(name),)) for name, shape in shapes.items()}
    return Checkpoint(folder, config, model, parts, files, {name: name for name in shapes}, origin)


def config_file(folder: Path) -> tuple[dict[str, Any], Path]:
    """Return what the config file of a folder says, and where it is.

    Raises:
        CheckpointError: There is none, or it is no JSON object.
    """
    path = next((folder / name for name in (CONFIG, "params.json") if (folder / name).is_file()), folder / CONFIG)
    if not path.is_file():
        found = ", ".join(sorted(p.name for p in folder.glob("*"))[:6]) or "an empty folder"
        raise CheckpointError(f'"{folder}" holds no {CONFIG} (found: {found}).')
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f'"{path}" is not valid JSON ({error}).') from error
    if not isinstance(data, dict):
        raise CheckpointError(f'"{path}" must hold a JSON object, found {type(data).__name__}.')
    return data, path


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
