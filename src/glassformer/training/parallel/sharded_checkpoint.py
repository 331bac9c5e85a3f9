"""Checkpoints to which each rank writes its shards alone, in safetensors files, and which any mesh reads.

    shard-00001-…-00001-of-00002.safetensors …    weights by name, and where each part begins
    shard-00001-…-00002-of-00002.safetensors …    state of the optimizer, `NUMBER.STATE` as torch numbers weights
    config.json                                   that of any model folder of ours; written last

No rank needs room for the whole model. Such a folder is a model folder: `glassformer.load` puts tensors together. Names
of tensors are those of the single folder of a run (`model.safetensors` and `optimizer.safetensors`), so both are read
alike: each rank asks for the rows that it has, as many ranks as wrote it, others, or one process. A checkpoint is
written beside its place and then renamed, so a folder of that name is whole.
The storage is torch.distributed.checkpoint's for safetensors: its own would pickle what it writes of the whole.
"""

import errno
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from glassformer import files
from glassformer.checkpoints import run_steps
from glassformer.checkpoints.loading import model_folder
from glassformer.checkpoints.own import OwnFolder, described, sha256_of
from glassformer.checkpoints.rank_files import RankFiles, holds_weights, write_joined
from glassformer.checkpoints.run_steps import OPTIMIZER
from glassformer.checkpoints.tensors import WEIGHTS
from glassformer.errors import CheckpointError, GlassformerError, SaveError
from glassformer.files import json_text
from glassformer.files.packaged import CONFIG
from glassformer.files.reading import reason
from glassformer.training.parallel.sharding import full, part_of
from glassformer.training.parallel.tensor import row_orders
from glassformer.training.sharing import Trained

_BUILDING = ".building-"
# which of a rank's files holds what
_OF_WEIGHTS, _OF_OPTIMIZER = 1, 2


def save_shards(trained: Trained, folder: str | Path) -> Path:
    """Write weights and optimizer state, each rank its shards; all ranks call it, or one process alone.

    Args:
        trained: Model and optimizer, in shards or whole.
        folder: A new folder, the same on all ranks, on a disk that all see.

    Raises:
        SaveError: There is something already, or it cannot be written; nothing is left there then.
    """
    folder = Path(folder)
    building = _beside(folder)
    try:
        all_told(trained, folder, lambda: _emptied(building, folder))
        held = [*_held(trained)]
        writer = HuggingFaceStorageWriter(str(building), {one.name: one.file for one in held}, save_distributed=True)
        with _alone() as no_dist:
            save({one.name: one.in_order() for one in held}, storage_writer=writer, no_dist=no_dist)
        all_told(trained, folder, lambda: _finished(trained, building, folder))
    except CheckpointException as error:
        # of any rank, told to all
        raise files.refused(folder, _of_system(error)) from error
    finally:
        if _leads():
            shutil.rmtree(building, ignore_errors=True)
    return folder


def load_shards(folder: str | Path, trained: Trained) -> None:
    """Read weights and optimizer state into a model and its optimizer, in shards or whole; all ranks call it.

    Args:
        folder: What `save_shards` wrote, on any mesh, or the single folder of a run's checkpoint; one without optimizer
            state leaves none.
        trained: A model of the same shape, and an optimizer of its weights.

    Raises:
        CheckpointError: It is damaged, or of another model.
    """
    folder = Path(folder)
    stored = _stored(folder)
    _make_room(trained.optimizer, stored)
    held = {one.name: one for one in _held(trained)}
    there = {(name, tuple(one.size)) for name, one in stored.items()}
    here = {(name, tuple(one.value.shape)) for name, one in held.items()}
    if odd := sorted({name for name, _ in there ^ here}):
        raise CheckpointError(
            f'"{folder}" holds another model: {", ".join(odd[:3])} is of another shape there, or in one alone. Build '
            "the one of its config: checkpoints.config_of."
        )
    read = {name: one.room() for name, one in held.items()}
    try:
        with _alone() as no_dist:
            load(read, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=no_dist)
    except CheckpointException as error:
        raise CheckpointError(f'cannot read "{folder}": {reason(_of_system(error))}') from error
    for name, one in held.items():
        one.take(read[name])


def join_shards(shards: str | Path, folder: str | Path) -> Path:
    """Write the single folder of what ranks wrote in shards, one tensor after another; one process calls it.

    Args:
        shards: What `save_shards` wrote.
        folder: A new folder; with the optimizer's state, if that is there.

    Raises:
        CheckpointError: The shards are damaged, or are none.
        SaveError: There is something already, or it cannot be written; nothing is left there then.
    """
    shards, folder = Path(shards), Path(folder)
    own, state = _own(shards), run_steps.checked_optimizer_files(shards)
    weights = [name for name in own.digests if holds_weights(name)]
    if not weights:
        raise CheckpointError(f'"{shards}" holds no shards: its weights lie in one file already.')
    own.check()
    building = _beside(folder)
    try:
        _emptied(building, folder)
        said: dict[str, Any] = dict(own.said)
        digests = {name: digest for name, digest in own.digests.items() if name not in weights}
        said["sha256"] = {WEIGHTS: write_joined(building / WEIGHTS, RankFiles(shards, weights)), **digests}
        if state:
            of_ranks = RankFiles(shards, [path.name for path in state])
            said["optimizer"] = {OPTIMIZER: write_joined(building / OPTIMIZER, of_ranks)}
        for name in digests.keys() - {"model"}:
            files.write(building / name, (shards / name).read_bytes())
        files.write(building / CONFIG, json_text(said, indent=1))
        os.replace(building, folder)
    except SaveError:
        raise
    except OSError as error:
        raise files.refused(folder, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def all_told(trained: Trained, place: Path, action: Callable[[], bool]) -> bool:
    """Return what an action gives that the leader does while the others wait; its error is everybody's.

    Args:
        trained: What lies where ranks exchange.
        place: What is written, as errors name it.
        action: What to do.

    Raises:
        SaveError: The leader could not write.
    """
    found, failed = False, None
    if _leads():
        try:
            found = action()
        except GlassformerError as error:
            failed = error
        except OSError as error:
            failed = files.refused(place, error)
    if dist.is_initialized():
        device = next(trained.model.parameters()).device
        told = torch.tensor([found, failed is not None], dtype=torch.float32, device=device)
        dist.broadcast(told, 0)
        found = bool(told[0])
        if told[1] and failed is None:
            failed = SaveError(f'cannot write "{place}": rank 0 could not write there; its own output says why.')
    if failed is not None:
        raise failed
    return found


class _Held(NamedTuple):
    """A tensor that is kept: its name, which of a rank's files it goes into, and in which order ranks have its rows."""

    name: str
    file: int
    value: Tensor
    order: Tensor | None

    def in_order(self) -> Tensor:
        """The tensor with its rows in the order of the whole; no rank holds more than this one whole meanwhile."""
        return self.value if self.order is None else part_of(full(self.value)[self.order.argsort()], self.value)

    def room(self) -> Tensor:
        """What is read into: the tensor itself where ranks have its rows in the order of the whole."""
        return self.value if self.order is None else torch.zeros_like(self.value)

    def take(self, read: Tensor) -> None:
        """Take over what was read into that room."""
        if self.order is not None:
            _local(self.value).copy_(_local(part_of(full(read), self.value, self.order)))


def _held(trained: Trained) -> Iterator[_Held]:
    """Yield all that is kept; tied weights once."""
    if isinstance(trained.model, FSDPModule):
        # what ran last without a gradient has left some weights whole, which are not those that the optimizer knows
        trained.model.reshard()
    model, optimizer = trained
    orders = row_orders(model)
    for name, value in model.state_dict().items():
        yield _Held(name, _OF_WEIGHTS, value.detach(), orders.get(name))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for number, parameter in enumerate(_numbered(optimizer)):
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            order = orders.get(names[id(parameter)]) if value.shape == parameter.shape else None
            yield _Held(f"{number}.{key}", _OF_OPTIMIZER, value, order)


def _numbered(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the weights of an optimizer in the order in which its `state_dict` numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _make_room(optimizer: torch.optim.Optimizer, stored: Mapping[str, TensorStorageMetadata]) -> None:
    """Give the optimizer the state that is to be read, so that it lies as the weights do."""
    optimizer.state.clear()
    weights = _numbered(optimizer)
    # counts of steps lie beside the weights only where one kernel updates all
    fused = bool(optimizer.param_groups[0].get("fused"))
    for name, kept in stored.items():
        number, _, key = name.partition(".")
        if number.isdigit() and int(number) < len(weights):
            weight = weights[int(number)]
            like = tuple(kept.size) == tuple(weight.shape) and len(kept.size) > 0
            empty = torch.zeros(kept.size, dtype=kept.properties.dtype, device=weight.device if fused else "cpu")
            optimizer.state[weight][key] = torch.zeros_like(weight) if like else empty


def _stored(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Return what lies there by name, once files are what their digests say."""
    own, state = _own(folder), run_steps.checked_optimizer_files(folder)
    own.check(weights_only=True)
    said = {name for name in own.digests if name.endswith(".safetensors")} | {path.name for path in state}
    if odd := said ^ {path.name for path in folder.glob("*.safetensors")}:
        raise CheckpointError(
            f'"{folder}" has more or fewer files than it says: {", ".join(sorted(odd))}. Copy it again from its source.'
        )
    found: dict[str, Any] = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return found


def _own(folder: Path) -> OwnFolder:
    found = model_folder(folder)
    if not isinstance(found, OwnFolder):
        raise CheckpointError(f'"{folder}" is no model folder of ours, whose weights ranks read. Convert it first.')
    return found


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


@contextmanager
def _alone() -> Iterator[bool]:
    """Give whether there is but one process, of which torch would warn although it is told."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield not dist.is_initialized()


def _leads() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _of_system(error: CheckpointException) -> OSError:
    """Return what went wrong on a rank, in its words."""
    first = next(iter(error.failures.values()))[0]
    return first if isinstance(first, OSError) else OSError(str(first).splitlines()[0])


def _beside(folder: Path) -> Path:
    """Return where a folder is written before it takes its name."""
    return folder.with_name(f"{_BUILDING}{folder.name}")


def _emptied(building: Path, folder: Path) -> bool:
    if os.path.lexists(folder):
        raise FileExistsError(errno.EEXIST, "something is there already")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    return True


def _finished(trained: Trained, building: Path, folder: Path) -> bool:
    """Say what the files are, and give the whole its name."""
    digests = {path.name: sha256_of(path) for path in sorted(building.glob("*.safetensors"))}
    weights = {name: digest for name, digest in digests.items() if holds_weights(name)}
    state = {name: digest for name, digest in digests.items() if name not in weights}
    files.write_all(building, described(trained.model, weights, state))
    os.replace(building, folder)
    return True
