"""Steps in time: what takes x(t) to x(t + h) where dx/dt = f(t, x), and how fast its error falls.

    euler      x + h f(t, x)                                                          order 1
    midpoint   x + h f(t + h/2, x + h/2 f(t, x))                                      order 2
    heun       x + h/2 (k1 + k2),  k1 = f(t, x),  k2 = f(t + h, x + h k1)             order 2
    rk4        x + h/6 (k1 + 2 k2 + 2 k3 + k4), of Runge and Kutta                    order 4

The error at a fixed time, of n steps of length 1/n, falls as n^-order where f is smooth.

Source: Hairer, Norsett and Wanner 1993, "Solving Ordinary Differential Equations I", section II.1.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer.arguments import Count, checked
from glassformer.config import require
from glassformer.labelled import Labelled

Field = Callable[[Any, Tensor], Tensor]  # of a time and a state
Method = Literal["euler", "midpoint", "heun", "rk4"]


def euler(field: Field, t: float, x: Tensor, h: float) -> Tensor:
    """A step of Euler's method."""
    return x + h * field(t, x)


def midpoint(field: Field, t: float, x: Tensor, h: float) -> Tensor:
    """A step of the midpoint rule."""
    return x + h * field(t + h / 2, euler(field, t, x, h / 2))


def heun(field: Field, t: float, x: Tensor, h: float) -> Tensor:
    """A step of Heun's method, the trapezoidal rule with its end guessed by Euler's."""
    slope = field(t, x)
    return x + h / 2 * (slope + field(t + h, x + h * slope))


def rk4(field: Field, t: float, x: Tensor, h: float) -> Tensor:
    """A step of the classical method of fourth order."""
    first = field(t, x)
    second = field(t + h / 2, x + h / 2 * first)
    third = field(t + h / 2, x + h / 2 * second)
    return x + h / 6 * (first + 2 * second + 2 * third + field(t + h, x + h * third))


STEPS: dict[str, Callable[[Field, float, Tensor, float], Tensor]] = {
    "euler": euler, "midpoint": midpoint, "heun": heun, "rk4": rk4,
}  # fmt: skip


@checked
def integrate(
    field: Field, x: Tensor, steps: Count, method: Method = "rk4", *, start: float = 0.0, end: float = 1.0
) -> Tensor:
    """Return x(end) from x(start) by equal steps.

    Args:
        field: f(t, x), of the shape of x.
        x: The state at the start.
        steps: How many.
        method: Which, from `STEPS`.
        start: Time.
        end: Time; before the start, it goes backwards.
    """
    h = (end - start) / steps
    for k in range(steps):
        x = STEPS[method](field, start + k * h, x, h)
    return x


def fitted_orders(gaps: Labelled) -> Labelled:
    """The order of each row of gaps over numbers of steps: the slope, with its sign turned, of logarithms.

    Args:
        gaps: Errors, `… steps`, none of them 0.

    Raises:
        ConfigError: An error is 0, or there are fewer than two numbers of steps.
    """
    require(gaps.axes[-1] == "steps", f"orders are fitted over the axis steps, the last; found {' '.join(gaps.axes)}.")
    steps = torch.tensor([float(n) for n in gaps.labels("steps")], dtype=torch.float64).log()
    require(len(steps) > 1, "an order takes errors of two numbers of steps and more; found one.")
    require(
        bool((gaps.values > 0).all()), "an error of 0 has no logarithm; leave out the numbers of steps that have it."
    )
    centred = steps - steps.mean()
    slopes = -(gaps.values.double().log() * centred).sum(-1) / centred.square().sum()
    coords = {name: labels for name, labels in gaps.coords.items() if name != "steps"}
    return Labelled(slopes, gaps.axes[:-1], coords)
