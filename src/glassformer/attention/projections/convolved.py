"""Short convolutions: every query, key and value mixed with those just before it, coordinate by coordinate.

    q_t <- act(sum over i < width of  c_i * q_{t-i} + b),   c one vector per tap and head; k and v likewise

Queries and keys that a group of heads shares are mixed once.
What lies before the first position of a text, of each packed document and of each left-padded row counts as zero.
Queries and keys are mixed before any norm of their own, and before they are rotated. At birth the taps are those of the
identity.

State: the last width - 1 queries, keys and values before mixing.
Source: Poli et al. 2023, "Hyena Hierarchy", section 3; Yang et al. 2024, "Parallelizing Linear Transformers with the
Delta Rule", section 3.3, which has silu behind each.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.mixer import Dims, Traits, several
from glassformer.attention.projections.projection import (
    READ_SCORES,
    TAKE_MIXED,
    Departure,
    Made,
    Of,
    Projected,
    ProjectionInputs,
    Which,
)
from glassformer.attention.projections.separate import Separate, SeparateProjection, repeated
from glassformer.config import UNSAID
from glassformer.errors import AnalysisUnavailable


@dataclass(frozen=True)
class Convolved(Separate, kind="convolved"):
    """One linear map each, and a short causal convolution on each; for self-attention.

    Args:
        width: Positions that are mixed, one's own among them.
        activation: Of what is mixed, before norms and rotation; None for none.
        tap_bias: Bias on what is mixed, before the activation.
    """

    width: Count = 4
    activation: Literal["silu"] | None = field(default=None, metadata={UNSAID: True})
    tap_bias: bool = field(default=False, metadata={UNSAID: True})

    crosses: ClassVar[bool] = False

    def free(self) -> Separate:
        # what a group shares is mixed by taps of its own
        return self.replace(bias=True)

    def build(self, dims: Dims, traits: Traits, cross: bool) -> "ConvolvedProjection":
        return ConvolvedProjection(self, dims, traits)


class ConvolvedState(NamedTuple):
    """The last queries, keys and values before mixing."""

    query: Float[Tensor, "batch *stream head earlier d_head"]
    key: Float[Tensor, "batch *stream kv_head earlier d_head"]
    value: Float[Tensor, "batch *value_stream kv_head earlier d_value"]


class ConvolvedProjection(SeparateProjection):
    def __init__(self, config: Convolved, dims: Dims, traits: Traits) -> None:
        super().__init__(config, dims, traits)
        streams, value_streams = several(traits.streams), several(traits.value_streams)
        self.shapes = (
            (*streams, self.made[0], dims.d_head),
            (*streams, self.made[1], dims.d_head),
            (*value_streams, self.made[2], dims.d_value),
        )
        self.earlier, self.activation = config.width - 1, config.activation
        self.convolutions = nn.ModuleList(
            [ShortConvolution(shape, config.width, config.tap_bias) for shape in self.shapes]
        )
        self.values_by_position = False

    def before_rotation(
        self, made: Made, inputs: ProjectionInputs, kept: ConvolvedState | None = None
    ) -> tuple[Projected, ConvolvedState | None]:
        before = (None, None, None) if kept is None else kept
        if inputs.own is not None:
            q, k, v = made
            made = inputs.with_own(*self.by_head(q, k), v)
        parts = zip(self.convolutions, made, before)
        (q, k, v), last = zip(*(mix(x, inputs.context.positions, earlier) for mix, x, earlier in parts))
        if self.activation == "silu":
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        return (*self.normed(*self.by_head(q, k)), v), None if kept is None else ConvolvedState(*last)

    def by_position(self, x_q: Tensor, x_k: Tensor, x_v: Tensor) -> Projected:
        q, k, v = self.heads(x_q, x_k, x_v)
        return (*self.by_head(q, k), v)

    def of_heads(
        self, which: Which, x: Float[Tensor, "copy batch pos d_model"], heads: Int[Tensor, " copy"]
    ) -> Float[Tensor, "batch *stream copy pos d_head"]:
        norm = None if which == "value" or self.norms is None else self.norms[("query", "key").index(which)]
        if norm is not None and norm.couples_heads:
            raise AnalysisUnavailable(
                "what single heads read: these queries and keys divide by one scale of all heads, behind a "
                "convolution, so no head makes its own of what it reads.\n"
                "    Edit the stream that all of them read, resid_pre."
            )
        return self.projected(which, x, heads)

    def departs(self, of: Of, value: int | None = None) -> Departure:
        if of == "values":
            how = "mixes values with those just before them (convolved)"
            return Departure(how, "no single matrix says what a head moves", TAKE_MIXED)
        how = "mixes queries and keys with those just before them"
        return Departure(how, "a score is a sum of many bilinear forms", READ_SCORES)

    def begin(self, batch: int, like: Tensor) -> ConvolvedState:
        return ConvolvedState(*(like.new_zeros(batch, *shape[:-1], self.earlier, shape[-1]) for shape in self.shapes))

    def keeps(self, length: int) -> bool:
        return self.earlier == 0

    def state_numbers(self, length: int, source_length: int) -> int:
        return self.earlier * sum(self.widths)


class ShortConvolution(nn.Module):
    """Mixes each coordinate with itself at earlier positions; `taps` begin with one's own position.

    It takes what neighbouring heads share once, or at each of them.
    """

    def __init__(self, shape: tuple[int, ...], width: int, bias: bool = False) -> None:
        super().__init__()
        self.width = width
        self.taps = nn.Parameter(torch.zeros(width, *shape))
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None
        with torch.no_grad():
            self.taps[0] = 1.0

    def forward(
        self,
        x: Float[Tensor, "batch *made pos d"],
        positions: Int[Tensor, "b pos"],
        before: Float[Tensor, "batch *known earlier d"] | None = None,
    ) -> tuple[Float[Tensor, "batch *heads pos d"], Float[Tensor, "batch *heads earlier d"]]:
        """Return what is mixed, and the last rows as they were.

        Args:
            x: Queries, keys or values as projected.
            positions: Their positions, which start anew in each document.
            before: The rows before the first, if there are earlier positions.
        """
        n, earlier = x.shape[-2], self.width - 1
        if before is None:
            before = x.new_zeros(*x.shape[:-2], earlier, x.shape[-1])
        heads = max(x.shape[-3], before.shape[-3])
        x, before = repeated(x, heads, -3), repeated(before, heads, -3)
        known = torch.cat((before, x), -2)
        mixed = x * self._tap(0, x)
        for i in range(1, self.width):
            there = (positions >= i)[..., None]
            for _ in range(x.ndim - 3):
                there = there.unsqueeze(1)
            mixed = mixed + known[..., earlier - i : earlier - i + n, :] * self._tap(i, x) * there
        return mixed if self.bias is None else mixed + _at_heads(self.bias, x), known[..., n:, :]

    def _tap(self, i: int, like: Tensor) -> Tensor:
        return _at_heads(self.taps[i], like)


def _at_heads(rows: Float[Tensor, "*stream made d"], like: Tensor) -> Float[Tensor, "*stream head 1 d"]:
    return repeated(rows.to(like.dtype).unsqueeze(-2), like.shape[-3], -3)
