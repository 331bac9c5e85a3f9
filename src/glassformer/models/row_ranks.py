"""Processes that have the same model and share the rows of what is asked of it: rows of a sweep, which are passes.

    with rows_shared_among(ranks):      # on every rank, and all that is called inside too, with the same arguments
        sweep(model, text, plan, metric)

They are named by a block of code and never found by themselves: what one process asks alone, as the leader of a
training run does when it measures, would wait for others that never come.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class RowRanks(Protocol):
    """The processes that share rows, as one of them sees them."""

    @property
    def rank(self) -> int:
        """Which of them this is, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def gather(self, x: Tensor) -> list[Tensor]:
        """Every rank's tensor, in the order of ranks.

        Args:
            x: This rank's, of a shape and type that all ranks have.
        """
        ...


class OneRank:
    """One process, which has all rows; a `RowRanks`."""

    rank, size = 0, 1

    def gather(self, x: Tensor) -> list[Tensor]:
        """As `RowRanks` says."""
        return [x]


ONE_RANK = OneRank()
_SHARED: ContextVar[RowRanks] = ContextVar("ranks that share rows", default=ONE_RANK)


def row_ranks() -> RowRanks:
    """The processes that share rows here; this one alone outside of `rows_shared_among`."""
    return _SHARED.get()


@contextmanager
def rows_shared_among(ranks: RowRanks) -> Iterator[None]:
    """Let processes share rows inside.

    Args:
        ranks: Who shares them.
    """
    token = _SHARED.set(ranks)
    try:
        yield
    finally:
        _SHARED.reset(token)
