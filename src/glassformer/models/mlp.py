"""MLPs: the same small network at every position."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, Rate
from glassformer.attention import ByPosition, LearnedScale, LinearMap, SubLayerConfig
from glassformer.attention.linear_map import ScaledMap, parameters_of
from glassformer.attention.sub_layer import Parallel
from glassformer.config import UNSAID, require
from glassformer.models.evaluation import drops
from glassformer.trace import Site, Tape, declare, full_names, site

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda u: F.gelu(u, approximate="tanh"),
    "gelu_sigmoid": lambda u: u * torch.sigmoid(1.702 * u),
    "silu": F.silu,
    "relu_squared": lambda u: F.relu(u).square(),
    "tanh": torch.tanh,
    "none": lambda u: u,
}


@dataclass(frozen=True)
class Mlp(SubLayerConfig, kind="mlp"):
    """A position-wise network: plain `act(x W_in) W_out`, or gated `(act(x W_gate) * x W_in) W_out`.

    Args:
        d_mlp: Neurons; 4 d_model by default.
        activation: Non-linearity; gated silu is SwiGLU, gated gelu is GEGLU, gated `none` is bilinear.
        gated: Multiply by a second, linear branch.
        bias: Biases on all matrices.
        dropout: Rate on the neurons, in training: behind the site, so `hidden` is what was there before.
        scale: Learned factors of the neurons, on what is read; without biases. What enters the non-linearity is
            multiplied by sqrt(d_model) besides: a product of two vectors of length 1 is that much smaller than one of
            two whose coordinates are of size 1.

    Source: Vaswani et al. 2017, section 3.3; Shazeer 2020, "GLU Variants"; Loshchilov et al. 2024, "nGPT", section 2.4,
    for factors.
    """

    d_mlp: Count | None = None
    activation: Literal["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "silu", "relu_squared", "tanh", "none"] = "gelu"
    gated: bool = False
    bias: bool = True
    dropout: Rate = 0.0
    scale: LearnedScale | None = field(default=None, metadata={UNSAID: True})

    role: ClassVar[str] = "mlp"

    def __post_init__(self) -> None:
        require(not self.bias or self.scale is None, "mlp: factors (scale) are of products alone; set bias=False.")

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "MlpLayer":
        return MlpLayer(self, d_model, layer, path)


class MlpLayer(ByPosition):
    SITES: ClassVar[dict[str, str]] = {
        "pre": "batch pos neuron",
        "linear": "batch pos neuron",
        "hidden": "batch pos neuron",
        "out": "batch pos d_model",
    }

    def __init__(self, config: Mlp, d_model: int, layer: int, path: str) -> None:
        super().__init__()
        self.config, self.d_model, self.layer, self.path = config, d_model, layer, path
        self.d_mlp = config.d_mlp or 4 * d_model
        self.at = full_names(path, self.SITES)
        self.gate = self._map(bent=True) if config.gated else None
        self.input = self._map(bent=not config.gated)
        self.output = LinearMap(self.d_mlp, d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def _map(self, *, bent: bool) -> LinearMap | ScaledMap:
        """Return a matrix that reads the stream: of what enters the non-linearity, or of the linear branch."""
        if self.config.scale is None:
            return LinearMap(self.d_model, self.d_mlp, bias=self.config.bias)
        return ScaledMap(self.d_model, self.d_mlp, self.config.scale, math.sqrt(self.d_model) if bent else 1.0)

    def write(
        self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        at = self.at
        if self.gate is None:
            hidden = self.activation(site(tape, at.pre, self.input(x)))
        else:
            gate = self.activation(site(tape, at.pre, self.gate(x)))
            hidden = gate * site(tape, at.linear, self.input(x))
        hidden = site(tape, at.hidden, hidden)
        if self.training and self.config.dropout > 0 and drops(self):
            hidden = F.dropout(hidden, self.config.dropout)
        return site(tape, at.out, self.output(hidden))

    def take_part(self, part: int, parts: int) -> Mapping[str, Parallel]:
        require(
            self.config.scale is None,
            f'"{self.path}" multiplies its neurons by learned factors (scale), which ranks cannot share. Let them '
            "share rows (dp).",
        )
        require(
            self.d_mlp % parts == 0,
            f'"{self.path}" has d_mlp={self.d_mlp} neurons, and {parts} ranks take as many each. Change one of both.',
        )
        gate: dict[str, Parallel] = {} if self.gate is None else {"gate": "column"}
        return {"input": "column", "output": "row", **gate}

    def sites(self) -> Iterator[Site]:
        axes = {name: words for name, words in self.SITES.items() if self.gate is not None or name != "linear"}
        yield from declare(self.path, axes, {"neuron": self.d_mlp, "d_model": self.d_model}, layer=self.layer)

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        product = 2 * length * self.d_model * self.d_mlp
        return {"mlp in": product, "mlp gate": product * self.config.gated, "mlp out": product}

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield from parameters_of("mlp in", self.input)
        yield from parameters_of("mlp gate", self.gate)
        yield from parameters_of("mlp out", self.output)
