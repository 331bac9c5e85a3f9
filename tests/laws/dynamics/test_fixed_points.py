"""Fixed points: their gradient is that of the unrolled steps, and what does not come to rest is refused."""

import pytest
import torch
from torch import Tensor

from glassformer.dynamics import fixed_point
from glassformer.errors import NotConverged
from glassformer.testing import close


def normal(*shape: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.requires_grad_()


def test_the_implicit_gradient_is_that_of_unrolled_steps() -> None:
    mixing, given = normal(5, 5), normal(3, 5, seed=1)

    def step(z: Tensor) -> Tensor:
        return torch.tanh(0.15 * z @ mixing + given)

    unrolled = torch.zeros(3, 5, dtype=torch.float64)
    for _ in range(80):
        unrolled = step(unrolled)
    found = fixed_point(step, torch.zeros(3, 5, dtype=torch.float64))
    close(found, unrolled)
    gradients = [torch.autograd.grad((z * z.detach().cos()).sum(), (mixing, given)) for z in (found, unrolled)]
    for ours, expected in zip(*gradients):
        close(ours, expected)


def test_a_linear_map_has_the_gradient_of_its_inverse() -> None:
    mixing, given = 0.2 * normal(4, 4).detach(), normal(4)
    found = fixed_point(lambda z: mixing @ z + given, torch.zeros(4, dtype=torch.float64))
    [gradient] = torch.autograd.grad(found.sum(), given)
    # z = (1 - M)^-1 g
    close((torch.eye(4, dtype=torch.float64) - mixing) @ found, given)
    close((torch.eye(4, dtype=torch.float64) - mixing).mT @ gradient, torch.ones(4, dtype=torch.float64))


def test_what_does_not_come_to_rest_is_refused_and_what_asks_for_no_gradient_has_none() -> None:
    with pytest.raises(NotConverged, match="after 50 steps a number still changes"):
        fixed_point(lambda z: 1 - z, torch.zeros(2), most=50)
    given = normal(2)
    with torch.no_grad():
        assert not fixed_point(lambda z: z / 2 + given, torch.zeros(2, dtype=torch.float64)).requires_grad
    assert not fixed_point(lambda z: z / 2, torch.ones(2, dtype=torch.float64)).requires_grad
    close(fixed_point(lambda z: z * 0 + given, torch.zeros(2, dtype=torch.float64)), given)
