"""Sinusoids, and positions that only queries and keys read."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.attention.context import Context
from glassformer.attention.positions.positions import Positions, PositionsConfig


def sinusoids(
    positions: Int[Tensor, "..."] | Float[Tensor, "..."],
    d_model: int,
    layout: Literal["interleaved", "halves"] = "interleaved",
    slowest: bool = False,
) -> Float[Tensor, "... d_model"]:
    """Sinusoidal positions: sines and cosines of position * 10000^(-2t/d_model) in float64.

    Args:
        positions: Positions, or times.
        d_model: Number of sines and cosines together.
        layout: `interleaved`, each sine before its cosine; or `halves`, all sines before all cosines.
        slowest: Let the last frequency be 1/10000, by exponents of t / (d_model / 2 - 1).

    Source: Vaswani et al. 2017, section 3.5; tensor2tensor's code for `slowest`.
    """
    last = max(d_model - 2, 1) if slowest else d_model
    omega = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device) / last)
    angle = positions[..., None].to(torch.float64) * omega
    if layout == "halves":
        return torch.cat((angle.sin(), angle.cos()), -1)[..., :d_model]
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[..., :d_model]


@dataclass(frozen=True)
class QueryKeyOnly(PositionsConfig, kind="query_key_only"):
    """Sinusoids added to what queries and keys read, in every layer; the stream and the values stay position-free.

    Args:
        amplitude: Factor on the sinusoids.

    Source: Press et al. 2020, "Shortformer"; the models of Elhage et al. 2021.
    """

    amplitude: float = 1.0

    def build(self, dims: Any) -> "QueryKeyOnlyPositions":
        return QueryKeyOnlyPositions(self)

    def rows(
        self, positions: Int[Tensor, "b pos"], width: int, dtype: torch.dtype, length: Int[Tensor, ""] | None = None
    ) -> tuple[Tensor, ...]:
        return ((self.amplitude * sinusoids(positions, width)).to(dtype),)


class QueryKeyOnlyPositions(Positions):
    def __init__(self, config: QueryKeyOnly) -> None:
        super().__init__(config)

    def inputs(self, x_q: Tensor, x_k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        same = x_q is x_k
        x_q = x_q + self.rows(x_q.shape[-1], x_q, context, keys=False)[0]
        x_k = x_q if same else x_k + self.rows(x_k.shape[-1], x_k, context, keys=context.crossed)[0]
        return x_q, x_k
