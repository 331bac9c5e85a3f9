"""The manifest of a store: what it is to hold, and which files of it are there.

    manifest.json                   what the store is of, and how far it has come
    shard-00000.safetensors …       rows of each site by its name, with tokens, documents and positions
    moments-00004.safetensors       running moments up to the last shard

A shard, the moments up to it and the manifest that names both are on the disk before any of them takes its name, and
the manifest takes its name last: a store is what its manifest says, whatever else a kill left in the folder. The
manifest is there before the first shard, so that files of such names without one are somebody else's.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer import files
from glassformer.analysis.activations._columns import Column
from glassformer.errors import CheckpointError
from glassformer.files import json_text

FORMAT = 1
MANIFEST = "manifest.json"
_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32",
}  # fmt: skip
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# beside the numbers of sites; of a source's rows with this in front
ABOUT = ("tokens", "documents", "positions")
SIDES = {False: "", True: "source "}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a store is to hold; two recordings with the same plan are one store.

    Args:
        name: Of the model.
        model: Digest of its config and weights.
        texts: Digest of all that the passes read.
        columns: Its sites.
        dtype: Of the stored numbers.
        drop: Which positions are left out.
        second_moment: Whether products of all pairs of coordinates are summed.
        shard: Bytes from which a file is full.
        passes: How many passes there are in all.
        documents: How many documents they read.
    """

    name: str
    model: str
    texts: str
    columns: tuple[Column, ...]
    dtype: str
    drop: tuple[str, ...]
    second_moment: bool
    shard: int
    passes: int
    documents: int

    def difference(self, other: "Plan") -> str:
        """Return what another plan asks otherwise, in words; nothing if both are of one store."""
        said = {
            "model": f"it is of {self._model()}, and the model is {other._model()}",
            "texts": "its texts, or ways of cutting them into tokens and passes, are others",
            "columns": f"it is of the sites {self._sites()}, and asked are {other._sites()}",
        }
        for name in (field.name for field in dataclasses.fields(self) if field.name != "name"):
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                return said.get(name, f"it has {name}={here!r}, and asked is {name}={there!r}")
        return ""

    def _model(self) -> str:
        return f"{self.name!r} ({self.model[:20]}…)"

    def _sites(self) -> str:
        return ", ".join(column.name for column in self.columns)

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return dataclasses.asdict(self) | {"columns": [column.to_dict() for column in self.columns]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        columns = tuple(Column.from_dict(one) for one in data["columns"])
        found = cls(**{**data, "columns": columns, "drop": tuple(data["drop"])})
        if found.dtype not in DTYPES:
            raise ValueError(f'no type of numbers is called "{found.dtype}"')
        return found


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of rows.

    Args:
        file: Its name.
        size: Bytes.
        passes: How many passes it holds.
        rows: How many rows of the side that ends in the logits, and of the source.
    """

    file: str
    size: int
    passes: int
    rows: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a store is to hold, and what is there.

    Args:
        plan: What it is to hold.
        provenance: What it is of, as results say it.
        shards: Files of rows, in order.
        moments: File of running moments; empty before the first shard.
    """

    plan: Plan
    provenance: Mapping[str, Any]
    shards: tuple[Shard, ...] = ()
    moments: str = ""

    @property
    def passes(self) -> int:
        """How many passes are stored."""
        return sum(shard.passes for shard in self.shards)

    @property
    def is_complete(self) -> bool:
        """Whether all passes are stored."""
        return self.passes == self.plan.passes

    def rows(self, source: bool) -> int:
        """Return how many rows of a side are stored."""
        return sum(shard.rows[source] for shard in self.shards)

    def text(self) -> str:
        """Return it as it is written."""
        shards = [dataclasses.asdict(shard) for shard in self.shards]
        said = {"format": FORMAT, "plan": self.plan.to_dict(), "shards": shards, "moments": self.moments}
        return json_text(said | {"provenance": self.provenance}, indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if there is none.

    Raises:
        CheckpointError: It is damaged, of another format, a file that it names is not there or of another size, or
            there are such files and no manifest.
    """
    path = folder / MANIFEST
    if not path.exists():
        if others := _files_of_rows(folder):
            raise CheckpointError(
                f'"{folder}" has {others[0].name} and no {MANIFEST}, so whose file that is is not known.\n'
                "    Give another folder, or move what is in it."
            )
        return None
    try:
        said = files.read_json(path)
        if said["format"] != FORMAT:
            raise ValueError(f"it is in format {said['format']}; this version reads {FORMAT}")
        shards = tuple(Shard(**{**one, "rows": tuple(one["rows"])}) for one in said["shards"])
        found = Manifest(Plan.from_dict(said["plan"]), said["provenance"], shards, said["moments"])
        for shard in shards:
            size = (folder / shard.file).stat().st_size
            if size != shard.size:
                raise ValueError(f"{shard.file} has {size:,} bytes in place of {shard.size:,}")
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = files.reason(error)
        raise CheckpointError(f'cannot read a store of activations from "{folder}": {reason}.') from error


def commit(
    folder: Path, manifest: Manifest, shard: Mapping[str, Sequence[Tensor]], moments: Mapping[str, Tensor]
) -> Manifest:
    """Add a shard to a store, the moments up to it and the manifest that names both; return that manifest.

    Args:
        folder: Of the store.
        manifest: As it is.
        shard: Tensors of the new file, in parts; how many rows and passes it has shows in them.
        moments: Tensors of the new moments.

    Raises:
        SaveError: It cannot be written. The store is what it was.
    """
    number = len(manifest.shards)
    content, name = _packed(shard), f"shard-{number:05d}.safetensors"
    output, source = (sum(map(len, shard.get(f"{side}tokens", ()))) for side in SIDES.values())
    added = Shard(name, len(content), sum(map(len, shard["passes"])), (output, source))
    found = dataclasses.replace(manifest, shards=(*manifest.shards, added), moments=f"moments-{number:05d}.safetensors")
    of_moments = _packed({name: [value] for name, value in moments.items()})
    files.write_all(folder, {name: content, found.moments: of_moments, MANIFEST: found.text()})
    sweep(folder, found)
    return found


def _packed(tensors: Mapping[str, Sequence[Tensor]]) -> bytes:
    """Return tensors in the layout of safetensors, parts of each put together along the first axis on the way.

    So nothing is copied but once, where joining the parts and serialising the whole would be three times.
    """
    placed: dict[str, tuple[str, Sequence[int], int]] = {}
    data: list[Any] = []
    for name, parts in sorted(tensors.items(), key=lambda one: (-one[1][0].itemsize, one[0])):
        first = parts[0]
        shape = [sum(map(len, parts)), *first.shape[1:]] if first.ndim else []
        placed[name] = _TYPES[first.dtype], shape, sum(part.nbytes for part in parts)
        data += [part.contiguous().reshape(-1).view(torch.uint8).numpy().data for part in parts]
    return b"".join([files.safetensors_header(placed), *data])


def sweep(folder: Path, manifest: Manifest) -> None:
    """Remove files of a store that its manifest does not name: earlier moments, and what a kill left."""
    files.sweep(folder)
    named = {manifest.moments, *(shard.file for shard in manifest.shards)}
    for path in _files_of_rows(folder):
        if path.name not in named:
            with contextlib.suppress(OSError):
                path.unlink()


def _files_of_rows(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.safetensors") if path.name.startswith(("shard-", "moments-")))


def read_moments(folder: Path, manifest: Manifest) -> dict[str, Tensor]:
    """Return the tensors of the running moments, none before the first shard; raises `CheckpointError`."""
    return _tensors(folder / manifest.moments) if manifest.moments else {}


def read_passes(folder: Path, manifest: Manifest) -> Tensor:
    """Return how many rows each pass gave of the side that ends in the logits and of the source, `pass 2`.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    return torch.cat([_tensors(folder / shard.file, "passes")["passes"] for shard in manifest.shards]).long()


def _tensors(path: Path, *names: str) -> dict[str, Tensor]:
    """Return tensors of a file, all unless some are named."""
    from safetensors import SafetensorError

    try:
        with files.tensors_in(path) as file:
            return {name: file.get_tensor(name) for name in names or file.keys()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f'cannot read "{path}": {files.reason(error)}.') from error
