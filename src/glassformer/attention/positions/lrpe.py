"""Linearised relative positions (LRPE): each feature of queries and keys turns by an angle that is learned.

    weight of key s for query t = sum_i phi(q_t)_i phi(k_s)_i cos(frequency_i (t - s))

A product all the same, of features twice as wide, phi(u)_i cos(frequency_i p) beside phi(u)_i sin(frequency_i p) at
position p: a rotation of pairs whose second number is zero. What is turned is what a mechanism makes of queries and
keys, not these: a rotation of what is yet to pass an activation would not depend on distance alone.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.positions.positions import Positions, PositionsConfig


@dataclass(frozen=True)
class Lrpe(PositionsConfig, kind="lrpe"):
    """Learned rotation of features: feature i of a query or key turns by position * frequency_i.

    Frequencies, of each head, begin as 10000^(-2i/(n_heads d_head)), i numbering the features of all heads. The state
    of a mechanism is twice as large. A number type of few bits rounds frequencies too: angles are off by more, the
    farther a key lies.

    Source: Qin et al. 2023, "Linearized Relative Positional Encoding" (2307.09270), in the form of the released code of
    TransNormerLLM (2307.14995), whose first layer has it.
    """

    crosses: ClassVar[bool] = False
    doubles: ClassVar[bool] = True

    def build(self, dims: Any) -> "LrpePositions":
        return LrpePositions(self, dims.n_heads, dims.d_head)


class LrpePositions(Positions):
    def __init__(self, config: Lrpe, n_heads: int, d_head: int) -> None:
        super().__init__(config)
        width = n_heads * d_head
        begins = 10000.0 ** (-2 * torch.arange(width, dtype=torch.float64) / width)
        # angle per position, in radians
        self.frequencies = nn.Parameter(begins.view(n_heads, d_head).to(torch.get_default_dtype()))

    def doubled(
        self, q: Float[Tensor, "batch head pos d_head"], k: Float[Tensor, "batch head pos d_head"], context: Context
    ) -> tuple[Float[Tensor, "batch head pos d_feature"], Float[Tensor, "batch head pos d_feature"]]:
        # in float64, as all rotations: a float32 angle is off by whole degrees at long range
        angle = context.positions[:, None, :, None].to(torch.float64) * self.frequencies[:, None].to(torch.float64)
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        return torch.cat((q * cos, q * sin), -1), torch.cat((k * cos, k * sin), -1)
