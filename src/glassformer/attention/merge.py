"""From mixed values back to the stream: norm, gate, output matrix."""

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count, Positive
from glassformer.attention.linear_map import IdentityMap, LinearMap, NarrowMap
from glassformer.attention.mixer import Dims
from glassformer.config import UNSAID, Config, require

GATES = {"sigmoid": torch.sigmoid, "silu": F.silu, "linear": lambda opened: opened}


@dataclass(frozen=True)
class Merge(Config):
    """From mixed values to what attention writes: norm, gate, output matrix.

    Args:
        bias: Bias on the output.
        norm: RMS norm of z per head (`head`), or over all heads together (`all`).
        groups: Groups of neighbouring heads that `all` norms each by itself; None for one of all heads.
        gain: Whether the norm has a learned gain.
        eps: Added to the mean square.
        factor: Constant factor on the normed z.
        gate: Multiply by sigmoid(x W_G) (`sigmoid`), silu(x W_G) (`silu`) or x W_G (`linear`), element by element.
        gate_bias: Bias on x W_G.
        gate_rank: Rank of W_G, which is then stored as two matrices; None for a whole one.
        norm_before_gate: Whether what is normed is gated, or what is gated is normed.
        output: Whether there is an output matrix; without one, heads side by side are what is written.
    """

    bias: bool = False
    norm: Literal["head", "all"] | None = None
    gain: bool = True
    eps: Positive = 1e-5
    factor: float = 1.0
    gate: Literal["sigmoid", "silu", "linear"] | None = None
    groups: Count | None = field(default=None, metadata={UNSAID: True})
    gate_bias: bool = field(default=False, metadata={UNSAID: True})
    gate_rank: Count | None = field(default=None, metadata={UNSAID: True})
    norm_before_gate: bool = field(default=True, metadata={UNSAID: True})
    output: bool = field(default=True, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        require(
            self.groups is None or self.norm == "all",
            f'merge: groups={self.groups} says what norm="all" has means over; found norm={self.norm!r}.',
        )
        require(
            self.norm_before_gate or None not in (self.norm, self.gate),
            f"merge: norm_before_gate says which of both comes first; found norm={self.norm!r}, gate={self.gate!r}.",
        )
        require(self.gate is not None or not self.gate_bias, "merge: gate_bias without a gate; say which, or neither.")
        require(self.gate is not None or self.gate_rank is None, "merge: gate_rank is of a gate; give one.")
        require(
            self.gate_rank is None or not self.gate_bias,
            "merge: a gate of two matrices (gate_rank) has no gate_bias; give one of both.",
        )

        require(
            self.output or not self.bias, "merge: bias is the output matrix's, and there is none; give output=True."
        )

    def free(self) -> "Merge":
        """Return the same with an output matrix and a bias: for whatever heads write."""
        return self.replace(bias=True, output=True)

    def build(self, dims: Dims) -> "MergeHeads":
        return MergeHeads(self, dims)


class MergeHeads(nn.Module):
    def __init__(self, config: Merge, dims: Dims) -> None:
        super().__init__()
        require(
            dims.n_heads % (config.groups or 1) == 0,
            f"merge: {dims.n_heads} heads do not divide into groups={config.groups}.",
        )
        self.config, self.dims = config, dims
        width = dims.n_heads * dims.d_z
        require(
            config.output or width == dims.d_model,
            f"merge: without an output matrix, heads side by side are as wide as the stream; found n_heads="
            f"{dims.n_heads} of {dims.d_z} numbers each, d_model={dims.d_model}. Give d_value such that it comes out "
            "even.",
        )
        normed = {"head": dims.d_z, "all": width}.get(config.norm or "", 0)
        self.gain = nn.Parameter(torch.ones(normed)) if normed and config.gain else None
        self.gate = _gate(config, dims.d_model, width)
        self.output = LinearMap(width, dims.d_model, bias=config.bias) if config.output else IdentityMap(width)

    @property
    def linear(self) -> bool:
        """Whether what is written is linear in z with nothing frozen."""
        return self.config.norm is None

    @property
    def gates_first(self) -> bool:
        """Whether the norm is of what has been gated."""
        return not self.config.norm_before_gate

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

    def scale(
        self, z: Float[Tensor, "batch head pos d_z"], gate: Float[Tensor, "batch pos d_flat"] | None = None
    ) -> Float[Tensor, "batch head pos"]:
        """Return what mixed values are divided by, per head; `gate` is what x opens, if there is a gate."""
        if self.gates_first:
            assert gate is not None, "what is gated first has a gate"
            z = z * self.opened_by_head(gate)
        return self.size(z)

    def size(self, z: Float[Tensor, "batch head pos d_z"]) -> Float[Tensor, "batch head pos"]:
        """Return the root mean square of what is normed, per head (equal for all heads that are normed together)."""
        square = z.float().square() if z.dtype != torch.float64 else z.square()
        mean = square.mean(-1)
        if self.config.norm == "all":
            groups = mean.unflatten(1, (self.config.groups or 1, -1))
            mean = groups.mean(2, keepdim=True).expand_as(groups).flatten(1, 2)
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

    def openings(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch head pos d_z"]:
        """Return what the gate multiplies mixed values by."""
        assert self.gate is not None, "asked for where there is one"
        return self.opened_by_head(self.gate(x))

    def opened_by_head(self, gate: Tensor) -> Float[Tensor, "batch head pos d_z"]:
        """Return the same by head."""
        return self.opened(gate).unflatten(-1, (self.dims.n_heads, self.dims.d_z)).transpose(1, 2)

    def forward(self, z: Tensor, x: Tensor, scale: Tensor | None) -> Float[Tensor, "batch pos d_model"]:
        return self.output(self.prepare(z, x, scale))

    def per_head(self, z: Tensor, x: Tensor, scale: Tensor | None) -> Float[Tensor, "batch head pos d_model"]:
        """Return what each head writes; their sum plus the output bias is what attention writes."""
        return self.split(self.prepare(z, x, scale))

    def split(self, flat: Float[Tensor, "batch pos d_flat"]) -> Float[Tensor, "batch head pos d_model"]:
        """Return what each head writes, from concatenated heads."""
        return flat.unflatten(-1, (self.dims.n_heads, self.dims.d_z)).transpose(1, 2) @ self.matrix()

    def summed(self, written: Float[Tensor, "batch head pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """Return what attention writes, of what each head writes."""
        out = written.sum(-3)
        return out if self.output.bias is None else out + self.output.bias

    def matrix(self) -> Float[Tensor, "head d_z d_model"]:
        """Return W_O per head as a view on the parameter."""
        return self.output.weight.unflatten(1, (self.dims.n_heads, self.dims.d_z)).permute(1, 2, 0)


def _gate(config: Merge, d_model: int, width: int) -> LinearMap | NarrowMap | None:
    if config.gate is None:
        return None
    rank = config.gate_rank
    return LinearMap(d_model, width, bias=config.gate_bias) if rank is None else NarrowMap(d_model, rank, width)
