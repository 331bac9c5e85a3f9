"""From the stream to queries, keys and values, and back.

One `nn.Linear` holds W_Q, W_K and W_V below each other (rows: head-major, then stream, then d_head), so the usual
forward pass is one matmul and per-head matrices are views.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.attention.linear_map import LinearMap, linear
from glassformer.attention.mixer import Dims
from glassformer.attention.query_key_norm import HeadNorm, QueryKeyNorm
from glassformer.attention.smear import Smear
from glassformer.config import Config, require


class ProjectionConfig(Config, family=True):
    """How queries, keys and values are made."""


@dataclass(frozen=True)
class Separate(ProjectionConfig, kind="separate"):
    """One linear map each; with fewer key/value heads than query heads the latter share them in groups (GQA, MQA).

    Args:
        bias: Biases on all three.
        qk_norm: Norm of queries and keys; True for the root mean square of each head, with shared gains.
        clip: Every coordinate of queries, keys and values is cut off at this size, before any norm.
    """

    bias: bool = False
    qk_norm: QueryKeyNorm | bool = False
    clip: float | None = None

    def __post_init__(self) -> None:
        require(self.clip is None or self.clip > 0, f"projection: clip must be positive, found {self.clip}.")
        if self.qk_norm is True:
            # one config for one projection, however it was asked for
            object.__setattr__(self, "qk_norm", QueryKeyNorm())

    def build(self, dims: Dims, streams: int) -> "SeparateProjection":
        return SeparateProjection(self, dims, streams)


@dataclass(frozen=True)
class Smeared(Separate, kind="smeared"):
    """One linear map each, and every key mixed with the one before it (self-attention only): see `attention.smear`."""


class Projection(nn.Module):
    """From what queries, keys and values read to queries, keys and values."""

    def of_heads(
        self,
        which: Literal["query", "key", "value"],
        x: Float[Tensor, "copy batch pos d_model"],
        heads: Int[Tensor, " copy"],
    ) -> Float[Tensor, "batch *stream copy pos d_head"]:
        """Return what some heads make of a stream each: the usual projection of each, of which its head is kept."""
        i = ("query", "key", "value").index(which)
        folded = x.flatten(0, 1)
        every = self(folded, folded, folded)[i].unflatten(0, x.shape[:2])
        return torch.stack([every[c].select(-3, head) for c, head in enumerate(heads.tolist())], -3)


class SeparateProjection(Projection):
    def __init__(self, config: Separate, dims: Dims, streams: int) -> None:
        super().__init__()
        self.dims, self.streams = dims, streams
        self.widths = (
            dims.n_heads * streams * dims.d_head,
            dims.n_kv_heads * streams * dims.d_head,
            dims.n_kv_heads * dims.d_value,
        )
        self.qkv = LinearMap(dims.d_model, sum(self.widths), bias=config.bias)
        self.clip, norm = config.clip, config.qk_norm
        heads = (dims.n_heads, dims.n_kv_heads)
        self.norms = (
            nn.ModuleList([norm.build(n, dims.d_head, streams) for n in heads])
            if isinstance(norm, QueryKeyNorm)
            else None
        )
        self.smear = Smear(dims.n_kv_heads) if isinstance(config, Smeared) else None

    def forward(self, x_q: Tensor, x_k: Tensor, x_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if x_q is x_k is x_v:
            joined = self.qkv(x_q)
            q, k, v = (joined if self.clip is None else self.clipped(joined)).split(self.widths, -1)
        elif x_q is x_k:
            q, k = self._part(x_q, 0, 2).split(self.widths[:2], -1)
            v = self._part(x_v, 2, 3)
        elif x_k is x_v:
            q = self._part(x_q, 0, 1)
            k, v = self._part(x_k, 1, 3).split(self.widths[1:], -1)
        else:
            q, k, v = (self._part(x, i, i + 1) for i, x in enumerate((x_q, x_k, x_v)))
        q, k = self._heads(q, self.dims.n_heads), self._heads(k, self.dims.n_kv_heads)
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        return q, k, v.unflatten(-1, (self.dims.n_kv_heads, self.dims.d_value)).transpose(1, 2)

    def queries(self, x_q: Tensor) -> Tensor:
        """Return queries alone, for cross-attention whose keys and values are in the state."""
        q = self._heads(self._part(x_q, 0, 1), self.dims.n_heads)
        return q if self.norms is None else self.norms[0](q)

    def of_heads(
        self,
        which: Literal["query", "key", "value"],
        x: Float[Tensor, "copy batch pos d_model"],
        heads: Int[Tensor, " copy"],
    ) -> Float[Tensor, "batch *stream copy pos d_head"]:
        i = ("query", "key", "value").index(which)
        norm = None if which == "value" or self.norms is None else self.norms[i]
        if isinstance(norm, HeadNorm) and norm.couples_heads:
            return super().of_heads(which, x, heads)
        y = torch.einsum("cbpd,cde->bcpe", x, self.matrix(which)[heads])
        if self.qkv.bias is not None:
            n_heads = self.dims.n_heads if which == "query" else self.dims.n_kv_heads
            y = y + self.qkv.bias.split(self.widths)[i].unflatten(0, (n_heads, -1))[heads][:, None]
        y = self.clipped(y)
        if which == "value":
            return y
        if self.streams > 1:
            y = y.unflatten(-1, (self.streams, self.dims.d_head)).permute(0, 3, 1, 2, 4)
        return y if norm is None else norm(y, heads)

    def clipped(self, x: Tensor) -> Tensor:
        """Return projected vectors, cut off where the config says so."""
        return x if self.clip is None else x.clamp(-self.clip, self.clip)

    def matrix(self, which: Literal["query", "key", "value"]) -> Float[Tensor, "head d_model d_head"]:
        """Return per-head matrices as views on the parameter (row-vector convention); streams follow their head."""
        i = ("query", "key", "value").index(which)
        rows = self.qkv.weight.split(self.widths)[i]
        heads = self.dims.n_heads if i == 0 else self.dims.n_kv_heads
        return rows.unflatten(0, (heads, -1)).mT

    def _part(self, x: Tensor, first: int, last: int) -> Tensor:
        rows = slice(sum(self.widths[:first]), sum(self.widths[:last]))
        return self.clipped(linear(x, self.qkv.weight[rows], None if self.qkv.bias is None else self.qkv.bias[rows]))

    def _heads(self, x: Tensor, heads: int) -> Float[Tensor, "batch *stream head pos d_head"]:
        if self.streams == 1:
            return x.unflatten(-1, (heads, self.dims.d_head)).transpose(1, 2)
        # the two streams of a head lie side by side, so a group of query heads shares both of its key streams
        return x.unflatten(-1, (heads, self.streams, self.dims.d_head)).permute(0, 3, 2, 1, 4)


@dataclass(frozen=True)
class Merge(Config):
    """From mixed values to what attention writes: norm, gate, output matrix.

    Args:
        bias: Bias on the output.
        norm: RMS norm of z per head (`head`), or over all heads together (`all`).
        gain: Whether the norm has a learned gain.
        eps: Added to the mean square.
        factor: Constant factor on the normed z.
        gate: Multiply by sigmoid(x W_G) (`sigmoid`) or silu(x W_G) (`silu`), element by element.
    """

    bias: bool = False
    norm: Literal["head", "all"] | None = None
    gain: bool = True
    eps: float = 1e-5
    factor: float = 1.0
    gate: Literal["sigmoid", "silu"] | None = None

    def __post_init__(self) -> None:
        require(self.eps > 0, f"merge: eps must be positive, found {self.eps}.")

    def build(self, dims: Dims) -> "MergeHeads":
        return MergeHeads(self, dims)


class MergeHeads(nn.Module):
    def __init__(self, config: Merge, dims: Dims) -> None:
        super().__init__()
        self.config, self.dims = config, dims
        width = dims.n_heads * dims.d_value
        normed = {"head": dims.d_value, "all": width}.get(config.norm or "", 0)
        self.gain = nn.Parameter(torch.ones(normed)) if normed and config.gain else None
        self.gate = LinearMap(dims.d_model, width, bias=False) if config.gate else None
        self.output = LinearMap(width, dims.d_model, bias=config.bias)

    @property
    def linear(self) -> bool:
        """Whether what is written is linear in z with nothing frozen."""
        return self.config.norm is None

    def scale(self, z: Float[Tensor, "batch head pos d_value"]) -> Float[Tensor, "batch head pos"]:
        """Return the root mean square that z is divided by, per head (equal for all heads if normed together)."""
        square = z.float().square() if z.dtype != torch.float64 else z.square()
        mean = square.mean(-1) if self.config.norm == "head" else square.mean((1, 3))[:, None].expand(z.shape[:3])
        return (mean + self.config.eps).sqrt().to(z.dtype)

    def prepare(
        self, z: Tensor, x: Tensor, scale: Tensor | None, gate: Tensor | None = None
    ) -> Float[Tensor, "batch pos d_z"]:
        """Return normed, gated, concatenated heads: what the output matrix reads; `gate` stands for what x opens."""
        flat = self.normed(z, scale)
        return flat if self.gate is None else self.gated(flat, self.gate(x) if gate is None else gate)

    def normed(self, z: Tensor, scale: Tensor | None) -> Float[Tensor, "batch pos d_z"]:
        """Return normed, concatenated heads."""
        if scale is not None:
            z = z / scale[..., None]
            if self.gain is not None:
                z = z * (self.gain if self.config.norm == "head" else self.gain.unflatten(0, (-1, 1, z.shape[-1])))
            z = z * self.config.factor
        return z.transpose(1, 2).flatten(-2)

    def gated(self, flat: Tensor, gate: Tensor) -> Float[Tensor, "batch pos d_z"]:
        """Return concatenated heads times what x W_G opens."""
        return flat * (gate.sigmoid() if self.config.gate == "sigmoid" else F.silu(gate))

    def forward(self, z: Tensor, x: Tensor, scale: Tensor | None) -> Float[Tensor, "batch pos d_model"]:
        return self.output(self.prepare(z, x, scale))

    def per_head(self, z: Tensor, x: Tensor, scale: Tensor | None) -> Float[Tensor, "batch head pos d_model"]:
        """Return what each head writes; their sum plus the output bias is what attention writes."""
        return self.split(self.prepare(z, x, scale))

    def split(self, flat: Float[Tensor, "batch pos d_z"]) -> Float[Tensor, "batch head pos d_model"]:
        """Return what each head writes, from concatenated heads."""
        return flat.unflatten(-1, (self.dims.n_heads, self.dims.d_value)).transpose(1, 2) @ self.matrix()

    def matrix(self) -> Float[Tensor, "head d_value d_model"]:
        """Return W_O per head as a view on the parameter."""
        return self.output.weight.unflatten(1, (self.dims.n_heads, self.dims.d_value)).permute(1, 2, 0)
