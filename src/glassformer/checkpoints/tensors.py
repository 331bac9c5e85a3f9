"""The tensors of a folder of safetensors files, one file or many: what there is, and reading it without a second copy.

Headers are read once, when a folder is opened; numbers when they are asked for. A tensor is a view on its file, mapped
into memory: nothing is copied, pages come in as they are touched and count as this process's memory from then on, until
they are released or the system wants them back. Writing to a tensor changes memory, never the file.
"""

import copy
import json
import mmap
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glassformer.errors import CheckpointError, ConfigError
from glassformer.files.reading import MOST_JSON, opened, read_json, reason
from glassformer.numerics.decompositions import is_finite

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
# of files of llama.cpp, each a whole model
GGUF = ".gguf"
PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".msgpack", ".h5")

# of an adapter's weights, which are no model by themselves
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
# the document of an adapter in a folder of our own
OWN_ADAPTER = "adapter.json"
# what torch.compile, DistributedDataParallel and PEFT put before the names of a model's tensors
WRAPPERS = ("_orig_mod.", "module.", "base_model.model.")
# bytes that are compared at a time
_CHUNK = 1 << 20
# protocols 2 to 5, and the archive that torch.save writes
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")
_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


# linux maps a file larger than memory for writing only if no room is set aside for what may be written
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def narrowed(name: str, value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor as it is to be written, in a type or in its own.

    Args:
        name: What it is called.
        value: Its numbers.
        dtype: Asked for; None for its own.

    Raises:
        ConfigError: Numbers that are finite would not be so in that type, and reading them would be refused.
    """
    found = value.to(dtype or value.dtype).contiguous()
    if found.dtype != value.dtype and not is_finite(found) and is_finite(value):
        kind, n = str(found.dtype).removeprefix("torch."), int((~found.isfinite()).sum())
        raise ConfigError(
            f'{n:,} of {value.numel():,} numbers of "{name}" are too large for {kind}: what was written would not be '
            "opened again.\n    Write it in a wider type, bfloat16 or float32, or in that of the model; nothing was "
            "written."
        )
    return found


class StoredTensor(NamedTuple):
    """Where a tensor lies: its bytes in the file; `dtype` is None for a type that weights do not have."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    stored_as: str
    start: int
    stop: int


class Tensors(Mapping[str, StoredTensor]):
    """What tensors there are under which names, and reading them: from files, or from where they are held.

    Args:
        folder: Where they come from.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # what stands before every name in the files, and is no part of it
        self.wrapper = ""

    def unwrapped(self, names: Collection[str]) -> "Tensors":
        """Return the same tensors without what wrappers put before the name of every one.

        Args:
            names: Those that are looked for; what one of them begins with is no wrapper's.
        """
        return self

    def read(self, name: str) -> Tensor:
        """Return a tensor as it is stored."""
        raise NotImplementedError

    def as_stored(self, name: str) -> Tensor:
        """Return a tensor of any type: masks are no numbers that weights could be."""
        return self.read(name)

    def release(self, names: Iterable[str]) -> None:
        """Give back the memory of tensors that can be read once more."""


class TensorFiles(Tensors):
    """What lies in a folder's safetensors files: a mapping from tensor name to where it lies.

    Args:
        folder: Holds `model.safetensors`, or several files and their index, or any one safetensors file.
        only: The one file to read, whatever else there is.

    Raises:
        CheckpointError: No such files, only pickles, a file that is missing, truncated or no safetensors; or files of
            two checkpoints.
    """

    def __init__(self, folder: Path, only: str | None = None) -> None:
        super().__init__(folder)
        self._places: dict[str, StoredTensor] = {}
        self._mapped: dict[Path, mmap.mmap] = {}
        files, index = _files(folder) if only is None else ([folder / only], {})
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
        if index and folder / WEIGHTS not in files and (folder / WEIGHTS).exists():
            self._require_same(_header(folder / WEIGHTS))

    def _require_same(self, whole: Mapping[str, StoredTensor]) -> None:
        """Raise `CheckpointError` unless the single file beside shards holds what they hold."""
        names = {**self._places, **whole}
        lone = next((name for name in names if name not in whole or name not in self._places), None)
        differs = lone or next((name for name in names if not _same(whole[name], self._places[name])), None)
        if differs is not None:
            told = "is in one of them alone" if lone else "differs"
            raise CheckpointError(
                f'"{self.folder}" holds two sets of weights, {WEIGHTS} and the files that {INDEX} names, and they are '
                f'not the same: "{differs}" {told}. Leave one: take away {WEIGHTS}, or the index and its files.'
            )

    def unwrapped(self, names: Collection[str]) -> "TensorFiles":
        """Return the same files without what wrappers put before the name of every tensor: their `wrapper`."""
        wrapper = ""
        while len(self) and (
            found := next((p for p in WRAPPERS if all(n.startswith(wrapper + p) for n in self._places)), None)
        ):
            wrapper += found
        if not wrapper or any(name.startswith(WRAPPERS) for name in names):
            return self
        bare = copy.copy(self)
        bare.wrapper = wrapper
        bare._places = {name.removeprefix(wrapper): place for name, place in self._places.items()}
        return bare

    def __getitem__(self, name: str) -> StoredTensor:
        return self._places[name]

    def __iter__(self):
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, name: str) -> Tensor:
        """Return a tensor as it is stored: a view on the mapped file.

        Raises:
            CheckpointError: Its file cannot be read or is shorter than it was, or it is of a type weights do not have.
        """
        place = self._places[name]
        if place.dtype is None:
            raise CheckpointError(f'"{name}" is stored as {place.stored_as}; F16, BF16, F32 and F64 are read.')
        if place.start == place.stop:
            return torch.empty(place.shape, dtype=place.dtype)
        content = torch.frombuffer(
            self._map(place.path), dtype=torch.uint8, count=place.stop - place.start, offset=place.start
        )
        # a file that mixes types need not keep its tensors at multiples of their size
        content = content if content.data_ptr() % place.dtype.itemsize == 0 else content.clone()
        return content.view(place.dtype).view(place.shape)

    def as_stored(self, name: str) -> Tensor:
        """Return a copy of a tensor of any type: masks are no numbers that weights could be."""
        with safe_open(self._places[name].path, "pt") as file:
            return file.get_tensor(self.wrapper + name)

    def release(self, names: Iterable[str]) -> None:
        """Give back the memory of tensors' pages; whoever looks at them again gets them from the file once more."""
        if (unneeded := getattr(mmap, "MADV_DONTNEED", None)) is None:  # not every system can be told
            return
        for file, start, stop in self._runs(names):
            # whole pages only: at the edges lie neighbours
            start, stop = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
            if start < stop:
                file.madvise(unneeded, start, stop - start)

    def _runs(self, names: Iterable[str]) -> Iterator[tuple[mmap.mmap, int, int]]:
        """Yield where tensors lie, those that are neighbours together."""
        places = sorted({self._places[name] for name in names}, key=lambda place: (place.path, place.start))
        while places:
            path, start, stop = places[0].path, places[0].start, places[0].stop
            n = 1
            while n < len(places) and places[n].path == path and places[n].start == stop:
                stop, n = places[n].stop, n + 1
            places = places[n:]
            yield self._map(path), start, stop

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._mapped:
            try:
                with opened(path) as file:
                    size = os.fstat(file.fileno()).st_size
                    end = max(place.stop for place in self._places.values() if place.path == path)
                    if size < end:
                        raise CheckpointError(f'"{path}" has {size:,} bytes now, and had {end:,} when it was opened.')
                    if sys.platform == "win32":
                        found = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
                    else:
                        flags, rights = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
                        found = mmap.mmap(file.fileno(), size, flags=flags, prot=rights)
            except OSError as error:
                raise CheckpointError(f'cannot read "{path}": {reason(error)}.') from error
            self._mapped[path] = found
        return self._mapped[path]


def is_pickle(start: bytes) -> bool:
    """Whether a file that begins like this is a pickle, whatever its name says."""
    # the length of a safetensors header may begin like a pickle, but is followed by zeros and a brace
    return start.startswith(_PICKLES) and start[2:9] != bytes(6) + b"{"


def _files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the files to read, and what the index says of each tensor."""
    index = folder / INDEX
    if index.exists():
        return _indexed(folder, index)
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS], {}
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file() and path.name != ADAPTER_WEIGHTS)
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
            + way_from_pickle(pickles[0])
        )
    there = ", ".join(sorted(path.name for path in folder.glob("*"))[:6]) or "nothing"
    raise CheckpointError(f'"{folder}" holds no safetensors file (found: {there}).')


def _indexed(folder: Path, index: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the files that an index names, and what it says of each tensor."""
    try:
        places = {str(k): str(v) for k, v in read_json(index)["weight_map"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        told = reason(error) if isinstance(error, OSError) else repr(error)
        raise CheckpointError(f'"{index}" is no index of safetensors files ({told}).') from error
    outside = [name for name in set(places.values()) if Path(name).name != name]
    if outside:
        raise CheckpointError(f'"{index}" names "{_brief(outside[0])}", which does not lie in the folder.')
    files = [folder / name for name in sorted(set(places.values()))]
    stale = sorted(p.name for p in folder.glob("model-*-of-*.safetensors") if p not in files and _is_shard(p.name))
    if stale:
        raise CheckpointError(
            f'"{folder}" holds {", ".join(stale[:3])}{", …" if len(stale) > 3 else ""}, which {INDEX} does not name: '
            "shards of another checkpoint, or an index of another. Take away what is left over."
        )
    # os.path, unlike Path, takes any text for a name that may not exist, however long
    missing = [_brief(path.name) for path in files if not os.path.exists(path)]
    if missing:
        raise CheckpointError(
            f'"{folder}" lacks {len(missing)} of its {len(files)} files: {", ".join(missing[:3])}. '
            "Copy or download them again."
        )
    return files, places


def _is_shard(name: str) -> bool:
    return re.fullmatch(r"model-\d{5}-of-\d{5}\.safetensors", name) is not None


def _same(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two files hold the same numbers of the same type for a tensor."""
    if (one.shape, one.stored_as, one.stop - one.start) != (other.shape, other.stored_as, other.stop - other.start):
        return False
    with opened(one.path) as mine, opened(other.path) as theirs:
        mine.seek(one.start)
        theirs.seek(other.start)
        for start in range(one.start, one.stop, _CHUNK):
            size = min(_CHUNK, one.stop - start)
            if mine.read(size) != theirs.read(size):
                return False
    return True


def _brief(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:60]}… ({len(name):,} characters)"


def way_from_pickle(name: str) -> str:
    """Return what to run, where the file is trusted, to have its tensors as safetensors."""
    # contiguous clones: tied matrices share memory, which safetensors refuses
    told = (
        "    On a machine you trust, write them as safetensors:\n"
        f'    tensors = torch.load("{name}", map_location="cpu", weights_only=True)\n'
        f'    safetensors.torch.save_file({{k: v.contiguous().clone() for k, v in tensors.items()}}, "{WEIGHTS}")'
    )
    if Path(name).suffix == ".bin":
        return told
    return (
        f'{told}\n    nanoGPT and llama2.c keep them as tensors["model"], and what belongs into config.json as '
        'tensors["model_args"].'
    )


def _header(path: Path) -> dict[str, StoredTensor]:
    try:
        with opened(path) as raw:
            start = raw.read(32)
            size = int.from_bytes(start[:8], "little")
            raw.seek(8)
            content = raw.read(size if size <= MOST_JSON else 0)
            whole = os.fstat(raw.fileno()).st_size
    except OSError as error:
        raise CheckpointError(f'cannot read "{path}": {reason(error)}.') from error
    if is_pickle(start):
        raise CheckpointError(
            f'"{path}" is a pickle, not safetensors, whatever its name says; pickles can run code and are refused.'
        )
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f'"{path}" is a pointer of git-lfs, not the weights themselves; fetch them: git lfs pull.'
        )
    try:
        if size > MOST_JSON:
            raise ValueError(f"its header would have {size:,} bytes; {MOST_JSON:,} are read")
        # checks that the header describes the file: nothing beyond its end, nothing twice, no gaps
        with safe_open(path, "np"):
            pass
        header = json.loads(content)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(
            f'"{path}" ({whole:,} bytes) is not a whole safetensors file ({error}); it is truncated or damaged. '
            "Copy or download it again."
        ) from error
    found: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            kind, (start, stop) = entry["dtype"], (8 + size + offset for offset in entry["data_offsets"])
            found[name] = StoredTensor(path, tuple(entry["shape"]), _TYPES.get(kind), kind, start, stop)
    return found
