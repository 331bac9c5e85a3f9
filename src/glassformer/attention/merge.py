"""From mixed values back to the stream: norm, gate, output matrix."""

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count, Positive
from glassformer.attention.linear_map import LinearMap, NarrowMap
from glassformer.attention.mixer import Dims
from glassformer.config import UNSAID, Config, require

GATES = {"sigmoid": torch.sigmoid, "silu": F.silu, "linear": lambda opened: opened}


@dataclass(frozen=True)
class Merge(Config):
    """From mixed values to what attention writes: norm, gate, output matrix.

    Args:
        bias: Bias on the output.
        norm: RMS norm of z per head (`head`), or over all heads together (`all`).
        gain: Whether the norm has a learned gain.
        eps: Added to the mean square.
        factor: Constant factor on the normed z.
        gate: Multiply by sigmoid(x W_G) (`sigmoid`), silu(x W_G) (`silu`) or x W_G (`linear`), element by element.
        gate_rank: Rank of W_G, which is then stored as two matrices; None for a whole one.
    """

    bias: bool = False
    norm: Literal["head", "all"] | None = None
    gain: bool = True
    eps: Positive = 1e-5
    factor: float = 1.0
    gate: Literal["sigmoid", "silu", "linear"] | None = None
    gate_rank: Count | None = field(default=None, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        require(self.gate is not None or self.gate_rank is None, "merge: gate_rank is of a gate; give one.")

    def build(self, dims: Dims) -> "MergeHeads":
        return MergeHeads(self, dims)


class MergeHeads(nn.Module):
    def __init__(self, config: Merge, dims: Dims) -> None:
        super().__init__()
        self.config, self.dims = config, dims
        width = dims.n_heads * dims.d_z
        normed = {"head": dims.d_z, "all": width}.get(config.norm or "", 0)
        self.gain = nn.Parameter(torch.ones(normed)) if normed and config.gain else None
        self.gate = _gate(config, dims.d_model, width)
        self.output = LinearMap(width, dims.d_model, bias=config.bias)

    @property
    def linear(self) -> bool:
        """Whether what is written is linear in z with nothing frozen."""
        return self.config.norm is None

    @property
    def multiplies(self) -> bool:
        """Whether anything multiplies mixed values on their way to the output matrix: a norm, a gate."""
        return not self.linear or self.gate is not None

    def multiplier(
        self, x: Float[Tensor, "batch pos d_model"], scale: Float[Tensor, "batch head pos"] | None
    ) -> Float[Tensor, "batch head pos d_z"]:
        """Return what each number of the mixed values is multiplied by at each position: gain over scale, and gate.

        With this held, what a head writes is linear in what it mixes: `(z * multiplier) @ matrix()`.

        Args:
            x: What the gate reads; without one, anything with its positions.
            scale: What the norm divides by, or None without a norm; ones leave it out.
        """
        ones = x.new_ones(x.shape[0], self.dims.n_heads, x.shape[1], self.dims.d_z)
        return self.prepare(ones, x, scale).unflatten(-1, (self.dims.n_heads, self.dims.d_z)).transpose(1, 2)

    def scale(self, z: Float[Tensor, "batch head pos d_z"]) -> Float[Tensor, "batch head pos"]:
        """Return the root mean square that z is divided by, per head (equal for all heads if normed together)."""
        square = z.float().square() if z.dtype != torch.float64 else z.square()
        mean = square.mean(-1) if self.config.norm == "head" else square.mean((1, 3))[:, None].expand(z.shape[:3])
        return (mean + self.config.eps).sqrt().to(z.dtype)

    def prepare(
        self, z: Tensor, x: Tensor, scale: Tensor | None, gate: Tensor | None = None
    ) -> Float[Tensor, "batch pos d_flat"]:
        """Return normed, gated, concatenated heads: what the output matrix reads; `gate` stands for what x opens."""
        flat = self.normed(z, scale)
        return flat if self.gate is None else self.gated(flat, self.gate(x) if gate is None else gate)

    def normed(self, z: Tensor, scale: Tensor | None) -> Float[Tensor, "batch pos d_flat"]:
        """Return normed, concatenated heads."""
        if scale is not None:
            z = z / scale[..., None]
            if self.gain is not None:
                z = z * (self.gain if self.config.norm == "head" else self.gain.unflatten(0, (-1, 1, z.shape[-1])))
            z = z * self.config.factor
        return z.transpose(1, 2).flatten(-2)

    def gated(self, flat: Tensor, gate: Tensor) -> Float[Tensor, "batch pos d_flat"]:
        """Return concatenated heads times what x W_G opens."""
        return flat * self.opened(gate)

    def opened(self, gate: Tensor) -> Tensor:
        """Return what mixed values are multiplied by, of x W_G."""
        return GATES[self.config.gate or "linear"](gate)

    def forward(self, z: Tensor, x: Tensor, scale: Tensor | None) -> Float[Tensor, "batch pos d_model"]:
        return self.output(self.prepare(z, x, scale))

    def per_head(self, z: Tensor, x: Tensor, scale: Tensor | None) -> Float[Tensor, "batch head pos d_model"]:
        """Return what each head writes; their sum plus the output bias is what attention writes."""
        return self.split(self.prepare(z, x, scale))

    def split(self, flat: Float[Tensor, "batch pos d_flat"]) -> Float[Tensor, "batch head pos d_model"]:
        """Return what each head writes, from concatenated heads."""
        return flat.unflatten(-1, (self.dims.n_heads, self.dims.d_z)).transpose(1, 2) @ self.matrix()

    def matrix(self) -> Float[Tensor, "head d_z d_model"]:
        """Return W_O per head as a view on the parameter."""
        return self.output.weight.unflatten(1, (self.dims.n_heads, self.dims.d_z)).permute(1, 2, 0)


def _gate(config: Merge, d_model: int, width: int) -> LinearMap | NarrowMap | None:
    if config.gate is None:
        return None
    rank = config.gate_rank
    return LinearMap(d_model, width, bias=False) if rank is None else NarrowMap(d_model, rank, width)
