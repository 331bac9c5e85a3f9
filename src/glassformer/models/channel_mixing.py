"""Channel mixing of RWKV: an MLP of squared rectifiers that reads shifted, under a gate that reads shifted too.

    h_t = relu(s_k(x)_t W_K)^2,   out_t = sigmoid(s_r(x)_t W_R) * (h_t W_V)        s as in `attention.token_shift`

State: what was read last.   Cost: O(pos d_model d_mlp).
Source: Peng et al. 2023, "RWKV: Reinventing RNNs for the Transformer Era" (2305.13048), section 3.2.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention import Context, LinearMap, SubLayerConfig, SubLayerModule, TokenShift
from glassformer.attention.linear_map import parameters_of
from glassformer.attention.token_shift import last_read, shifted_by_one
from glassformer.trace import Site, Tape, declare, full_names, site


@dataclass(frozen=True)
class ChannelMixing(SubLayerConfig, kind="channel_mixing"):
    """Channel mixing.

    Args:
        d_mlp: Neurons; 4 d_model by default.
    """

    d_mlp: Count | None = None

    role: ClassVar[str] = "mlp"
    only_backwards: ClassVar[bool] = True

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "ChannelMixingLayer":
        return ChannelMixingLayer(self, d_model, layer, path)


class ChannelMixingState(NamedTuple):
    """What was read last; zeros before the first position."""

    read: Float[Tensor, "batch 1 d_model"]


class ChannelMixingLayer(SubLayerModule):
    SITES: ClassVar[dict[str, str]] = {
        "pre": "batch pos neuron",
        "hidden": "batch pos neuron",
        "gate": "batch pos d_model",
        "out": "batch pos d_model",
    }

    def __init__(self, config: ChannelMixing, d_model: int, layer: int, path: str) -> None:
        super().__init__()
        self.config, self.d_model, self.layer, self.path = config, d_model, layer, path
        self.d_mlp = config.d_mlp or 4 * d_model
        self.at = full_names(path, self.SITES)
        self.shift = TokenShift(d_model, ("hidden", "gate"))
        self.key = LinearMap(d_model, self.d_mlp, bias=False)
        self.gate = LinearMap(d_model, d_model, bias=False)
        self.value = LinearMap(self.d_mlp, d_model, bias=False)

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Tensor | None = None,
        state: ChannelMixingState | None = None,
        tape: Tape | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], ChannelMixingState | None]:
        at, before = self.at, shifted_by_one(x, context, None if state is None else state.read)
        pre = site(tape, at.pre, self.key(self.shift("hidden", x, before)))
        hidden = site(tape, at.hidden, F.relu(pre).square())
        gate = site(tape, at.gate, self.gate(self.shift("gate", x, before)).sigmoid())
        new = None if state is None else ChannelMixingState(last_read(x, context, state.read))
        return site(tape, at.out, gate * self.value(hidden)), new

    def begin(self, batch: int, like: Tensor) -> ChannelMixingState:
        return ChannelMixingState(like.new_zeros(batch, 1, self.d_model))

    def keeps(self, length: int) -> bool:
        return False

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        product = 2 * length * self.d_model * self.d_mlp
        return {"mlp in": product, "mlp gate": 2 * length * self.d_model**2, "mlp out": product}

    def state_bytes(self, length: int, source_length: int, dtype: torch.dtype) -> int:
        return self.d_model * dtype.itemsize

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield from parameters_of("mlp in", self.key)
        yield from parameters_of("mlp gate", self.gate)
        yield from parameters_of("mlp out", self.value)

    def sites(self) -> Iterator[Site]:
        sizes = {"neuron": self.d_mlp, "d_model": self.d_model}
        yield from declare(self.path, self.SITES, sizes, layer=self.layer)
