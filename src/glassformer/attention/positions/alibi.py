"""Attention with linear biases: a penalty on the scores that grows with distance."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Positive
from glassformer.attention.context import Context
from glassformer.attention.positions.positions import Positions, PositionsConfig


@dataclass(frozen=True)
class Alibi(PositionsConfig, kind="alibi"):
    """A penalty on the scores that grows linearly with distance; slopes are fixed per head.

    bias = -factor * slope * abs(query - key)

    Args:
        factor: On the penalty; 1 / sqrt(d_head) where scores are scaled after it was added to them.
        rounded: The precision that slopes, and slope * key position, are rounded to before anything else; None for no
            rounding. The bias is then counted from the first position, where the error grows from: bias = factor *
            rounded(rounded(slope) * key). Without rounding softmax could not tell the two apart.

    Source: Press et al. 2021, "Train Short, Test Long"; Almazrouei et al. 2023, "The Falcon Series" (factor, rounding).
    """

    factor: Positive = 1.0
    rounded: Literal["bfloat16"] | None = None

    def build(self, dims: Any) -> "AlibiPositions":
        return AlibiPositions(self, dims.n_heads)

    def bias(
        self, n_heads: int, queries: Int[Tensor, "b query"], keys: Int[Tensor, "b key"]
    ) -> Float[Tensor, "b head query key"]:
        """Return what is added to the scores, in float64; with rounding, the same for every query."""
        slopes = alibi_slopes(n_heads).to(keys.device)[:, None, None]
        if self.rounded is None:
            return -self.factor * slopes * (queries[:, :, None] - keys[:, None, :]).abs()[:, None]
        ramp = (slopes.to(torch.bfloat16) * keys[:, None, None, :]).to(torch.float64)
        return self.factor * ramp.expand(-1, -1, queries.shape[-1], -1)


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """Slopes of heads: 2^(-8(h+1)/H) for a power of two; else of the lower power and every other one of twice that."""
    power = 2 ** int(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    extra = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return torch.tensor((slopes + extra)[:n_heads], dtype=torch.float64)


class AlibiPositions(Positions):
    has_bias = True

    def __init__(self, config: Alibi, n_heads: int) -> None:
        super().__init__(config)
        self.n_heads = n_heads
        self.bias_by_offset = config.rounded is None

    def bias(self, context: Context) -> Float[Tensor, "b head query key"]:
        key = (self.key, self.n_heads)
        if key not in context.memo:
            context.memo[key] = self.config.bias(self.n_heads, context.positions, context.key_positions)
        return context.memo[key]
