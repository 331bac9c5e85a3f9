"""Tensors of which each rank of a mesh wrote its part, read as whole ones, and written into one file.

    shard-00001-model-00001-of-00002.safetensors …     weights: a part of each, and where in the whole it begins
    shard-00001-model-00002-of-00002.safetensors …     state of an optimizer, likewise

A part lies in one file, and a file has no two of one tensor. Rows lie in the order of the whole, however many ranks
there were.
Source: names and layout are those of torch.distributed.checkpoint's storage for safetensors (`hf_storage`), which
`training.parallel` writes them with.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from glassformer.checkpoints.tensors import StoredTensor, TensorFiles, Tensors
from glassformer.errors import CheckpointError
from glassformer.files import reason, safetensors_header, tensors_in

_WEIGHTS = re.compile(r"shard-\d{5}-model-00001-of-0000[12]\.safetensors")
_STATE = re.compile(r"shard-\d{5}-model-00002-of-00002\.safetensors")
# what the storage calls its entry of a header, and in that where a part begins
_PARTS, _BEGIN = "DCP_SHARDING_INFO", "saved_offsets"


def holds_weights(name: str) -> bool:
    """Whether a file of this name holds a rank's part of weights."""
    return _WEIGHTS.fullmatch(name) is not None


def holds_state(name: str) -> bool:
    """Whether a file of this name holds a rank's part of an optimizer's state."""
    return _STATE.fullmatch(name) is not None


class _Part(NamedTuple):
    """A part of a tensor: the file it lies in, where in the whole it begins, and how far it goes."""

    files: TensorFiles
    begin: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(begin, begin + size) for begin, size in zip(self.begin, self.shape, strict=True))


class RankFiles(Tensors):
    """What lies in files of several ranks: a mapping from tensor name to the whole tensor.

    Args:
        folder: Where they lie.
        names: Of the files.

    Raises:
        CheckpointError: A file is missing, truncated or does not say where its parts begin; or parts are missing.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        super().__init__(folder)
        self._parts: dict[str, list[_Part]] = {}
        for name in sorted(names):
            files = TensorFiles(folder, only=name)
            for tensor, begin in _begins(folder / name):
                self._parts.setdefault(tensor, []).append(_Part(files, begin, files[tensor].shape))
        self._places = {name: self._whole(name) for name in self._parts}

    def __getitem__(self, name: str) -> StoredTensor:
        return self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, name: str) -> Tensor:
        """Return a tensor, put together of its parts.

        Raises:
            CheckpointError: A file cannot be read, or the tensor is of a type weights do not have.
        """
        place = self._places[name]
        found = torch.empty(place.shape, dtype=place.dtype)
        for part in self._parts[name]:
            found[part.slices] = part.files.read(name)
        return found

    def release(self, names: Iterable[str]) -> None:
        """Give back the memory of the pages that parts of tensors lie in."""
        for name in names:
            for part in self._parts[name]:
                part.files.release([name])

    def _whole(self, name: str) -> StoredTensor:
        parts = self._parts[name]
        place = parts[0].files[name]
        ends = [[piece.stop for piece in part.slices] for part in parts]
        shape = tuple(max(along) for along in zip(*ends, strict=True))
        numbers = sum(torch.Size(part.shape).numel() for part in parts)
        if numbers != torch.Size(shape).numel() or any(part.files[name].dtype != place.dtype for part in parts):
            raise CheckpointError(
                f'"{self.folder}" has no whole "{name}": its {len(parts)} parts hold {numbers:,} numbers and reach as '
                f"far as {shape}. Files of a rank are missing, or of another checkpoint."
            )
        size = sum(part.files[name].stop - part.files[name].start for part in parts)
        return place._replace(shape=shape, start=0, stop=size)


def _begins(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of a file, and where in the whole each begins."""
    try:
        with tensors_in(path) as file:
            said = json.loads(file.metadata()[_PARTS])
            for name in file.keys():  # noqa: SIM118  (a file is no mapping)
                begin, shape = tuple(said[name][_BEGIN]), file.get_slice(name).get_shape()
                if len(begin) != len(shape) or not all(type(one) is int and one >= 0 for one in begin):
                    raise ValueError(f'"{name}" begins at {begin}')
                yield name, begin
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'"{path}" does not say where parts of its tensors begin: {reason(error)}.') from error


def write_joined(path: Path, tensors: Tensors) -> str:
    """Write tensors into one safetensors file, each read and let go before the next; return the file's SHA-256.

    Args:
        path: Of the file, which is not there yet.
        tensors: What is written.

    Raises:
        CheckpointError: As for `read` of these.
        OSError: It cannot be written.
    """
    # wide types first: each tensor begins at a multiple of its numbers' size
    names = sorted(tensors, key=lambda name: (-_itemsize(tensors[name]), name))
    placed = {name: (tensors[name].stored_as, tensors[name].shape, _size(tensors[name])) for name in names}
    header = safetensors_header(placed)
    digest = hashlib.sha256(header)
    with path.open("xb") as file:
        file.write(header)
        for name in names:
            content = tensors.read(name).reshape(-1).view(torch.uint8).numpy().data
            file.write(content)
            digest.update(content)
            tensors.release([name])
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _itemsize(place: StoredTensor) -> int:
    return 0 if place.dtype is None else place.dtype.itemsize


def _size(place: StoredTensor) -> int:
    return place.stop - place.start
