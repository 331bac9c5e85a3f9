"""A folder that another library wrote: a family translates its config and finds its tensors by their names."""

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch

from glassformer.checkpoints.adapters import merging, unmerged_notes
from glassformer.checkpoints.checkpoint import Checkpoint, Origin, skeleton
from glassformer.checkpoints.families import (
    Family,
    Fields,
    as_filed,
    head_of,
    labels_of,
    notes_of_head,
    recognise,
    require_read,
    sources,
    stored_names,
    trained_length,
)
from glassformer.checkpoints.generation import rules_of
from glassformer.checkpoints.halves import TextHalf, is_whole, text_half
from glassformer.checkpoints.quantised import require_unquantised
from glassformer.checkpoints.tensors import TensorFiles, Tensors
from glassformer.data import Tokenizer, lack_of_tokenizer, published
from glassformer.data.tokenizer import label_tokenizer
from glassformer.errors import CheckpointError, ConfigError
from glassformer.models import ModelConfig
from glassformer.provenance import ModelNote

# where a conversion writes what must be known of the weights
NOTES = "notes_on_weights"


@dataclass(frozen=True, eq=False)
class PublishedFolder:
    """A published model on disk.

    Args:
        folder: The folder.
        path: Its config file.
        said: What that file says.
        adapter: Folder of an adapter that is merged into the weights, if one is.
    """

    folder: Path
    path: Path
    said: Mapping[str, Any]
    adapter: Path | None = None
    mapped: ClassVar[bool] = True
    # published files come without digests
    digest: ClassVar[str] = ""
    in_memory: ClassVar[bool] = False

    @cached_property
    def config(self) -> ModelConfig:
        """Our config of it."""
        return translated(self.said, self.path)[1]

    @property
    def notes(self) -> tuple[ModelNote, ...]:
        """What must be known of its weights, as far as it is seen without them: what it says, and what lies beside."""
        return (*_written_notes(self.said, self.path), *(unmerged_notes(self.folder) if self.adapter is None else ()))

    def open(self) -> Checkpoint:
        """Return the checkpoint, nothing read but headers.

        Raises:
            CheckpointError: No family covers it, it is quantised, or config and tensors do not fit each other.
        """
        # what no family covers is told before the files are looked for
        translated(self.said, self.path)
        files, notes = TensorFiles(self.folder), self.notes
        if self.adapter is not None:
            files, merged = merging(self.adapter)(files)
            notes = (*notes, *merged)
        return checkpoint_of(self.said, self.path, files, notes)

    def check(self, weights_only: bool = False) -> None:
        """Do nothing: published files come without digests."""

    def loaded_as(self, stored: torch.dtype) -> torch.dtype | None:
        """Return the type that weights come in unless another is asked for: the one they are stored in."""
        return None

    def tokenizers(self) -> dict[str, Tokenizer]:
        """Return its tokenizer under that name, if there is one that can be read, and the names of its classes."""
        found = {"tokenizer": published(self.folder), "output_tokenizer": self._labels()}
        return {name: one for name, one in found.items() if one is not None}

    def _labels(self) -> Tokenizer | None:
        """Return the names of its classes, None where it has none or two have one name."""
        if head_of(self.said) not in ("text", "tokens"):
            return None
        labels = labels_of(Fields(self.said, str(self.path)))
        return label_tokenizer(labels) if len(set(labels)) == len(labels) else None

    def lack_of_tokenizer(self) -> str:
        """Return why it has no tokenizer that can be read."""
        return lack_of_tokenizer(self.folder)


def checkpoint_of(said: Mapping[str, Any], path: Path, files: Tensors, notes: tuple[ModelNote, ...] = ()) -> Checkpoint:
    """Return a checkpoint of a published config and its tensors.

    Args:
        said: What the config says.
        path: Its file.
        files: The tensors.
        notes: What must be known of its weights.

    Raises:
        CheckpointError: No family covers it, or config and tensors do not fit each other.
    """
    if is_whole(said):
        half = TextHalf(files)
        files, notes = half, (*notes, *half.notes)
    said = as_filed(text_half(said, files), files)
    family, ours = translated(said, path, files)
    quantised = [(name, tensor.stored_as) for name, tensor in files.items() if tensor.dtype is None]
    # a tensor may hold all layers
    n_tensors = len(files) if not family.holds else sum(t.shape[0] for t in files.values() if t.shape)
    model = skeleton(ours, n_tensors, files.folder)
    with _read_as(family, path):
        table = family.names(Fields(said, str(path)), ours)
    parts = sources({name: tuple(v.shape) for name, v in model.state_dict().items()}, table)
    files = files.unwrapped({piece.name for source in parts.values() for piece in source.pieces})
    if files.wrapper:
        logging.getLogger(__name__).warning(
            '"%s": all names of tensors begin with "%s", which a wrapper of the model put there; it is taken off.',
            files.folder,
            files.wrapper,
        )
    stored = stored_names(family, parts, files, ours)
    wanted = set(stored.values())
    for name, kind in quantised:
        if name in wanted:
            raise CheckpointError(
                f'"{files.folder}": "{name}" is stored as {kind}; weights of F16, BF16, F32 and F64 are read, '
                "quantised ones are not."
            )
    origin = Origin(family.name, dict(said))
    with _read_as(family, path):
        trained = trained_length(family, Fields(said, str(path)), ours)
    return Checkpoint(
        folder=files.folder,
        config=ours,
        model=model,
        parts=parts,
        files=files,
        stored=stored,
        origin=origin,
        trained_length=trained,
        generation=rules_of(files.folder, said, ours),
        # what was said when the folder was written may be seen of it again
        notes=tuple(dict.fromkeys((*notes, *notes_of_head(ours, said)))),
    )


def _written_notes(said: Mapping[str, Any], path: Path) -> tuple[ModelNote, ...]:
    """Return the notes on its weights that a conversion wrote into a published config."""
    try:
        return tuple(ModelNote.from_dict(note) for note in said.get(NOTES, ()))
    except (TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f'"{path}": "{NOTES}" must be a list of notes, or be left out.') from error


def translated(config: Mapping[str, Any], where: Path, names: Collection[str] = ()) -> tuple[Family, ModelConfig]:
    """Return the family of a published config beside tensors of these names, and our config of it.

    Raises:
        CheckpointError: No family covers it, it is quantised, or it says what cannot be represented.
    """
    config = text_half(config, names)
    require_unquantised(config, where, names)
    family = recognise(config, str(where), names)
    fields = Fields(config, str(where))
    with _read_as(family, where):
        ours = family.translate(fields, names)
        require_read(family, fields)
    return family, ours


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
