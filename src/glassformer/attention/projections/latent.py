"""Latent attention: keys and values of all heads are made of one short vector per position, and only that is kept.

    c = norm(x W_down)                          the latent, r numbers
    k = [c W_key | R x W_rotary]                per key head; the second part turns, and is the same for all of them
    v = c W_value
    q = [q_C | R q_R],   [q_C | q_R] = norm(x W_short) W_query   or   x W_query

    absorbed:  score = (q_C W_key') . c + R q_R . R k_R,    z = (pattern c) W_value

R is what positions turn by; the norm, the short vector of queries and the rotary key may each be left out. Without a
rotary key, positions that turn keys have to turn them when they are read, since keys are made anew at every step. With
one they leave the rest alone, so that W_key can go over to the queries: a step over many kept positions then reads what
is kept as the one key and the one value of all heads (`absorbed`), and no key or value is made. The plain route defines
it, and is taken where keys or values are looked at. Scores are scaled by 1 / sqrt(d_head), the width of both parts.

To those who ask for matrices, the key's is W_down W_key beside W_rotary and the value's W_down W_value, each of rank at
most r but for the rotary part; gains are in them, and behind a norm they hold up to its scale (`scales`).

State: of each earlier position its latent, behind the norm, and its rotary key, turned: r + d_R numbers, however many
heads there are. With several key streams each has a rotary key of its own.
Cost: plain, r (d_C + d_value) multiply-adds for each key of each key head, then as any attention; absorbed, 2 (r + d_R)
for each query, key and head instead of d_head + d_value.
Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.
Differs from their code: key heads may be fewer than query heads, and what is mixed of the rotary key by the absorbed
route is left out behind mixing, since kernels want values as wide as keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.arguments import Count, Natural, Positive
from glassformer.attention.kernels.growing import append
from glassformer.attention.linear_map import LinearMap, parameters_of
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.positions import Positions
from glassformer.attention.projections.projection import (
    TAKE_VALUES,
    Departure,
    HeldValues,
    Of,
    Projected,
    Projection,
    ProjectionConfig,
    ProjectionInputs,
    Which,
)
from glassformer.attention.projections.separate import SeparateProjection, heads_of
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable

HOLD_SCALES = (
    "Give weights with that scale as it is on a text in place of the model: "
    "analysis.frozen.query_key_scales(run).hold(model). Or read scores: gf.run(…, read=['blocks.*.attn.scores'])."
)


@dataclass(frozen=True)
class Latent(ProjectionConfig, kind="latent"):
    """Keys and values of all heads made of one vector per position; for self-attention.

    Args:
        rank: Numbers per latent, r above.
        rotary: Numbers of the key that all heads share and positions turn, d_R above: the last ones of d_head, of which
            d_C = d_head - rotary are left to the latent. Without, all of a key is made of the latent.
        query_rank: Numbers of the short vector that queries are made of; None makes them of the stream.
        norm: Divide latents, and the short vectors of queries, by their root mean square, with learned gains.
        eps: Added to the mean square.
    """

    rank: Count
    rotary: Natural = 0
    query_rank: Count | None = None
    norm: bool = False
    eps: Positive = 1e-6

    crosses: ClassVar[bool] = False

    @property
    def turned(self) -> int | None:
        return self.rotary or None

    def build(self, dims: Dims, traits: Traits, cross: bool) -> "LatentProjection":
        return LatentProjection(self, dims, traits)


class LatentState(NamedTuple):
    """Of each earlier position its latent and, behind that, the rotary key of all heads, turned unless `at_read`."""

    rows: Float[Tensor, "batch key width"]


class JoinedMatrices(NamedTuple):
    """What queries, keys and values come to of what is read, below each other as `LinearMap` stores separate ones."""

    weight: Float[Tensor, "rows d_model"]
    bias: None = None

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]


class LatentProjection(SeparateProjection):
    stores_keys = True

    def __init__(self, config: Latent, dims: Dims, traits: Traits) -> None:
        Projection.__init__(self)
        require(
            config.rotary < dims.d_head,
            f"latent: rotary={config.rotary} leaves nothing of d_head={dims.d_head}, the width of both parts, to make "
            "of the latent.",
        )
        self.set_sizes(dims, traits)
        self.config, self.clip, self.norms = config, None, None
        self.rank, self.rotary, self.d_content = config.rank, config.rotary, dims.d_head - config.rotary
        self.keeps_turned, self.norms_within = config.rotary > 0, config.norm
        query, key, value = self.widths
        # rows of `up` that keys are made by
        self.key_rows = key - dims.n_kv_heads * traits.streams * config.rotary
        short, d = config.query_rank, dims.d_model
        self.query_down = None if short is None else LinearMap(d, short, bias=False)
        self.query_norm = nn.RMSNorm(short, config.eps) if config.norm and short is not None else None
        self.query = LinearMap(d if short is None else short, query, bias=False)
        self.down = LinearMap(d, config.rank + traits.streams * config.rotary, bias=False)
        self.norm = nn.RMSNorm(config.rank, config.eps) if config.norm else None
        self.up = LinearMap(config.rank, self.key_rows + value, bias=False)

    @property
    def qkv(self) -> JoinedMatrices:
        """What all steps come to, as one matrix: for those who ask what heads read."""
        query = self._behind(self.query, self.query_norm)
        query = query if self.query_down is None else query @ self.query_down.weight
        latent, rotary = self.down.weight.split((self.rank, self.streams * self.rotary))
        key, value = (self._behind(self.up, self.norm) @ latent).split((self.key_rows, self.widths[2]))
        shape = (self.dims.n_kv_heads, self.streams)
        both = key.unflatten(0, (*shape, -1)), rotary.unflatten(0, (1, self.streams, -1)).expand(*shape, -1, -1)
        return JoinedMatrices(torch.cat((query, torch.cat(both, 2).flatten(0, 2), value)))

    @staticmethod
    def _behind(map: LinearMap, norm: nn.RMSNorm | None) -> Tensor:
        return map.weight if norm is None else map.weight * norm.weight

    def forward(
        self, inputs: ProjectionInputs, kept: LatentState | None = None
    ) -> tuple[Projected, LatentState | None]:
        if inputs.own is not None:
            if kept is not None:
                raise AnalysisUnavailable(
                    "what single heads read: this layer keeps latents that all heads share, so what one head reads in "
                    "this step cannot be carried to the next.\n    Run the whole text in one pass, without a state."
                )
            return super().forward(inputs)
        q, rows = self._placed(inputs)
        kept, rows = self._kept(kept, rows)
        return (q, *self.expanded(rows)), kept

    def heads(self, x_q: Tensor, x_k: Tensor, x_v: Tensor) -> Projected:
        return self.queries(x_q), *self.expanded(self.compressed(x_k))

    def queries(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch *stream head pos d_head"]:
        """Return queries by head, before any rotation."""
        x = x if self.query_down is None else self.query_down(x)
        x = x if self.query_norm is None else self.query_norm(x)
        return heads_of(self.query(x), self.dims.n_heads, self.streams)

    def compressed(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos width"]:
        """Return latents and, behind them, rotary keys before rotation."""
        rows = self.down(x)
        if self.norm is None:
            return rows
        return torch.cat((self.norm(rows[..., : self.rank]), rows[..., self.rank :]), -1)

    def expanded(self, rows: Float[Tensor, "batch key width"]) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all heads, the rotary part of keys as it is given."""
        made = self.up(rows[..., : self.rank])
        key, value = made.split((self.key_rows, self.widths[2]), -1)
        k = heads_of(key, self.dims.n_kv_heads, self.streams)
        if self.rotary:
            shared = self._rotary_key(rows).expand(*k.shape[:-1], -1)
            k = torch.cat((k, shared), -1)
        return k, heads_of(value, self.dims.n_kv_heads, self.value_streams)

    def by_position(self, x_q: Tensor, x_k: Tensor, x_v: Tensor) -> Projected:
        return self.heads(x_q, x_k, x_v)

    def of_heads(
        self, which: Which, x: Float[Tensor, "copy batch pos d_model"], heads: Int[Tensor, " copy"]
    ) -> Float[Tensor, "batch *stream copy pos d_head"]:
        return Projection.of_heads(self, which, x, heads)

    def _rotary_key(self, rows: Tensor) -> Float[Tensor, "batch *stream 1 key d_rotary"]:
        return heads_of(rows[..., self.rank :], 1, self.streams)

    def _placed(self, inputs: ProjectionInputs) -> tuple[Tensor, Tensor]:
        """Return queries at their positions, and rows of new positions as they are kept."""
        positions, context = inputs.positions, inputs.context
        q, rows = self.queries(inputs.query), self.compressed(inputs.key)
        if not self.rotary:
            # keys are left as they are: they are turned when they are read
            return positions.rotate(q, None, context)[0], rows
        q, shared = positions.written(q, self._rotary_key(rows), context)
        # batch [stream] 1 pos d_R -> batch pos ([stream] d_R)
        shared = shared.movedim(-2, 1).flatten(2)
        return q, torch.cat((rows[..., : self.rank], shared), -1)

    @staticmethod
    def _kept(kept: LatentState | None, rows: Tensor) -> tuple[LatentState | None, Tensor]:
        """Return what is kept, and all rows there are."""
        if kept is None:
            return None, rows
        rows, known = append(kept.rows, rows)
        return LatentState(known), rows

    # the absorbed route ---------------------------------------------------------------------------------------------

    def absorbs(self, n_new: int, kept: LatentState, positions: Positions) -> bool:
        """Whether fewer multiply-adds do without keys and values of the heads; rotation of all of a key forbids it."""
        if self.streams > 1 or self.value_streams > 1 or (positions.rotates and not self.rotary):
            return False
        dims, n_keys = self.dims, n_new + kept.rows.shape[1]
        made = self.rank * (self.d_content + dims.d_value)
        plain = n_keys * dims.n_kv_heads * made + dims.n_heads * n_new * n_keys * (dims.d_head + dims.d_value)
        absorbed = dims.n_heads * n_new * (made + n_keys * 2 * (self.rank + self.rotary))
        return absorbed < plain

    def absorbed(self, inputs: ProjectionInputs, kept: LatentState) -> tuple[Projected, LatentState | None]:
        q, rows = self._placed(inputs)
        state, rows = self._kept(kept, rows)
        content, turned = q.split((self.d_content, self.rotary), -1)
        grouped = content.unflatten(1, (self.dims.n_kv_heads, -1))
        latent = torch.einsum("bkgne,ker->bkgnr", grouped, self._up_by_head()[0]).flatten(1, 2)
        one = rows[:, None]
        return (torch.cat((latent, turned), -1), one, one), state

    def restored(self, z: Float[Tensor, "batch head pos mixed"]) -> Float[Tensor, "batch head pos d_value"]:
        grouped = z[..., : self.rank].unflatten(1, (self.dims.n_kv_heads, -1))
        return torch.einsum("bkgnr,ker->bkgne", grouped, self._up_by_head()[1]).flatten(1, 2)

    def _up_by_head(self) -> tuple[Float[Tensor, "kv_head d_content rank"], Float[Tensor, "kv_head d_value rank"]]:
        key, value = self.up.weight.split((self.key_rows, self.widths[2]))
        return key.unflatten(0, (self.dims.n_kv_heads, -1)), value.unflatten(0, (self.dims.n_kv_heads, -1))

    # what others ask ------------------------------------------------------------------------------------------------

    @property
    def reads(self) -> list[nn.Linear]:
        return [self.query if self.query_down is None else self.query_down, self.down]

    def departs(self, of: Of, value: int | None = None) -> Departure | None:
        if self.norm is None:
            return None
        if of == "values":
            how, so = "norms the latents that its values are made of", "no matrix alone says what a head moves"
            return Departure(how, so, TAKE_VALUES, once_frozen=True, up_to_scale=True)
        how = "norms the latents that its keys are made of"
        so = "its scores are bilinear only with the scale of that norm frozen at one text"
        # the rotary part passes no norm, so the scale says how much each part of a key counts
        return Departure(how, so, HOLD_SCALES, once_frozen=True, up_to_scale=not self.rotary)

    def scales(self, which: Which, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n width"] | None:
        if which == "query":
            return None if self.query_norm is None else self._root_mean_square(self.query_down(x))  # type: ignore[misc]
        if self.norm is None:
            return None
        scale = self._root_mean_square(self.down(x)[..., : self.rank])
        if which == "value" or not self.rotary:
            return scale
        return F.pad(scale.expand(*scale.shape[:-1], self.d_content), (0, self.rotary), value=1.0)

    def normed_part(self, which: Which) -> slice:
        # the rotary part passes no norm
        return slice(self.d_content) if which == "key" else slice(None)

    def held_values(self, x: Float[Tensor, "*n pos d_model"]) -> HeldValues | None:
        scale = self.scales("value", x)
        if scale is None:
            return None
        return HeldValues(scale.unsqueeze(-3) if self.value_streams == 1 else scale[..., None, None, :, :])

    def _root_mean_square(self, x: Tensor) -> Float[Tensor, "*n 1"]:
        return (x.square().mean(-1, keepdim=True) + self.config.eps).sqrt()

    def begin(self, batch: int, like: Tensor) -> LatentState:
        return LatentState(like.new_zeros(batch, 0, self.down.out_features))

    def cut(self, kept: LatentState, length: int) -> LatentState:
        return LatentState(kept.rows[:, :length])

    def state_numbers(self, length: int, source_length: int) -> int:
        return length * self.down.out_features

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        for map in (self.query_down, self.query):
            yield from parameters_of("query", map)
        rotary = self.streams * self.rotary * self.down.in_features
        yield "latent", self.rank * self.down.in_features
        yield "key", self.key_rows * self.rank + rotary
        yield "value", self.widths[2] * self.rank
        yield "norms", sum(norm.weight.numel() for norm in (self.query_norm, self.norm) if norm is not None)

    def flops(self, n_queries: int, n_keys: int) -> dict[str, int]:
        d, (query, _, value) = self.dims.d_model, self.widths
        short = self.config.query_rank
        per_query = d * query if short is None else short * (d + query)
        return {
            "query": 2 * n_queries * per_query,
            "latent": 2 * n_keys * d * self.rank,
            "key": 2 * n_keys * (self.rank * self.key_rows + d * self.streams * self.rotary),
            "value": 2 * n_keys * self.rank * value,
        }
