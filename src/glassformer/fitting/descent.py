"""Gradient descent: loss, gradient, norm, step, over and over, by any optimizer.

    g = sum over the terms of a step's loss of d term / d parameters;    g <- g min(1, clip / |g|);    parameters step

What a step reads and draws is a function of its number, so one that begins at a later step, with parameters and
optimizer as they were, goes through the same values. No step is made by a loss or a gradient that is not finite.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.errors import TrainingDiverged


@dataclass(frozen=True)
class Gradient:
    """The gradient of one step, which stands in the parameters' `grad`, by what is said of it.

    Args:
        loss: Sum of the loss's terms.
        norm: Euclidean norm over all parameters, before it is clipped.
    """

    loss: float
    norm: float


@dataclass(frozen=True)
class Update:
    """A step that was made.

    Args:
        step: Its number, counted from 1.
        loss: The loss before it.
        norm: The norm of the gradient before it was clipped.
        rate: The learning rate.
    """

    step: int
    loss: float
    norm: float
    rate: float


class Descent:
    """The updates of parameters up to some step; iterating makes them one by one.

    Args:
        parameters: What is fitted, and clipped together; what needs no gradient stays out.
        optimizer: What changes them, by their gradients; its learning rate is set here before each step.
        losses: The terms of the loss of a step, counted from 1. A term's gradient is taken before the next term is
            asked for, so that no more than one graph is held.
        rate: The learning rate of a step.
        steps: The last step.
        step: The step already reached.
        clip: Largest norm of the gradient; 0 for no limit.
        name: What is fitted, as messages call it.
        way_on: What a message says can be done about a number that is not finite.
        mean: Mean over processes that have terms of their own and average their gradients as these are made, of a
            number that each has; all that their terms read is fitted. None for one process.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        optimizer: torch.optim.Optimizer,
        losses: Callable[[int], Iterable[Tensor]],
        *,
        rate: Callable[[int], float],
        steps: int,
        step: int = 0,
        clip: float = 0.0,
        name: str,
        way_on: Callable[[], str],
        mean: Callable[[float], float] | None = None,
    ) -> None:
        self.parameters, self.optimizer, self.losses = parameters, optimizer, losses
        self.rate, self.steps, self.step, self.clip = rate, steps, step, clip
        self.name, self.way_on, self.mean = name, way_on, mean
        self._next: Gradient | None = None

    def __iter__(self) -> Iterator[Update]:
        while self.step < self.steps:
            yield self._update()

    def gradient(self) -> Gradient:
        """The gradient of the next update, computed once; parameters and optimizer do not change.

        Raises:
            TrainingDiverged: Loss or norm is not finite; parameters are those of the step before.
        """
        if self._next is None:
            self._next = self._computed(self.step + 1)
        return self._next

    def check(self, when: str, step: int, numbers: Mapping[str, float]) -> None:
        """Raise `TrainingDiverged`, by the numbers' names, unless all are finite."""
        wrong = [f"{name} is {number}" for name, number in numbers.items() if not math.isfinite(number)]
        if wrong:
            said = f"{self.name} stopped {when} step {step}: {' and '.join(wrong)}."
            raise TrainingDiverged(f"{said} {self.way_on()}")

    def _update(self) -> Update:
        gradient, step = self.gradient(), self.step + 1
        rate = self.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step, self._next = step, None
        return Update(step=step, loss=gradient.loss, norm=gradient.norm, rate=rate)

    def _computed(self, step: int) -> Gradient:
        terms: list[Tensor] = []
        fitted = [parameter for parameter in self.parameters if parameter.requires_grad]
        with torch.enable_grad():
            for term in self.losses(step):
                # what a loss reads besides, a frozen model for one, gets no gradient; shards are no part of the graph
                term.backward(inputs=fitted if self.mean is None else None)
                terms.append(term.detach())
        # from here on the CPU waits for what the device computes
        loss = 0.0
        for term in terms:
            loss += float(term)
        loss = loss if self.mean is None else self.mean(loss)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.clip or float("inf")))
        self.check("in", step, {"loss": loss, "gradient norm": norm})
        return Gradient(loss=loss, norm=norm)
