"""Latent keys and values: those of all heads are made of one short vector per position, and only that is kept.

    c = x W_down,   k = c W_key,   v = c W_value,   q = x W_query

Keys and values are made of the latents anew at every step, so the mechanism keeps none of them, and positions that turn
keys have to turn them when they are read. To those who ask for matrices the key's is W_down W_key and the value's
W_down W_value, each of rank at most that of the latents.

State: the latents of earlier positions.
Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2; here without the norm of the latents, the short vector for
queries and the rotary key that all heads share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.context import Context
from glassformer.attention.linear_map import LinearMap, parameters_of
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.positions import Positions
from glassformer.attention.projections.projection import Own, Projected, Projection, ProjectionConfig
from glassformer.attention.projections.separate import SeparateProjection, heads_of, with_own
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable


@dataclass(frozen=True)
class Latent(ProjectionConfig, kind="latent"):
    """Keys and values of all heads made of one vector per position; for self-attention.

    Args:
        rank: Numbers per latent, which are what is kept of each position.
    """

    rank: int

    crosses: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"latent: rank must be at least 1, found {self.rank}.")

    def build(self, dims: Dims, traits: Traits, cross: bool) -> "LatentProjection":
        return LatentProjection(self, dims, traits)


class LatentState(NamedTuple):
    """The latents of earlier positions."""

    latent: Float[Tensor, "batch key rank"]


class JoinedMatrices(NamedTuple):
    """W_query, W_down W_key and W_down W_value below each other, as `LinearMap` stores separate ones."""

    weight: Float[Tensor, "rows d_model"]
    bias: None = None

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]


class LatentProjection(SeparateProjection):
    stores_keys = True

    def __init__(self, config: Latent, dims: Dims, traits: Traits) -> None:
        Projection.__init__(self)
        self.set_sizes(dims, traits)
        self.rank, self.clip, self.norms = config.rank, None, None
        query, key, value = self.widths
        self.query = LinearMap(dims.d_model, query, bias=False)
        self.down = LinearMap(dims.d_model, config.rank, bias=False)
        self.up = LinearMap(config.rank, key + value, bias=False)

    @property
    def qkv(self) -> JoinedMatrices:
        """What the two steps come to, as one matrix: for those who ask what heads read."""
        return JoinedMatrices(torch.cat((self.query.weight, self.up.weight @ self.down.weight)))

    def forward(
        self,
        x_q: Tensor,
        x_k: Tensor,
        x_v: Tensor,
        positions: Positions,
        context: Context,
        kept: LatentState | None = None,
        own: Own | None = None,
    ) -> tuple[Projected, LatentState | None]:
        if kept is None:
            q, k, v = with_own(own, *self.heads(x_q, x_k, x_v))
            return (*positions.written(q, k, context), v), None
        if own is not None:
            raise AnalysisUnavailable(
                "what single heads read: this layer keeps latents that all heads share, so what one head reads in this "
                "step cannot be carried to the next.\n    Run the whole text in one pass, without a state."
            )
        latent = torch.cat((kept.latent, self.down(x_k)), 1)
        q = heads_of(self.query(x_q), self.dims.n_heads, self.streams)
        # keys are left as they are: they are turned when they are read
        q = positions.rotate(q, None, context)[0]
        return (q, *self.expanded(latent)), LatentState(latent)

    def heads(self, x_q: Tensor, x_k: Tensor, x_v: Tensor) -> Projected:
        q = heads_of(self.query(x_q), self.dims.n_heads, self.streams)
        return q, *self.expanded(self.down(x_k))

    def expanded(self, latent: Float[Tensor, "batch key rank"]) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all heads."""
        k, v = self.up(latent).split(self.widths[1:], -1)
        kv_heads = self.dims.n_kv_heads
        return heads_of(k, kv_heads, self.streams), heads_of(v, kv_heads, self.value_streams)

    def begin(self, batch: int, like: Tensor) -> LatentState:
        return LatentState(like.new_zeros(batch, 0, self.rank))

    def cut(self, kept: LatentState, length: int) -> LatentState:
        return LatentState(kept.latent[:, :length])

    def state_numbers(self, length: int, source_length: int) -> int:
        return length * self.rank

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        yield from parameters_of("query", self.query)
        yield from parameters_of("latent", self.down)
        _, key, value = self.widths
        yield from (("key", key * self.rank), ("value", value * self.rank))

    def flops(self, n_queries: int, n_keys: int) -> dict[str, int]:
        d, (query, key, value) = self.dims.d_model, self.widths
        found = {"query": 2 * n_queries * d * query, "latent": 2 * n_keys * d * self.rank}
        return found | {"key": 2 * n_keys * self.rank * key, "value": 2 * n_keys * self.rank * value}
