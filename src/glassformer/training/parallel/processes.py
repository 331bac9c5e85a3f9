"""The processes that train one model, or share its sweeps: how they meet, agree, and notice that one is gone.

`torchrun --nproc-per-node 2 -m glassformer train RECIPE --mesh dp=2` starts as many as the mesh has, and tells each by
its environment which it is. They meet at a store of short texts, kept by torchrun or by rank 0. Whoever finds that an
exchange failed calls the roll there: each rank that is alive answers, so that an error can name the one that is not.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, cached_property
from itertools import count
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store

from glassformer import errors
from glassformer.errors import ConfigError, GlassformerError, RankLost
from glassformer.files import json_text
from glassformer.training.parallel.mesh import Mesh

Made = TypeVar("Made")

# seconds that a rank waits for another in an exchange, which may measure meanwhile; and for one that should be near
PATIENCE, SLACK = 1800.0, 20.0
# texts of an earlier mesh of this process are not those of the next
_joined = count()
FROM_A_CHECKPOINT = "the run goes on from its last checkpoint."
_BACK_ENDS = {"cpu": "gloo", "cuda": "nccl"}
_LAUNCH = "torchrun --nproc-per-node {size} -m glassformer train RECIPE --mesh {mesh}"


class Ranks:
    """The processes of a mesh, as one of them sees them.

    Args:
        mesh: Its shape.
        rank: Which of them this is, from 0.
        store: Where they leave each other short texts.
        device: Where this one computes.
        way_on: What an error says of a new start, when a rank is lost.
    """

    def __init__(
        self, mesh: Mesh, rank: int, store: Store, device: torch.device, way_on: str = FROM_A_CHECKPOINT
    ) -> None:
        self.mesh, self.rank, self.store, self.device, self.way_on = mesh, rank, store, device, way_on
        self.missing: list[int] = []

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.mesh.size

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    @cached_property
    def devices(self) -> DeviceMesh:
        """The mesh as PyTorch has it."""
        axes = self.mesh.axes
        return init_device_mesh(self.device.type, tuple(axes.values()), mesh_dim_names=tuple(axes))

    def totals(self, *numbers: int | float) -> list[float]:
        """Sums over all ranks of numbers that each has."""
        found = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(found)
        return found.tolist()

    def first(self, name: str, action: Callable[[], Made]) -> Made:
        """Return what an action gives, done by the leader before all others; its error is everybody's.

        Args:
            name: What is done, once in a run.
            action: What to do.
        """
        if not self.leads:
            if self._absent([name], PATIENCE):
                raise self._lost([0], PATIENCE)
            kind, _, message = self.store.get(name).decode().partition("\n")
            if kind:
                raise getattr(errors, kind, GlassformerError)(message)
            return action()
        try:
            made = action()
        except GlassformerError as error:
            self.store.set(name, f"{type(error).__name__}\n{error}")
            raise
        self.store.set(name, "")
        return made

    def agree(self, name: str, said: Mapping[str, str]) -> None:
        """Raise `ConfigError` unless all ranks say the same.

        Args:
            name: What is compared, once in a run.
            said: What this rank says, by what it is about.
        """
        for about, text in said.items():
            self.store.set(f"{name}/{about}/{self.rank}", text)
        self.roll_call(name, PATIENCE)
        for about in said:
            found = [self.store.get(f"{name}/{about}/{rank}").decode() for rank in range(self.size)]
            others = [str(rank) for rank, text in enumerate(found) if text != found[0]]
            if others:
                raise ConfigError(
                    f'mesh "{self.mesh}": rank {", ".join(others)} has another {about} in its {name} than rank 0. '
                    "Start all ranks by one command, with the same files."
                )

    def roll_call(self, name: str, seconds: float) -> None:
        """Say that this rank is there; the leader finds out who is not.

        Args:
            name: What it is about, once in a run.
            seconds: How long to wait.

        Raises:
            RankLost: By its rank, one that did not say so in time.
        """
        try:
            self.store.set(f"{name}/{self.rank}", "")
        except (dist.DistError, RuntimeError) as error:
            # who keeps the store is gone, and nobody else can be asked
            self.missing = [0]
            raise self._lost(self.missing, seconds) from error
        if self.leads:
            absent = self._absent([f"{name}/{rank}" for rank in range(self.size)], seconds)
            self.missing = [int(key.rpartition("/")[2]) for key in absent]
            self.store.set(f"{name}/missing", json_text(self.missing))
        elif self._absent([f"{name}/missing"], seconds + SLACK):
            self.missing = [0]
        else:
            self.missing = json.loads(self.store.get(f"{name}/missing"))
        if self.missing:
            raise self._lost(self.missing, seconds)

    def leave(self) -> None:
        """Say that this rank asks no more; who keeps the store goes last."""
        with suppress(dist.DistError, RuntimeError):
            self.store.set(f"leaving/{self.rank}", "")
        if self.leads:
            self._absent([f"leaving/{rank}" for rank in range(self.size) if rank not in self.missing], SLACK)

    def _absent(self, keys: list[str], seconds: float) -> list[str]:
        """Return which keys nobody has set in time; all of them if the store is gone."""
        try:
            self.store.wait(keys, timedelta(seconds=seconds))
            return []
        except (dist.DistError, RuntimeError):
            with suppress(dist.DistError, RuntimeError):
                return [key for key in keys if not self.store.check([key])]
            return keys

    def _lost(self, missing: list[int], seconds: float) -> RankLost:
        who = ", ".join(map(str, missing))
        return RankLost(
            f'rank {who} of mesh "{self.mesh}" did not answer within {seconds:g} seconds; its own output says why. '
            f"Start all ranks again by the same command: {self.way_on}"
        )


@contextmanager
def joined(mesh: Mesh, device: torch.device, way_on: str = FROM_A_CHECKPOINT) -> Iterator[Ranks]:
    """Yield the processes of a mesh once all are there; an exchange that fails names the rank that is gone.

    Args:
        mesh: Its shape.
        device: Where this process computes.
        way_on: What an error says of a new start, when a rank is lost.

    Raises:
        ConfigError: There are more or fewer processes than the mesh has, or none was told which it is; the port is in
            use; no exchange is known between such devices.
        RankLost: A process did not come, died or no longer answers.
    """
    rank, world = _placed(mesh)
    if device.type not in _BACK_ENDS:
        raise ConfigError(f'mesh "{mesh}": no exchange between devices of type "{device.type}". Use cpu or cuda.')
    ranks = Ranks(mesh, rank, PrefixStore(f"mesh {next(_joined)}", _store(rank, world)), device, way_on)
    try:
        ranks.roll_call("joining", PATIENCE)
        waits = timedelta(seconds=PATIENCE)
        dist.init_process_group(_BACK_ENDS[device.type], store=ranks.store, rank=rank, world_size=world, timeout=waits)
        yield ranks
    except (dist.DistError, RuntimeError) as error:
        if _is_of_an_exchange(error):
            ranks.roll_call("after a failure", SLACK)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        ranks.leave()


def leads() -> bool:
    """Whether this process leads, by its environment; one that is alone does."""
    return os.environ.get("RANK", "0") == "0"


def started() -> int:
    """How many processes were started together, by the environment; one that was started by itself is alone."""
    said = os.environ.get("WORLD_SIZE", "1")
    if not (said.isascii() and said.isdigit() and int(said) > 0):
        raise ConfigError(
            f'WORLD_SIZE is "{said}" in the environment, where torchrun says how many processes it starts.'
        )
    return int(said)


def own_device(device: torch.device) -> torch.device:
    """The device of this process among its machine's, by its environment, where none is numbered."""
    if device.type == "cpu" or device.index is not None:
        return device
    return torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))


def _placed(mesh: Mesh) -> tuple[int, int]:
    """Return this process's rank and how many there are, by its environment."""
    launch = _LAUNCH.format(size=mesh.size, mesh=mesh)
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError) as error:
        raise ConfigError(f'mesh "{mesh}": this process was not told its rank. Start with: {launch}') from error
    if world != mesh.size:
        found = "larger than the world" if mesh.size > world else "smaller than the world"
        raise ConfigError(f'mesh "{mesh}" is {found}: it takes {mesh.size} processes, found {world}. Try: {launch}')
    return rank, world


@cache
def _store(rank: int, world: int) -> Store:
    """Return the store that the environment names, one for all meshes of this process."""
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    # torchrun keeps a store of its own
    keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        waits = timedelta(seconds=PATIENCE)
        store = dist.TCPStore(host, port, world, keeps, waits, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    except (dist.DistError, RuntimeError) as error:
        if keeps:
            raise ConfigError(
                f"port {port} of {host} is in use, or not to be listened at ({str(error).splitlines()[0][:100]}). "
                "Give torchrun another --master-port."
            ) from error
        raise RankLost(f"rank 0 cannot be reached at port {port} of {host}; its own output says why.") from error
    # after a restart by torchrun, nobody is to read what was said before
    return PrefixStore(f"glassformer {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _is_of_an_exchange(error: BaseException) -> bool:
    # gloo's own errors are no more than RuntimeErrors
    return isinstance(error, dist.DistError) or any(name in str(error).lower() for name in ("gloo", "nccl"))
