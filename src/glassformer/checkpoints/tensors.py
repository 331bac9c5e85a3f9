"""The tensors of a folder of safetensors files, one file or many: what there is, and reading it without a second copy.

Headers are read when a folder is opened; numbers when they are asked for. A tensor read whole is a view on the file
mapped into memory: nothing is copied, and pages come in as they are touched.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glassformer.errors import CheckpointError

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".msgpack", ".h5")

# protocols 2 to 5, and the archive that torch.save writes
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


class Place(NamedTuple):
    """Where a tensor lies; `dtype` is None for a type that weights do not have."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    stored_as: str


class TensorFiles(Mapping[str, Place]):
    """What lies in a folder's safetensors files: a mapping from tensor name to place.

    Args:
        folder: Holds `model.safetensors`, or several files and their index, or any one safetensors file.

    Raises:
        CheckpointError: No such files, only pickles, a file that is missing, truncated or no safetensors.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[str, Place] = {}
        files, index = _files(folder)
        for path in files:
            self._places |= _header(path)
        lost = [name for name in index if name not in self._places]
        if lost:
            raise CheckpointError(
                f'"{folder / INDEX}" says that "{lost[0]}" lies in "{index[lost[0]]}", which does not hold it'
                + (f" (and {len(lost) - 1} more)." if len(lost) > 1 else ".")
            )

        unlisted = [name for name in self._places if index and name not in index]
        if unlisted:
            raise CheckpointError(
                f'"{unlisted[0]}" lies in "{self._places[unlisted[0]].path}", but is missing from {INDEX}: one of the '
                "two is of another checkpoint."
            )

    def __getitem__(self, name: str) -> Place:
        return self._places[name]

    def __iter__(self):
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, name: str) -> Tensor:
        """Return a tensor as it is stored: a view on the mapped file."""
        place = self._places[name]
        try:
            # closed again at once: the tensor keeps its mapping, and nothing else does
            with safe_open(place.path, "pt") as file:
                return file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f'cannot read "{name}" from "{place.path}": {error}.') from error


def is_pickle(start: bytes) -> bool:
    """Whether a file that begins like this is a pickle, whatever its name says."""
    # the length of a safetensors header may begin like a pickle, but is followed by zeros and a brace
    return start.startswith(_PICKLES) and start[2:9] != bytes(6) + b"{"


def _files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the files to read, and what the index says of each tensor."""
    index = folder / INDEX
    if index.is_file():
        try:
            places = {str(k): str(v) for k, v in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f'"{index}" is no index of safetensors files ({error!r}).') from error
        outside = [name for name in set(places.values()) if Path(name).name != name]
        if outside:
            raise CheckpointError(f'"{index}" names "{outside[0]}", which does not lie in the folder.')
        files = [folder / name for name in sorted(set(places.values()))]
        missing = [path.name for path in files if not path.is_file()]
        if missing:
            raise CheckpointError(
                f'"{folder}" lacks {len(missing)} of its {len(files)} files: {", ".join(missing[:3])}. '
                "Copy or download them again."
            )
        return files, places
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS], {}
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if len(found) == 1:
        return found, {}
    if found:
        names = ", ".join(path.name for path in found[:3])
        raise CheckpointError(
            f'"{folder}" holds several safetensors files ({names}{", …" if len(found) > 3 else ""}) and no {INDEX} '
            f"that says which belong together; leave one of them, named {WEIGHTS}."
        )
    pickles = sorted(path.name for path in folder.glob("*") if path.suffix in PICKLED)
    if pickles:
        raise CheckpointError(
            f'"{folder}" holds its weights as {pickles[0]}, which can run code when it is opened and is refused.\n'
            "    On a machine you trust, write them as safetensors:\n"
            f'    tensors = torch.load("{pickles[0]}", map_location="cpu", weights_only=True)\n'
            f'    safetensors.torch.save_file({{k: v.contiguous() for k, v in tensors.items()}}, "{WEIGHTS}")'
        )
    there = ", ".join(sorted(path.name for path in folder.glob("*"))[:6]) or "nothing"
    raise CheckpointError(f'"{folder}" holds no safetensors file (found: {there}).')


def _header(path: Path) -> dict[str, Place]:
    try:
        with path.open("rb") as raw:
            start = raw.read(16)
    except OSError as error:
        raise CheckpointError(f'cannot read "{path}": {error.strerror or error}.') from error
    if is_pickle(start):
        raise CheckpointError(
            f'"{path}" is a pickle, not safetensors, whatever its name says; pickles can run code and are refused.'
        )
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f'"{path}" is a pointer of git-lfs, not the weights themselves; fetch them: git lfs pull.'
        )
    try:
        with safe_open(path, "pt") as file:
            found: dict[str, Place] = {}
            for name in file.keys():  # noqa: SIM118  # no mapping
                part = file.get_slice(name)
                kind = str(part.get_dtype())
                found[name] = Place(path, tuple(part.get_shape()), _TYPES.get(kind), kind)
            return found
    except (OSError, SafetensorError, ValueError) as error:
        size = path.stat().st_size
        raise CheckpointError(
            f'"{path}" ({size:,} bytes) is not a whole safetensors file ({error}); it is truncated or damaged. '
            "Copy or download it again."
        ) from error
