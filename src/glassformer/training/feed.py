"""Batches on the model's device: on an accelerator the next one is made while it computes, in pinned memory.

What a batch holds is a function of its step alone, so one made ahead is the one that would have been made then.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from glassformer.data import Batch
from glassformer.numerics.placement import is_accelerator


class Fed(NamedTuple):
    """A batch, or a part of one, where the model is, and how many of its targets count."""

    batch: Batch
    counted: int


class Feed:
    """The batches of a run, in order.

    Args:
        make: Returns the batch of a step, in parts, on the CPU.
        device: Where the model is.
    """

    def __init__(self, make: Callable[[int], Sequence[Batch]], device: torch.device) -> None:
        self.make, self.device = make, device
        self._ahead: dict[int, list[Fed]] = {}

    def take(self, step: int) -> list[Fed]:
        """Return the batch of a step."""
        found = self._ahead.pop(step, None) or self._made(step)
        self._ahead.clear()
        return found

    def look_ahead(self, step: int) -> None:
        """Make the batch of a step before it is asked for, if something else computes meanwhile."""
        if is_accelerator(self.device):
            self._ahead[step] = self._made(step)

    def _made(self, step: int) -> list[Fed]:
        return [Fed(self._moved(part), int(part.weight.sum())) for part in self.make(step)]

    def _moved(self, batch: Batch) -> Batch:
        if is_accelerator(self.device) and torch.accelerator.is_available():
            batch = batch.pinned()
        return batch.to(self.device, non_blocking=True)
