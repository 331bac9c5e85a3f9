"""A learned scale: a vector of factors that is stored at another size than it has, so that its rate is its own.

    scale = stored * start / size

Adam's steps are as long for every parameter. Of one that is stored around `size` they change `start / size` as much as
of one stored as it is: a scale near 0.05 that is stored around 0.1 learns half as fast, by its own numbers.
Source: Loshchilov et al. 2024, "nGPT" (2410.01131), section 2.5, where `start` is s_init and `size` s_scale.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.arguments import Positive
from glassformer.config import Config


@dataclass(frozen=True)
class LearnedScale(Config):
    """A vector of learned factors.

    Args:
        start: What every factor is at the beginning.
        size: What is stored for it then; 1 and `start=1` store the factors themselves.
    """

    start: Positive = 1.0
    size: Positive = 1.0

    def stored(self, *shape: int) -> nn.Parameter:
        """What is stored of factors of this shape, at the beginning."""
        return nn.Parameter(torch.full(shape, self.size))

    def factors(self, stored: Tensor) -> Tensor:
        """The factors that something stored stands for."""
        return stored if self.start == self.size else stored * (self.start / self.size)
