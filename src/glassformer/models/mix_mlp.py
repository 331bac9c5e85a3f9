"""Mix-FFN: a gated MLP whose neurons are mixed with those of places nearby, before the gate.

    u_t = silu(x_t W_in + b),   (a_t, g_t) = conv(u)_t,   out_t = (a_t * silu(g_t)) W_out

The convolution is depthwise and has a bias, see `attention.depthwise`: over a grid each neuron is mixed with itself at
the places around, which tells a model without positions where places are. A class token stands in no row: it is a grid
of one place, mixed with itself alone; the paper's images have none. Along a text it looks back only; that is not
in the paper, whose models are of images.

State, along a text: u at the last width - 1 positions. A grid is read whole, and has none.
Cost: O(pos d_mlp (d_model + width)), width^2 over a grid.
Source: Xie et al. 2024, "SANA: Efficient High-Resolution Image Synthesis with Linear Diffusion Transformers"
(2410.10629), section 2.2, with the maps and biases of the released code.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention import Context, Depthwise, LinearMap, SubLayerConfig, SubLayerModule
from glassformer.attention.depthwise import needs_whole_grid
from glassformer.attention.linear_map import parameters_of
from glassformer.config import UNSAID
from glassformer.trace import Site, Tape, declare, full_names, site


@dataclass(frozen=True)
class MixMlp(SubLayerConfig, kind="mix_mlp"):
    """A gated MLP with a depthwise convolution in it.

    Args:
        d_mlp: Neurons behind the gate, half of those in front of it; 2.5 d_model by default.
        width: Positions that one is mixed of, or rows and columns over a grid, an odd number.
        grid: Rows and columns of an input with two dimensions, read row by row; None for a text.
        bias: Bias on the first map.
        outside: Positions in front of the grid, a class token. None for none.
    """

    d_mlp: Count | None = None
    width: Count = 3
    grid: tuple[Count, Count] | None = None
    bias: bool = True
    outside: Count | None = field(default=None, metadata={UNSAID: True})

    role: ClassVar[str] = "mlp"

    @property
    def only_backwards(self) -> bool:  # type: ignore[override]
        return self.grid is None

    @property
    def reads_whole(self) -> tuple[int, int] | None:
        return self.grid

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "MixMlpLayer":
        return MixMlpLayer(self, d_model, layer, path)


class MixMlpState(NamedTuple):
    """What the convolution read at the last positions."""

    expanded: Float[Tensor, "batch earlier expanded"]


class MixMlpLayer(SubLayerModule):
    """Of both halves of what is expanded the second makes the gate, `pre`."""

    SITES: ClassVar[dict[str, str]] = {
        "expanded": "batch pos gate neuron",
        "linear": "batch pos neuron",
        "pre": "batch pos neuron",
        "hidden": "batch pos neuron",
        "out": "batch pos d_model",
    }

    def __init__(self, config: MixMlp, d_model: int, layer: int, path: str) -> None:
        super().__init__()
        self.config, self.d_model, self.layer, self.path = config, d_model, layer, path
        self.d_mlp = config.d_mlp or int(2.5 * d_model)
        self.at = full_names(path, self.SITES)
        self.input = LinearMap(d_model, 2 * self.d_mlp, bias=config.bias)
        self.convolution = Depthwise(2 * self.d_mlp, config.width, config.grid, config.outside)
        self.output = LinearMap(self.d_mlp, d_model, bias=False)

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Tensor | None = None,
        state: MixMlpState | None = None,
        tape: Tape | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], MixMlpState | None]:
        at = self.at
        expanded = site(tape, at.expanded, F.silu(self.input(x)).unflatten(-1, (2, -1))).flatten(-2)
        mixed, new = self._mixed(expanded, context, state)
        linear, gate = mixed.chunk(2, -1)
        hidden = site(tape, at.linear, linear) * F.silu(site(tape, at.pre, gate))
        return site(tape, at.out, self.output(site(tape, at.hidden, hidden))), new

    def _mixed(
        self, expanded: Float[Tensor, "batch pos expanded"], context: Context, state: MixMlpState | None
    ) -> tuple[Float[Tensor, "batch pos expanded"], MixMlpState | None]:
        if self.config.grid is None:
            mixed, last = self.convolution.along(expanded, context, None if state is None else state.expanded)
            return mixed, None if state is None else MixMlpState(last)
        if state is not None or context.looks_back:
            raise needs_whole_grid(f"layer {self.layer} (mix_mlp)", self.config.grid)
        return self.convolution.over(expanded, context), None

    def begin(self, batch: int, like: Tensor) -> MixMlpState:
        return MixMlpState(like.new_zeros(batch, self.config.width - 1, 2 * self.d_mlp))

    def keeps(self, length: int) -> bool:
        return self.config.width == 1

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        product = 2 * length * self.d_model * self.d_mlp
        return {"mlp in": 2 * product, "mlp convolution": self.convolution.flops(), "mlp out": product}

    def state_bytes(self, length: int, source_length: int, dtype: torch.dtype) -> int:
        return 0 if self.config.grid else (self.config.width - 1) * 2 * self.d_mlp * dtype.itemsize

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield from parameters_of("mlp in", self.input)
        yield "mlp convolution", self.convolution.taps.numel()
        yield "biases", self.convolution.bias.numel()
        yield from parameters_of("mlp out", self.output)

    def sites(self) -> Iterator[Site]:
        sizes = {"gate": 2, "neuron": self.d_mlp, "d_model": self.d_model}
        yield from declare(self.path, self.SITES, sizes, layer=self.layer)
