"""What the training loop asks of processes that share its work; `OneProcess` answers for one that does not share it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch

from glassformer.data import Batch
from glassformer.training.optim import OptimConfig
from glassformer.training.record import RunFolder, load_whole

Made = TypeVar("Made")
# what processes keep of a run: the model, or each its part
Checkpoints = Literal["whole", "shards"]


class Trained(NamedTuple):
    """A model and the optimizer of its weights."""

    model: Any
    optimizer: torch.optim.Optimizer


@runtime_checkable
class Sharing(Protocol):
    """Processes that train one model, as one of them sees them."""

    @property
    def leads(self) -> bool:
        """Whether this process writes the run's folder, and measures."""
        ...

    @property
    def size(self) -> int:
        """How many shares the rows of a batch have; several processes may have one together."""
        ...

    def first(self, name: str, action: Callable[[], Made]) -> Made:
        """Return what an action gives, done by the leader before all others; its error is everybody's."""
        ...

    def rows(self, batch: Batch) -> Batch:
        """Return the rows of a batch that this process has."""
        ...

    def totals(self, *numbers: int | float) -> list[float]:
        """Sums over shares of numbers that each process has; those of one share have the same."""
        ...

    @property
    def mean(self) -> Callable[[float], float] | None:
        """Mean over shares of a number that each process has; None for one process."""
        ...

    def dropout(self, batch: Batch, rows: int) -> AbstractContextManager[Any]:
        """Return the context of a pass over this process's rows, of so many that all have together."""
        ...

    def begun(self, model: Any, optim: OptimConfig, run: RunFolder) -> tuple[Trained, dict[str, Any] | None]:
        """Return what this process trains of a model, as the run's last checkpoint has it, and the facts of that."""
        ...

    def save(self, run: RunFolder, step: int, facts: dict[str, Any]) -> None:
        """Write a checkpoint of all that is trained, as it is now; all processes call it together."""
        ...

    def whole(self) -> Any | None:
        """Return the model, as it is now, to the leader if it can have it; all processes ask together."""
        ...


class OneProcess:
    """One process, which has all rows and all weights."""

    leads, size, mean = True, 1, None

    def __init__(self) -> None:
        self._trained: Trained | None = None

    def first(self, name: str, action: Callable[[], Made]) -> Made:
        return action()

    def rows(self, batch: Batch) -> Batch:
        return batch

    def totals(self, *numbers: int | float) -> list[float]:
        return [float(one) for one in numbers]

    def dropout(self, batch: Batch, rows: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def begun(self, model: Any, optim: OptimConfig, run: RunFolder) -> tuple[Trained, dict[str, Any] | None]:
        self._trained = trained = Trained(model, optim.build(model))
        return trained, run.restore(model, lambda folder: load_whole(folder, *trained))

    def save(self, run: RunFolder, step: int, facts: dict[str, Any]) -> None:
        assert self._trained is not None, "nothing is trained yet"
        run.save(step, *self._trained, facts)

    def whole(self) -> Any | None:
        return None if self._trained is None else self._trained.model
