"""Smeared keys: each key is mixed with the one before it, so that one layer can see what a token follows.

    k_j <- s k_j + (1 - s) k_{j-1},   s = sigmoid(alpha), one alpha per key head

The first key of a text, of each packed document and of each left-padded row has none before it and stays as it is.
Keys are mixed before they are rotated, and after any norm of their own. Scores before the position encoding are then
two bilinear forms side by side: s S + (1 - s) (S shifted by one key).

State: the last unmixed key.
Source: Olsson et al. 2022, "In-context Learning and Induction Heads", argument 2. Where rotary positions come in is not
said there.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.attention.mixer import Dims, Traits, several
from glassformer.attention.projections.projection import Departure, Made, Of, Projected, ProjectionInputs
from glassformer.attention.projections.separate import Separate, SeparateProjection


@dataclass(frozen=True)
class Smeared(Separate, kind="smeared"):
    """One linear map each, and every key mixed with the one before it; for self-attention."""

    crosses: ClassVar[bool] = False

    def build(self, dims: Dims, traits: Traits, cross: bool) -> "SmearedProjection":
        return SmearedProjection(self, dims, traits)


class SmearedState(NamedTuple):
    """The last key before mixing; meaningless before the first position."""

    key: Float[Tensor, "batch *stream kv_head 1 d_head"]


class SmearedProjection(SeparateProjection):
    def __init__(self, config: Smeared, dims: Dims, traits: Traits) -> None:
        super().__init__(config, dims, traits)
        self.smear = Smear(dims.n_kv_heads)

    def before_rotation(
        self, made: Made, inputs: ProjectionInputs, kept: SmearedState | None = None
    ) -> tuple[Projected, SmearedState | None]:
        (q, k, v), _ = super().before_rotation(made, inputs)
        k, last = self.smear(k, inputs.context.positions, None if kept is None else kept.key)
        return (q, k, v), None if kept is None else SmearedState(last)

    def departs(self, of: Of, value: int | None = None) -> Departure | None:
        if of == "values":
            return super().departs(of, value)
        return Departure(
            "smears its keys",
            "a score is the sum of two bilinear forms, s QK on the key and (1 - s) QK on the one before it",
            "The shares s are module.projection.smear.share; read scores themselves: "
            "gf.run(…, read=['blocks.*.attn.scores']).",
        )

    def begin(self, batch: int, like: Tensor) -> SmearedState:
        heads = (*several(self.streams), self.dims.n_kv_heads)
        return SmearedState(like.new_zeros(batch, *heads, 1, self.dims.d_head))

    def keeps(self, length: int) -> bool:
        return False

    def state_numbers(self, length: int, source_length: int) -> int:
        return self.dims.n_kv_heads * self.streams * self.dims.d_head


class Smear(nn.Module):
    """Mixes keys with their predecessors; `alpha` is trained and begins at equal shares."""

    def __init__(self, n_kv_heads: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(n_kv_heads))

    @property
    def share(self) -> Float[Tensor, " kv_head"]:
        """The weight of a key in itself; the rest is its predecessor's."""
        return self.alpha.sigmoid()

    def forward(
        self,
        k: Float[Tensor, "batch *stream kv_head pos d_head"],
        positions: Int[Tensor, "b pos"],
        previous: Float[Tensor, "batch *stream kv_head 1 d_head"] | None = None,
    ) -> tuple[Float[Tensor, "batch *stream kv_head pos d_head"], Float[Tensor, "batch *stream kv_head 1 d_head"]]:
        """Return the mixed keys and the last unmixed one.

        Args:
            k: Keys as projected.
            positions: Their positions, which start anew in each document.
            previous: The key before the first, if there are earlier positions.
        """
        before = torch.cat((torch.zeros_like(k[..., :1, :]) if previous is None else previous, k[..., :-1, :]), -2)
        # padding on the left counts as position 0, and so does the first token behind it
        first = (positions == 0)[..., None]
        for _ in range(k.ndim - 3):
            first = first.unsqueeze(1)
        share = self.share.to(k.dtype)[:, None, None]
        return torch.where(first, k, share * k + (1 - share) * before), k[..., -1:, :]
