"""Checkpoints to which each rank writes its shards alone, in safetensors files, and which any mesh reads.

    shard-00001-….safetensors …    tensors by name, `model.NAME` and `optimizer.NAME.STATE`, and where each shard begins
    config.json                    the model's config, and the digest of each of these files; written last

No rank needs room for the whole model. A checkpoint is written beside its place and then renamed, so a folder of that
name is whole. Reading asks each file for the rows that a rank has: as many ranks as wrote it, others, or one process.
The storage is torch.distributed.checkpoint's for safetensors: its own would pickle what it writes of the whole.
"""

import errno
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from glassformer import files
from glassformer.checkpoints.own import digest_of, sha256_of
from glassformer.errors import CheckpointError, ConfigError
from glassformer.files import json_text
from glassformer.files.packaged import CONFIG
from glassformer.files.reading import reason
from glassformer.models import ModelConfig
from glassformer.training.sharing import Trained

FORMAT = 1
_BUILDING = ".building-"


def save_shards(trained: Trained, folder: str | Path) -> Path:
    """Write weights and optimizer state, each rank its shards; all ranks call it, or one process alone.

    Args:
        trained: Model and optimizer, in shards or whole.
        folder: A new folder, the same on all ranks, on a disk that all see.

    Raises:
        SaveError: There is something already, or it cannot be written; nothing is left there then.
    """
    folder = Path(folder)
    building = folder.with_name(f"{_BUILDING}{folder.name}")
    try:
        _first(trained, lambda: _emptied(building, folder))
        writer = HuggingFaceStorageWriter(str(building), save_distributed=True)
        with _alone() as no_dist:
            save(dict(_tensors(trained)), storage_writer=writer, no_dist=no_dist)
        _first(trained, lambda: _finish(trained, building, folder))
    except CheckpointException as error:
        # of any rank, told to all
        raise files.refused(folder, _of_system(error)) from error
    except OSError as error:
        raise files.refused(folder, error) from error
    finally:
        if _leads():
            shutil.rmtree(building, ignore_errors=True)
    return folder


def load_shards(folder: str | Path, trained: Trained) -> None:
    """Read weights and optimizer state into a model and its optimizer, in shards or whole; all ranks call it.

    Args:
        folder: What `save_shards` wrote, on any mesh.
        trained: A model of the same config, and an optimizer of its weights.

    Raises:
        CheckpointError: It is damaged, or of another model.
    """
    folder = Path(folder)
    names = _checked(folder, trained)
    _make_room(trained, names)
    wanted = dict(_tensors(trained))
    if wanted.keys() != names.keys():
        odd = sorted(wanted.keys() ^ names.keys())
        raise CheckpointError(f'"{folder}" does not hold what the model has: {", ".join(odd[:3])} is in one alone.')
    try:
        with _alone() as no_dist:
            load(wanted, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=no_dist)
    except CheckpointException as error:
        raise CheckpointError(f'cannot read "{folder}": {reason(_of_system(error))}') from error


def config_of_shards(folder: str | Path) -> ModelConfig:
    """The config of the model whose shards a folder holds.

    Raises:
        CheckpointError: It holds none, or is damaged.
    """
    try:
        return ModelConfig.from_dict(_said(Path(folder))["model"])
    except ConfigError as error:
        raise CheckpointError(f'"{Path(folder) / CONFIG}": {error}') from error


@contextmanager
def _alone() -> Iterator[bool]:
    """Give whether there is but one process, of which torch would warn although it is told."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield not dist.is_initialized()


def _leads() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _first(trained: Trained, action: Callable[[], None]) -> None:
    """Let the leader do something while the others wait; its error is everybody's."""
    failed: OSError | None = None
    if _leads():
        try:
            action()
        except OSError as error:
            failed = error
    if dist.is_initialized():
        told = torch.tensor(float(failed is not None), device=next(trained.model.parameters()).device)
        dist.broadcast(told, 0)
        if told and failed is None:
            failed = OSError("rank 0 could not write there; its own output says why")
    if failed is not None:
        raise failed


def _of_system(error: CheckpointException) -> OSError:
    """Return what went wrong on a rank, in its words."""
    first = next(iter(error.failures.values()))[0]
    return first if isinstance(first, OSError) else OSError(str(first).splitlines()[0])


def _emptied(building: Path, folder: Path) -> None:
    if os.path.lexists(folder):
        raise FileExistsError(errno.EEXIST, "something is there already")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)


def _finish(trained: Trained, building: Path, folder: Path) -> None:
    """Say what the files are, and give the whole its name."""
    model = trained.model.config.to_dict()
    digests = {path.name: sha256_of(path) for path in sorted(building.glob("*.safetensors"))}
    said = {"format": FORMAT, "model": model, "sha256": {**digests, "model": digest_of(model)}}
    files.write(building / CONFIG, json_text(said, indent=1))
    os.replace(building, folder)


def _tensors(trained: Trained) -> Iterator[tuple[str, Tensor]]:
    """Yield all that is kept, by name; tied weights once."""
    for name, parameter in trained.model.named_parameters():
        yield f"model.{name}", parameter.detach()
        for key, value in sorted(trained.optimizer.state.get(parameter, {}).items()):
            yield f"optimizer.{name}.{key}", value


def _make_room(trained: Trained, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Give the optimizer the state that is to be read, so that it lies as the weights do."""
    for name, parameter in trained.model.named_parameters():
        state, start = trained.optimizer.state[parameter], f"optimizer.{name}."
        state.clear()
        for key, shape in shapes.items():
            if key.startswith(start) and "." not in key.removeprefix(start):
                like = shape == tuple(parameter.shape) and len(shape) > 0
                state[key.removeprefix(start)] = torch.zeros_like(parameter) if like else torch.zeros(shape)


def _said(folder: Path) -> dict[str, Any]:
    try:
        said = files.read_json(folder / CONFIG)
        if said["format"] != FORMAT or said["sha256"]["model"] != digest_of(said["model"]):
            raise ValueError("it is of another format, or does not match its digest")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'"{folder}" holds no shards of a model that can be read: {reason(error)}.') from error
    return said


def _checked(folder: Path, trained: Trained) -> dict[str, tuple[int, ...]]:
    """Return names and whole shapes of all tensors, once files are what their digests say and the model is the same."""
    said = _said(folder)
    if said["sha256"]["model"] != digest_of(trained.model.config.to_dict()):
        raise CheckpointError(f'"{folder}" holds another model. Build the model of its own config: config_of_shards.')
    digests = {name: digest for name, digest in said["sha256"].items() if name != "model"}
    found = {path.name for path in folder.glob("*.safetensors")}
    if found != digests.keys():
        odd = ", ".join(sorted(found ^ digests.keys()))
        raise CheckpointError(f'"{folder}" has more or fewer files than it says: {odd}. Copy it again from its source.')
    for name, digest in digests.items():
        if sha256_of(folder / name) != digest:
            raise CheckpointError(f'"{folder / name}" does not match its digest; it is truncated or damaged.')
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {name: tuple(one.size) for name, one in metadata.items()}  # type: ignore[union-attr]
