"""What the training loop asks of the processes that share its work; `Alone` answers for one that shares with nobody."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch

from glassformer.data import Batch

Made = TypeVar("Made")


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

    def divided(self, whole: Trained) -> Trained:
        """Return what this process trains of a model and its optimizer."""
        ...

    def whole(self) -> Trained | None:
        """Return all that is trained, as it is now, to the leader; all processes ask together."""
        ...


class Alone:
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

    def divided(self, whole: Trained) -> Trained:
        self._trained = whole
        return whole

    def whole(self) -> Trained | None:
        return self._trained
