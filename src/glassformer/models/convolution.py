"""A causal convolution along positions: each reads itself and a few before it, evenly spaced.

    h_t = activation(sum over i < width of  x_{t - i dilation} W_i + b),   out_t = h_t W_out

What lies before the first position of a text, of each packed document and of each left-padded row counts as zero.

State: the last (width - 1) dilation inputs.   Cost: O(width pos d_model d_hidden).
Source: van den Oord et al. 2016, "WaveNet", section 2.1; Bai et al. 2018, "An Empirical Evaluation of Generic
Convolutional and Recurrent Networks for Sequence Modeling", section 3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention import Context, LinearMap, SubLayerConfig, SubLayerModule
from glassformer.attention.linear_map import parameters_of
from glassformer.models.mlp import ACTIVATIONS
from glassformer.trace import Site, Tape, declare, full_names, site


@dataclass(frozen=True)
class Convolution(SubLayerConfig, kind="convolution"):
    """A causal dilated convolution, and a map from what it finds to the stream.

    Args:
        width: Positions that one position reads, itself among them.
        dilation: Distance from one of them to the next; doubled from block to block, a few blocks see far.
        d_hidden: Channels; d_model by default.
        activation: Non-linearity.
        bias: Biases on both maps.
    """

    width: Count = 3
    dilation: Count = 1
    d_hidden: Count | None = None
    activation: Literal["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "silu", "relu_squared", "tanh"] = "gelu"
    bias: bool = True

    role: ClassVar[str] = "conv"
    only_backwards: ClassVar[bool] = True

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "ConvolutionLayer":
        return ConvolutionLayer(self, d_model, layer, path)


class ConvolutionState(NamedTuple):
    """What was read at the last positions."""

    read: Float[Tensor, "batch pos d_model"]


class ConvolutionLayer(SubLayerModule):
    """One matrix product over the positions that each position reads, laid side by side."""

    SITES: ClassVar[dict[str, str]] = {
        "pre": "batch pos neuron",
        "hidden": "batch pos neuron",
        "out": "batch pos d_model",
    }

    def __init__(self, config: Convolution, d_model: int, layer: int, path: str) -> None:
        super().__init__()
        self.config, self.d_model, self.layer, self.path = config, d_model, layer, path
        self.d_hidden = config.d_hidden or d_model
        self.span = (config.width - 1) * config.dilation
        self.at = full_names(path, self.SITES)
        # columns: the position furthest back first
        self.input = LinearMap(config.width * d_model, self.d_hidden, bias=config.bias)
        self.output = LinearMap(self.d_hidden, d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Tensor | None = None,
        state: ConvolutionState | None = None,
        tape: Tape | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], ConvolutionState | None]:
        at = self.at
        before = self.begin(len(x), x) if state is None else state
        known = torch.cat((before.read, x), 1)
        hidden = self.activation(site(tape, at.pre, self.input(self.windows(known, context))))
        new = None if state is None else ConvolutionState(known[:, x.shape[1] :])
        return site(tape, at.out, self.output(site(tape, at.hidden, hidden))), new

    def windows(
        self, known: Float[Tensor, "batch all d_model"], context: Context
    ) -> Float[Tensor, "batch pos d_window"]:
        """Return what each new position reads, side by side, zero where its text had not begun."""
        n, dilation = known.shape[1] - self.span, self.config.dilation
        found = [known[:, i * dilation : i * dilation + n] for i in range(self.config.width)]
        if context.first is None:
            reach = [self.span - i * dilation for i in range(self.config.width)]
            found = [x * (context.positions >= far)[..., None] for x, far in zip(found, reach)]
        return torch.cat(found, -1)

    def begin(self, batch: int, like: Tensor) -> ConvolutionState:
        return ConvolutionState(like.new_zeros(batch, self.span, self.d_model))

    def keeps(self, length: int) -> bool:
        return self.span == 0

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        product = 2 * length * self.d_hidden * self.d_model
        return {"convolution in": self.config.width * product, "convolution out": product}

    def state_bytes(self, length: int, source_length: int, dtype: torch.dtype) -> int:
        return self.span * self.d_model * dtype.itemsize

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield from parameters_of("convolution in", self.input)
        yield from parameters_of("convolution out", self.output)

    def sites(self) -> Iterator[Site]:
        sizes = {"neuron": self.d_hidden, "d_model": self.d_model}
        yield from declare(self.path, self.SITES, sizes, layer=self.layer)
