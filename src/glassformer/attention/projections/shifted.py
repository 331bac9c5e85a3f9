"""Shifted reading: queries, keys and values are made of a position mixed with the one before it, channel by channel.

    q_t = s_q(x)_t W_Q,   k_t = s_k(x)_t W_K,   v_t = s_v(x)_t W_V          s as in `attention.token_shift`

What else the layer reads is mixed alike: what a mechanism reads of its input, and what opens the output gate if the
config says so.

State: what was read last.
Source: Peng et al. 2023 (2305.13048) and 2024 (2404.05892), the layers of RWKV.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.positions import Positions
from glassformer.attention.projections.projection import (
    READ_SCORES,
    TAKE_MIXED,
    Departure,
    Of,
    Projected,
    ProjectionInputs,
    Reader,
)
from glassformer.attention.projections.separate import Separate, SeparateProjection
from glassformer.attention.token_shift import TokenShift, last_read, shifted_by_one
from glassformer.config import require


@dataclass(frozen=True)
class Shifted(Separate, kind="shifted"):
    """One linear map each, of a position mixed with the one before it; for self-attention.

    Args:
        rank: Width of the maps that make shares of what is read; None for shares that are constants.
        gate: What opens the output gate is mixed too; without, the gate reads its own position.
        centred: Values less the mean of their head's numbers: a root mean square behind is then a norm that centres.
    """

    rank: Count | None = None
    gate: bool = False
    centred: bool = False

    crosses: ClassVar[bool] = False

    @property
    def shifts_gate(self) -> bool:
        return self.gate

    def build(self, dims: Dims, traits: Traits, cross: bool) -> "ShiftedProjection":
        return ShiftedProjection(self, dims, traits)


class ShiftedState(NamedTuple):
    """What was read last; zeros before the first position."""

    read: Float[Tensor, "batch 1 d_model"]


class ShiftedProjection(SeparateProjection):
    shifts = True

    def __init__(self, config: Shifted, dims: Dims, traits: Traits) -> None:
        super().__init__(config, dims, traits)
        more = ["mix"] * traits.reads_input + ["gate"] * config.gate
        self.shift = TokenShift(dims.d_model, ("query", "key", "value", *more), config.rank)
        self.centred, self.values_by_position = config.centred, False

    def check(self, positions: Positions) -> None:
        require(
            type(positions).inputs is Positions.inputs,
            f'attention: projection "shifted" mixes what is read at two positions, and positions '
            f'"{positions.config.kind}" are added to that; use others.',
        )

    def forward(
        self, inputs: ProjectionInputs, kept: ShiftedState | None = None
    ) -> tuple[Projected, ShiftedState | None]:
        x, context, last = inputs.value, inputs.context, None if kept is None else kept.read
        before = shifted_by_one(x, context, last)
        made = self.heads(*(self.shift(reader, x, before) for reader in ("query", "key", "value")))
        made, _ = self.before_rotation(made, inputs)
        new = None if last is None else ShiftedState(last_read(x, context, last))
        return self.placed(made, inputs), new

    def shifted(
        self, reader: Reader, x: Float[Tensor, "*copy batch pos d_model"], context: Context, kept: Any = None
    ) -> Float[Tensor, "*copy batch pos d_model"]:
        if reader not in self.shift.readers:
            return x
        return self.shift(reader, x, shifted_by_one(x, context, None if kept is None else kept.read))

    def before_rotation(self, made: Projected, inputs: ProjectionInputs, kept: None = None) -> tuple[Projected, None]:
        (q, k, v), _ = super().before_rotation(made, inputs)
        return (q, k, v - v.mean(-1, keepdim=True) if self.centred else v), None

    def departs(self, of: Of, value: int | None = None) -> Departure:
        if of == "values":
            how = "mixes what values are made of with what was read just before (shifted)"
            return Departure(how, "no single matrix says what a head moves", TAKE_MIXED)
        how = "mixes what queries and keys are made of with what was read just before"
        return Departure(how, "a score is a sum of many bilinear forms", READ_SCORES)

    def begin(self, batch: int, like: Tensor) -> ShiftedState:
        return ShiftedState(like.new_zeros(batch, 1, self.dims.d_model))

    def keeps(self, length: int) -> bool:
        return False

    def state_numbers(self, length: int, source_length: int) -> int:
        return self.dims.d_model

    def flops(self, n_queries: int, n_keys: int) -> dict[str, int]:
        return super().flops(n_queries, n_keys) | {"mechanism": self.shift.flops(n_queries)}
