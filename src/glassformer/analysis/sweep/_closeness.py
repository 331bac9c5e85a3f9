"""How far numbers of two passes over the same lie apart, and how far rounding may put them."""

import torch
from torch import Tensor


def rounding(values: Tensor) -> float:
    """The difference, as `difference` has it, up to which passes that compute the same in another order agree."""
    return torch.finfo(values.dtype).eps ** 0.5 if values.is_floating_point() else 0.0


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the root mean square of what was expected; infinite between two shapes."""
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.detach().double(), expected.detach().double()
    apart = (found - expected).abs().nan_to_num(0.0).amax()
    return float(apart / expected.square().nanmean().sqrt().clamp_min(1e-30))
