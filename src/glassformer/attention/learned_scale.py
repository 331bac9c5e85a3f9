"""A learned scale: a vector of factors that is stored at another size than it has, and learns at another pace for it.

    scale = stored * start / size

Adam moves every parameter by about the learning rate, and so the scale by start / size of it: one that begins at 0.05
and is stored at 0.1 takes twice as many steps to double as one that is stored as it is.
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

    @property
    def factor(self) -> float:
        """What is multiplied by what is stored."""
        return self.start / self.size

    def stored(self, *shape: int) -> nn.Parameter:
        """What is stored of factors of this shape, at the beginning."""
        return nn.Parameter(torch.full(shape, self.size))

    def factors(self, stored: Tensor) -> Tensor:
        """The factors that something stored stands for."""
        return stored if self.start == self.size else stored * self.factor
