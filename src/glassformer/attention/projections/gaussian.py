"""Gaussians in place of vectors: of each query, key and value a mean and a diagonal covariance.

    mean = x W_m,   covariance = elu(x W_c) + 1 > 0          of each of the three

Both are made of the whole stream. Where the first half of it holds means and the second covariances, and W_m and W_c
are blocks that read a half each, this is the paper's layer with its two streams exactly; its output matrix is then two
blocks as well. Rotary positions turn means alone: a distance of means then depends on how far apart they are, and a
variance has no direction to turn.

Source: Fan et al. 2022, "Sequential Recommendation via Stochastic Self-Attention", section 4.2.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.positions import Positions
from glassformer.attention.projections.projection import (
    READ_SCORES,
    TAKE_VALUES,
    Departure,
    HeldValues,
    Made,
    Of,
    Projected,
    ProjectionInputs,
)
from glassformer.attention.projections.separate import Separate, SeparateProjection
from glassformer.config import require

MEAN = 0  # of the two values of a head


@dataclass(frozen=True)
class Gaussian(Separate, kind="gaussian"):
    """One linear map for each mean and each covariance; for self-attention with two streams of each."""

    crosses: ClassVar[bool] = False

    def build(self, dims: Dims, traits: Traits, cross: bool) -> "GaussianProjection":
        require(
            traits.streams == traits.value_streams == 2,
            'projection "gaussian" makes a mean and a covariance of each query, key and value, for mechanisms of two '
            f"streams and two values; found {traits.streams} and {traits.value_streams}.",
        )
        return GaussianProjection(self, dims, traits)


class GaussianProjection(SeparateProjection):
    def check(self, positions: Positions) -> None:
        require(
            not (positions.at_read or positions.has_scores),
            f'attention: projection "gaussian" turns means when they are written, and positions '
            f'"{positions.config.kind}" would turn all of a key again where it is read; use Rope(), or positions that '
            "add to scores.",
        )

    def before_rotation(self, made: Made, inputs: ProjectionInputs, kept: Any = None) -> tuple[Projected, Any]:
        (q, k, v), kept = super().before_rotation(made, inputs, kept)
        return (_positive(q), _positive(k), _positive(v)), kept

    def placed(self, made: Projected, inputs: ProjectionInputs) -> Projected:
        q, k, v = made
        means = inputs.positions.written(q[:, 0], k[:, 0], inputs.context)
        q, k = (torch.stack((mean, heads[:, 1]), 1) for mean, heads in zip(means, (q, k)))
        return q, k, v

    def departs(self, of: Of, value: int | None = None) -> Departure | None:
        how, cut = "makes covariances by ELU + 1", super().departs(of, value)
        if of == "scores":
            return Departure(how, "its scores are not bilinear", READ_SCORES)
        if cut is not None or value == MEAN:
            return cut
        return Departure(how, "no matrix says what a head moves", TAKE_VALUES, once_frozen=True)

    def held_values(self, x: Float[Tensor, "*n pos d_model"]) -> HeldValues:
        """Return values as a line through where each covariance is: y g(y) + 1 with g(y) = elu(y) / y held."""
        made = torch.einsum("...td,hde->...hte", x, self.matrix("value"))
        if self.qkv.bias is not None:
            made = made + self.qkv.bias.split(self.widths)[2].unflatten(0, (self.dims.n_kv_heads, 1, -1))
        mean, y = made.chunk(2, -1)
        # 1 where nothing is bent, and at zero, where y / elu(y) has that limit
        below = y.clamp_max(-torch.finfo(y.dtype).tiny)
        scale = torch.where(y < 0, below / below.expm1(), 1.0)
        return HeldValues(
            torch.stack((torch.ones_like(mean), scale), -4),
            torch.stack((torch.zeros_like(mean), torch.ones_like(y)), -4),
        )


def _positive(heads: Float[Tensor, "batch 2 head pos d"]) -> Float[Tensor, "batch 2 head pos d"]:
    """Return means as they are and covariances above zero."""
    return torch.stack((heads[:, 0], F.elu(heads[:, 1]) + 1), 1)
