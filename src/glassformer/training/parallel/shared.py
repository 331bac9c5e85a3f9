"""Data parallel training: rows, weights and optimizer state shared among the ranks of a mesh.

A rank's loss is that of its rows, times their share of the targets that count, times the number of ranks: the mean over
ranks, which is what gradients are averaged to, is then the loss of the whole batch.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch

from glassformer.attention import Attention
from glassformer.data import Batch
from glassformer.errors import ConfigError
from glassformer.files import json_text
from glassformer.models.routing import charged_sites
from glassformer.training.config import TrainConfig
from glassformer.training.parallel.mesh import Mesh
from glassformer.training.parallel.processes import Ranks, joined
from glassformer.training.parallel.rows import DropoutOfAllRows, rows_between, shared_rows
from glassformer.training.parallel.sharding import gather, sharded
from glassformer.training.sharing import Trained

Made = TypeVar("Made")


@contextmanager
def shared(config: TrainConfig, mesh: Mesh, device: torch.device) -> Iterator["Shared"]:
    """Yield what the training loop asks of the ranks of a mesh, once all are there and have the same recipe.

    Args:
        config: The recipe.
        mesh: Who trains.
        device: Where this rank does.

    Raises:
        ConfigError: The recipe asks for what is not shared, ranks have different recipes, or there are not as many as
            the mesh has.
        RankLost: A rank did not come, died or no longer answers.
    """
    if config.compile:
        raise ConfigError(f'mesh "{mesh}": a model that is compiled is trained by one process. Set compile=false.')
    if mesh.size != mesh.dp:
        raise ConfigError(f'mesh "{mesh}": a run is shared by rows so far. Use dp={mesh.size}.')
    with joined(mesh, device) as ranks:
        told = json.loads(config.identity())
        ranks.agree("recipe", {name: json_text(value, sort=True) for name, value in told.items()})
        yield Shared(config, ranks)


class Shared:
    """Data parallel ranks, for the training loop.

    Args:
        config: The recipe.
        ranks: Who trains.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        self.config, self.ranks = config, ranks
        self.drops = any(rate > 0 for rate in _dropouts(config.model.to_dict()))
        self.drops_patterns = False
        self._whole: Trained | None = None
        self._shards: Trained | None = None

    @property
    def leads(self) -> bool:
        return self.ranks.leads

    @property
    def size(self) -> int:
        return self.ranks.size

    def first(self, name: str, action: Callable[[], Made]) -> Made:
        return self.ranks.first(name, action)

    def rows(self, batch: Batch) -> Batch:
        return shared_rows(batch, self.ranks.rank, self.size)

    def totals(self, *numbers: int | float) -> list[float]:
        return self.ranks.totals(*numbers)

    def mean(self, number: float) -> float:
        return self.totals(number)[0] / self.size

    def dropout(self, batch: Batch, rows: int) -> AbstractContextManager[Any]:
        if not self.drops:
            # a mode slows every operation
            return nullcontext()
        if self.drops_patterns and batch.documents is not None:
            raise self._refused("dropout on the patterns of packed documents")
        return DropoutOfAllRows(rows, *rows_between(rows, self.ranks.rank, self.size))

    def divided(self, whole: Trained) -> Trained:
        self._check(whole.model)
        configs = [getattr(module, "config", None) for module in whole.model.modules()]
        self.drops_patterns = any(isinstance(config, Attention) and config.dropout > 0 for config in configs)
        self._shards = sharded(whole, self.config.optim, self.ranks.devices)
        self._whole = whole if self.leads else None
        return self._shards

    def whole(self) -> Trained | None:
        assert self._shards is not None, "nothing is trained yet"
        gather(self._shards, self._whole)
        return self._whole

    def _check(self, model: Any) -> None:
        """Raise `ConfigError` for what is a function of all rows or all weights at once."""
        if charged_sites(model):
            raise self._refused("charges for what its sub-layers do with a batch (experts)")
        if model.penalty() is not None:
            raise self._refused("a penalty on weights (adaptive spans)")

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(f'mesh "{self.ranks.mesh}": the recipe has {what}, which one process alone trains.')


def _dropouts(config: Any) -> Iterator[float]:
    """Yield every rate of dropout in a config, however deep."""
    for name, value in config.items() if isinstance(config, dict) else enumerate(config):
        if isinstance(value, dict | list):
            yield from _dropouts(value)
        elif str(name).endswith("dropout"):
            yield value
