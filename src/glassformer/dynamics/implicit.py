"""Fixed points of a map, with gradients by the implicit function theorem: layers without depth.

    z = f(z, theta),     dL/dtheta = u df/dtheta   where   u = dL/dz + u df/dz

u is itself a fixed point, found as z is: nothing is kept of the way to either, and memory does not grow with steps.
Gradients of gradients are not given.
Source: Bai, Kolter and Koltun 2019, "Deep Equilibrium Models" (1909.01377), theorem 1.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, Positive, checked
from glassformer.errors import NotConverged


@checked
def fixed_point(
    step: Callable[[Tensor], Tensor],
    start: Float[Tensor, "*axes"],
    *,
    tolerance: Positive = 1e-12,
    most: Count = 2000,
) -> Float[Tensor, "*axes"]:
    """Where a map leaves its input as it is, found by applying it again and again.

    Gradients reach whatever tensors `step` uses, and not the start, on which a fixed point does not depend.

    Args:
        step: The map, differentiable.
        start: Where to begin.
        tolerance: Largest change of a number by the last step, relative to one and the largest number.
        most: Steps after which it is given up, forwards and backwards.

    Raises:
        NotConverged: The map has not come to rest by then.
    """
    with torch.no_grad():
        found = _settled(step, start.detach(), tolerance, most, "fixed_point")
    if not torch.is_grad_enabled():
        return found
    # the one step that is recorded says how parameters move the point, the other one how it moves itself
    reached = step(found)
    if not reached.requires_grad:
        return found
    inner = found.clone().requires_grad_()
    again = step(inner)

    def implicit(gradient: Tensor) -> Tensor:
        def back(u: Tensor) -> Tensor:
            [through] = torch.autograd.grad(again, inner, u, retain_graph=True, allow_unused=True)
            return gradient if through is None else gradient + through

        return _settled(back, gradient, tolerance, most, "the gradient of fixed_point")

    reached.register_hook(implicit)
    return reached


def _settled(step: Callable[[Tensor], Tensor], z: Tensor, tolerance: float, most: int, what: str) -> Tensor:
    change = torch.inf
    for _ in range(most):
        after = step(z)
        change, z = float((after - z).abs().max()), after
        if change <= tolerance * (1 + float(z.abs().max())):
            return z
    raise NotConverged(
        f"{what}: after {most} steps a number still changes by {change:.2g}. A map that contracts comes to rest: take "
        "weaker couplings or a higher temperature, a larger most=, or a larger tolerance=."
    )
