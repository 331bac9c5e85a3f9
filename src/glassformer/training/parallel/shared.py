"""Training shared among the ranks of a mesh: rows, layers, weights and optimizer state.

A rank's loss is that of its rows, times their share of the targets that count, times the number of shares: the mean
over shares, which is what gradients are averaged to, is then the loss of the whole batch. Ranks that share layers have
the same rows, and count once.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed.tensor.parallel import loss_parallel

from glassformer.arguments import shown
from glassformer.checkpoints import run_steps
from glassformer.data import Batch
from glassformer.errors import ConfigError, WrongArgument
from glassformer.files import json_text
from glassformer.models.routing import charged_sites
from glassformer.training.config import TrainConfig
from glassformer.training.optim import OptimConfig
from glassformer.training.parallel.mesh import Mesh
from glassformer.training.parallel.processes import Ranks, joined
from glassformer.training.parallel.rows import DropoutOfAllRows, rows_between, shared_rows
from glassformer.training.parallel.sharded_checkpoint import all_told, join_shards, load_shards, save_shards
from glassformer.training.parallel.sharding import gather, shard, sharded
from glassformer.training.parallel.spread import SharedPositions
from glassformer.training.record import RunFolder, load_whole
from glassformer.training.sharing import Checkpoints, Trained

Made = TypeVar("Made")


@contextmanager
def shared(
    config: TrainConfig, mesh: Mesh, device: torch.device, checkpoints: Checkpoints = "whole"
) -> Iterator["Shared"]:
    """Yield what the training loop asks of the ranks of a mesh, once all are there and have the same recipe.

    Args:
        config: The recipe.
        mesh: Who trains.
        device: Where this rank does.
        checkpoints: What they keep of the run.

    Raises:
        ConfigError: The recipe asks for what is not shared, ranks have different recipes, or there are not as many as
            the mesh has.
        RankLost: A rank did not come, died or no longer answers.
    """
    if not isinstance(mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WrongArgument(f"train: mesh= takes a Mesh, such as Mesh(dp=2); found {shown(mesh)}.")
    if config.compile:
        raise ConfigError(f'mesh "{mesh}": a model that is compiled is trained by one process. Set compile=false.')
    if config.optim.unit_vectors:
        raise ConfigError(
            f'mesh "{mesh}": vectors are kept at length 1 (optim.unit_vectors) by one process, which has them whole. '
            "Train without a mesh."
        )
    with joined(mesh, device) as ranks:
        told = json.loads(config.identity())
        ranks.agree("recipe", {name: json_text(value, sort=True) for name, value in told.items()})
        # its way back is taken outside of the model
        with loss_parallel() if mesh.tp > 1 else nullcontext():
            yield (Shared if checkpoints == "whole" else KeepingShards)(config, ranks)


class Shared:
    """The ranks of a mesh, for the training loop; the leader has the whole model beside its shard.

    Args:
        config: The recipe.
        ranks: Who trains.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        self.config, self.ranks = config, ranks
        self.drops = any(rate > 0 for rate in _dropouts(config.model.to_dict()))
        self.positions = SharedPositions(ranks.devices["cp"]) if ranks.mesh.cp > 1 else None
        self._whole: Trained | None = None
        self._shards: Trained | None = None

    @property
    def leads(self) -> bool:
        return self.ranks.leads

    @property
    def size(self) -> int:
        return self.ranks.mesh.dp * self.ranks.mesh.cp

    def first(self, name: str, action: Callable[[], Made]) -> Made:
        return self.ranks.first(name, action)

    def rows(self, batch: Batch) -> Batch:
        batch = shared_rows(batch, self.ranks.devices.get_local_rank("dp"), self.ranks.mesh.dp)
        return batch if self.positions is None else self.positions.batch(batch)

    def totals(self, *numbers: int | float) -> list[float]:
        return [total / self.ranks.mesh.tp for total in self.ranks.totals(*numbers)]

    def mean(self, number: float) -> float:
        return self.totals(number)[0] / self.size

    def dropout(self, batch: Batch, rows: int) -> AbstractContextManager[Any]:
        if not self.drops:
            # a mode slows every operation
            return nullcontext()
        # those that share positions have the same rows
        rows //= self.ranks.mesh.cp
        own = rows_between(rows, self.ranks.devices.get_local_rank("dp"), self.ranks.mesh.dp)
        if self.positions is None:
            return DropoutOfAllRows(rows, *own)
        assert batch.documents is not None, "those of all positions"
        return DropoutOfAllRows(rows, *own, self.positions.shards(batch.documents.shape[1]), self.positions.rank)

    def begun(self, model: Any, optim: OptimConfig, run: RunFolder) -> tuple[Trained, dict[str, Any] | None]:
        self._check(model)
        whole = Trained(model, optim.build(model))
        facts = run.restore(model, lambda folder: load_whole(folder, *whole))
        self._shards = sharded(whole, optim, self.ranks.devices)
        self._whole = whole if self.leads else None
        return self._shards, facts

    def save(self, run: RunFolder, step: int, facts: dict[str, Any]) -> None:
        if (whole := self._gathered()) is not None:
            run.save(step, *whole, facts)

    def whole(self) -> Any | None:
        whole = self._gathered()
        return None if whole is None else whole.model

    def _gathered(self) -> Trained | None:
        """Put all shards together in what the leader has."""
        gather(self._trained, self._whole)
        return self._whole

    @property
    def _trained(self) -> Trained:
        assert self._shards is not None, "nothing is trained yet"
        return self._shards

    def _check(self, model: Any) -> None:
        """Raise `ConfigError` for what is a function of all rows or all weights at once."""
        if self.drops and self.ranks.mesh.tp > 1:
            raise ConfigError(
                f'mesh "{self.ranks.mesh}": the recipe has dropout, of which ranks that share layers would draw other '
                "masks than one process. Set every dropout to 0, or let ranks share rows alone (dp)."
            )
        if self.positions is not None:
            if model.reads_ahead() or model.reads_pairs:
                raise ConfigError(
                    f'mesh "{self.ranks.mesh}": ranks share the positions of texts that look back only, and the model '
                    "reads both ways, or pairs. Let ranks share rows (dp)."
                )
            for layer in model.output_stack.parts():
                layer.require_spread()
        if charged_sites(model):
            raise self._refused("charges for what its sub-layers do with a batch (experts)")
        if model.penalty() is not None:
            raise self._refused("a penalty on weights (adaptive spans)")

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(f'mesh "{self.ranks.mesh}": the recipe has {what}, which one process alone trains.')


class KeepingShards(Shared):
    """The ranks of a mesh, each of which writes its shards alone: none has the whole model, once it is cut up.

    Args:
        config: The recipe.
        ranks: Who trains.
    """

    def begun(self, model: Any, optim: OptimConfig, run: RunFolder) -> tuple[Trained, dict[str, Any] | None]:
        self._check(model)
        self._shards = shards = shard(model, optim, self.ranks.devices)
        return shards, run.restore(shards.model, lambda folder: load_shards(folder, shards))

    def save(self, run: RunFolder, step: int, facts: dict[str, Any]) -> None:
        trained, folder, place = self._trained, run.building(step), run_steps.at(run.path, step)
        ends = step == self.config.steps
        with ExitStack() as opened:
            # the leader alone makes the folder and names it; the others know where it is
            if all_told(trained, place, lambda: opened.enter_context(run.checkpoint(step, facts)) is not None):
                parts = save_shards(trained, folder.with_name(f"{folder.name}-shards") if ends else folder)
                if ends:
                    all_told(trained, place, lambda: _joined(parts, folder))
            all_told(trained, place, lambda: _closed(opened))

    def whole(self) -> Any | None:
        return None


def _joined(shards: Path, folder: Path) -> bool:
    """Write the single folder of a run that ends, tensor by tensor."""
    try:
        join_shards(shards, folder)
    finally:
        shutil.rmtree(shards, ignore_errors=True)
    return True


def _closed(opened: ExitStack) -> bool:
    opened.close()
    return True


def _dropouts(config: Any) -> Iterator[float]:
    """Yield every rate of dropout in a config, however deep."""
    for name, value in config.items() if isinstance(config, dict) else enumerate(config):
        if isinstance(value, dict | list):
            yield from _dropouts(value)
        elif str(name).endswith("dropout"):
            yield value
