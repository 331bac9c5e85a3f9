"""What matrix products take on this machine, as the cost model of cutoffs has it: a fixed time, one per operation."""

import torch
import torch.nn.functional as F

from glassformer.attention import linear
from glassformer.bench.paired import timed
from glassformer.models.cutoffs import ProductCost

REPEATS = 5


def product_cost(d_model: int = 256, positions: int = 1024, words: int = 4096) -> ProductCost:
    """Measure what the product of an output layer takes with its loss and gradients, for `models.cutoffs`.

    Args:
        d_model: Width of the stream.
        positions: Positions of a training step.
        words: Outputs of the large product; what one multiply-add takes is its time beyond that of a single one.
    """
    fixed, large = _seconds(1, d_model, 1), _seconds(positions, d_model, words)
    return ProductCost(fixed, max(large - fixed, 1e-15) / (positions * d_model * words))


def _seconds(positions: int, d_model: int, words: int) -> float:
    x, weight = (torch.randn(n, d_model).requires_grad_() for n in (positions, words))
    targets = torch.zeros(positions, dtype=torch.long)

    def step() -> object:
        return torch.autograd.grad(F.cross_entropy(linear(x, weight), targets), (x, weight))

    step()
    # the least of a few: others use the machine, too
    return min(timed(step).cpu for _ in range(REPEATS))
