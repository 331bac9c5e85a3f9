"""What a command is about to do, as floating-point operations, and how long that takes on this machine."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.models import ModelLike

# a minute or a few of one core: what is done without being asked for
UNASKED = 2e13
SIDE = 768  # of the matrices by whose product a machine's speed is measured


def pass_flops(model: "ModelLike", rows: int, length: int) -> float:
    """Return the floating-point operations of a forward pass, products of matrices only."""
    from glassformer.models.accounting import count_flops

    return float(rows * sum(count_flops(model.config, length).values()))


def seconds(model: "ModelLike", flops: float) -> float:
    """Return about how long operations take where a model lies, by the product of two matrices there."""
    import torch

    from glassformer.numerics.placement import place_of

    matrix = torch.randn(SIDE, SIDE, device=place_of(model))
    float((matrix @ matrix)[0, 0])
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < 0.05:
        # the number is waited for
        float((matrix @ matrix)[0, 0])
        done += 1
    return flops * (time.perf_counter() - started) / (done * 2 * SIDE**3)
