"""Full fine-tuning: W' is trained itself, the baseline of all that train less.

W' = P        P begins as W
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.adaptation._adapter import AdapterConfig
from glassformer.adaptation._change import Change
from glassformer.config import require
from glassformer.models import Matrix
from glassformer.numerics.precision import wide


@dataclass(frozen=True)
class FullTuning(AdapterConfig, kind="full"):
    """Full fine-tuning: every number of a matrix is trained."""

    trains: ClassVar[str] = "whole matrices"

    def begin(self, one: Matrix, generator: torch.Generator, moments: Tensor | None = None) -> "Whole":
        return Whole(one.values.detach())


class Whole(Change):
    """A matrix in the place of another.

    Args:
        base: What it begins as.
    """

    def __init__(self, base: Float[Tensor, "d_out d_in"]) -> None:
        super().__init__()
        self.matrix = nn.Parameter(wide(base.detach()).clone())

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.matrix.shape[1]

    def composed(self, base: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        return self.matrix.to(base.dtype)

    def sum_of(self, others: Mapping[Change, float]) -> "Whole":
        require(
            abs(sum(others.values()) - 1) < 1e-6,
            f"mixed: of whole matrices weights must sum to one, found {sum(others.values()):g}: what they were trained "
            "from is not kept beside them.",
        )
        total = torch.zeros_like(self.matrix)
        for other, weight in others.items():
            assert isinstance(other, Whole), "changes of one kind are summed"
            total += weight * other.matrix.detach()
        return Whole(total)
