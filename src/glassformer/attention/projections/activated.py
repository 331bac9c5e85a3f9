"""An activation behind the maps: every query, key and value passes it coordinate by coordinate.

    q = act(x W_Q),  k = act(x W_K),  v = act(x W_V)

before norms of queries and keys and before rotation. Values are then no matrix times what a head reads.

Source: MiniMax 2025, "MiniMax-01" (2501.08313), section 2.2: silu on all three in its lightning layers.
"""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.projections.projection import READ_SCORES, TAKE_VALUES, Departure, Of
from glassformer.attention.projections.separate import Separate, SeparateProjection, SourceProjection


@dataclass(frozen=True)
class Activated(Separate, kind="activated"):
    """One linear map each, and an activation of what they make.

    Args:
        activation: Of every coordinate.
    """

    activation: Literal["silu"] = "silu"

    def build(self, dims: Dims, traits: Traits, cross: bool) -> "ActivatedProjection | ActivatedSourceProjection":
        return (ActivatedSourceProjection if cross else ActivatedProjection)(self, dims, traits)


class ActivatedProjection(SeparateProjection):
    def bent(self, x: Tensor) -> Tensor:
        return F.silu(super().bent(x))

    def departs(self, of: Of, value: int | None = None) -> Departure:
        if of == "values":
            return Departure("passes its values through silu", "no matrix says what a head moves", TAKE_VALUES)
        return Departure("passes its queries and keys through silu", "its scores are not bilinear", READ_SCORES)


class ActivatedSourceProjection(SourceProjection):
    bent = ActivatedProjection.bent
    departs = ActivatedProjection.departs
