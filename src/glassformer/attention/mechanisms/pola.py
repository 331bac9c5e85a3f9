"""PolaFormer's attention: linear attention that tells equal signs of query and key from opposite ones.

    x+ = max(x, 0)^p,  x- = max(-x, 0)^p,                 p = 1 + alpha sigmoid(a), of each head and channel
    same_ts     = q+_t . k+_s + q-_t . k-_s
    opposite_ts = q+_t . k-_s + q-_t . k+_s
    z_t = (sum_s same_ts v_s / sum_s same_ts,  sum_s opposite_ts v'_s / sum_s opposite_ts)  +  conv(v, v')_t

A head has two values, each half as wide as its queries. Where p = 1, same - opposite is q . k; the paper never
subtracts, and leaves it to coefficients behind to learn what a minus would do. Queries and keys are divided by
softplus(s), s of each channel, and with `key_places` keys have P added first, a vector of each position. `convolution`
is depthwise, with one kernel and bias for all heads: over a grid (`Attention(grid=…)`) around each place. Along a text
it reads a position and those before it, whatever the mask lets be seen behind: that, and causal attention, are not in
the paper.

Pattern: two per head, exact, non-negative; rows sum to one (up to eps; a row whose products are all zero is zero).
What a convolution adds is no pattern of heads but one of each channel and, for its bias, affine in the values: it is
the site `local`, and z less that is patterns times values.
State: sums of features times values and of features, float32, for both values: 4 d_head (d_value + 1) a head, O(1) in
pos; with a convolution the last values. Over a grid there is none.
Cost: O(pos d_head d_value), with twice the features that `linear` has for both values.  Forms: left product (dense),
chunks (fast), recurrence (scan).
The coefficients: in the paper two learned matrices, G^s and G^o, one for each value. The released code has one gate for
both, x W_G + b, behind the convolution, and so has the layer of `models.published_block`: `Merge(gate="linear")`.
Differs from it in that eps is added to sums, there to means, and that keys and values of fewer places (its spatial
reduction) are not offered.
Source: Meng et al. 2025, "PolaFormer: Polarity-aware Linear Attention for Vision Transformers" (2501.15061), section 4.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Amount, Count
from glassformer.attention.context import Context
from glassformer.attention.depthwise import Depthwise, needs_whole_grid
from glassformer.attention.kernels.chunked import chunked
from glassformer.attention.mechanisms.linear import FeatureMixer, FeatureWeights, LinearState
from glassformer.attention.merge import Merge
from glassformer.attention.mixer import Dims, Traits, per_query_head
from glassformer.attention.places import places, rows_at
from glassformer.attention.projections import Separate
from glassformer.attention.projections.separate import repeated
from glassformer.trace import Tape, site


@dataclass(frozen=True)
class Pola(FeatureWeights, kind="pola"):
    """Polarity-aware linear attention.

    Args:
        alpha: Powers lie between 1 and this much more, and begin in the middle; 0 for no power.
        convolution: Width of the convolution of values, odd over a grid; None for none. The paper has 5.
        key_places: Whether a learned vector of each position is added to keys, as in the paper; zero at the beginning.
        eps: Added to the sum of a row's weights.
    """

    alpha: Amount = 4.0
    convolution: Count | None = None
    key_places: bool = False
    eps: Amount = 1e-6

    traits: ClassVar[Traits] = Traits("grouped", rows_lack_mass=True, value_streams=2, value_merge="concat")
    variants = (
        {"alpha": 0.0, "key_places": True},
        {"convolution": 3},
        {"convolution": 1, "eps": 0.0},
    )

    def __post_init__(self) -> None:
        if self.convolution is not None:
            object.__setattr__(self, "traits", replace(self.traits, linear_in_value="convolved"))

    @property
    def crosses(self) -> bool:
        return self.convolution is None and not self.key_places

    @property
    def mixes_grid(self) -> bool:
        return self.convolution is not None

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return the slots of the released code's layer: vectors of places, a convolution, and a linear gate behind."""
        return {
            "mixer": self.replace(convolution=self.convolution or 5, key_places=True),
            "projection": Separate(bias=True),
            "merge": Merge(bias=True, gate="linear", gate_bias=True),
        }

    def n_features_of(self, dims: Dims) -> int:
        return 2 * dims.d_head

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        if causal:
            mixing = 2 * super().flops(n_queries, n_keys, dims)
        else:
            numbers = n_keys * dims.d_z + n_queries * (dims.d_z + 2)
            mixing = dims.n_heads * 2 * numbers * self.n_features_of(dims)
        if self.convolution is None or dims.grid is None:
            return mixing
        rows, columns = dims.grid
        return mixing + 2 * rows * columns * self.convolution**2 * dims.n_heads * dims.d_z

    def state_numbers(self, length: int, dims: Dims) -> int:
        values = 0 if self.convolution is None else (self.convolution - 1) * dims.n_kv_heads * dims.d_z
        return 2 * super().state_numbers(length, dims) + values


class PolaState(NamedTuple):
    """Sums over earlier positions of features times values and, as a last column, of features; and the last values."""

    memory: Float[Tensor, "batch value_stream_and_head feature value"]
    values: Float[Tensor, "batch kv_head earlier d_z"]


class PolaMixer(FeatureMixer, config=Pola):
    config: Pola  # type: ignore[assignment]

    def __init__(self, config: Pola, dims: Dims, path: str) -> None:
        if config.convolution is not None:
            self.SITES = {"local": "batch head pos d_z"}
        super().__init__(config, dims, path)
        self.eps = config.eps
        self.power, self.scales = (nn.Parameter(torch.zeros(dims.n_heads, dims.d_head)) for _ in range(2))
        shape = dims.n_kv_heads, dims.max_len, dims.d_head
        self.places = nn.Parameter(torch.zeros(shape)) if config.key_places else None
        width = config.convolution
        self.convolution = None if width is None else Depthwise(dims.d_z, width, dims.grid)

    def powers(self) -> Float[Tensor, "head d_head"]:
        """Return the power of each head and channel."""
        return 1 + self.config.alpha * self.power.sigmoid()

    def polar(self, u: Float[Tensor, "batch head pos d_head"]) -> Float[Tensor, "batch head pos feature"]:
        """Return u+ and u- side by side, of queries or of keys by query head, in float32 at least."""
        u = u.to(torch.promote_types(u.dtype, torch.float32))
        u = u / F.softplus(self.scales.to(u.dtype))[:, None]
        if self.config.alpha > 0:
            u = (u.abs() ** self.powers().to(u.dtype)[:, None]).copysign(u)
        return torch.cat((u, -u), -1).relu_()

    def exchanged(self, features: Tensor, axis: int = -1) -> Tensor:
        """Return u- and u+ side by side, of both the other way round."""
        return features.roll(self.dims.d_head, axis)

    def polar_keys(self, k: Tensor, q: Tensor, context: Context) -> Float[Tensor, "batch head pos feature"]:
        """Return k+ and k- of keys, grouped or by query head; zeros of padding."""
        if self.places is not None:
            where = places(context, k.shape[-2], self.dims).key
            k = k + per_query_head(rows_at(self.places.to(k.dtype), where), k)
        polar, real = self.polar(per_query_head(k, q)), context.real_keys(k.shape[-2], str(self.config.kind))
        return polar if real is None else polar * real[:, None, :, None]

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        asked, of_keys = self.polar(q), self.polar_keys(k, q, context).mT
        weight = torch.stack((asked @ of_keys, self.exchanged(asked) @ of_keys), 1)
        allowed = context.allowed(q.shape[-2], k.shape[-2])
        if allowed is not None:
            weight = weight * allowed[:, None]
        return self._over(weight, weight.sum(-1, keepdim=True)).to(q.dtype)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_z"]:
        """Return z of texts that are read both ways: of one memory, which the second value is read from exchanged."""
        if context.documents is not None:
            return self.dense(q, k, v, q, context, None)
        asked, keys = self.polar(q), self.polar_keys(k, q, context)
        memory = keys.mT @ per_query_head(self.merged(v), q).to(keys.dtype)
        (first, second), total = memory.chunk(2, -1), keys.sum(-2)[..., None]
        weighted = asked @ torch.cat((first, self.exchanged(second, -2)), -1)
        weights = asked @ torch.cat((total, self.exchanged(total, -2)), -1)
        return self._over(weighted.unflatten(-1, (2, -1)), weights[..., None]).flatten(-2).to(q.dtype)

    def features(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Return features and values as those of twice as many heads: all with equal signs, then all with opposite."""
        asked, keys = self.polar(q), self.polar_keys(k, q, context)
        values = per_query_head(v, q).flatten(1, 2).to(keys.dtype)
        values = torch.cat((values, torch.ones_like(values[..., :1])), -1)
        return torch.cat((asked, self.exchanged(asked)), 1), torch.cat((keys, keys), 1), values

    def _mixed_values(self, total: Tensor) -> Tensor:
        return self.merged(super()._mixed_values(total).unflatten(1, (2, -1)))

    def _chunks(self, q: Tensor, k: Tensor, v: Tensor, memory: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        # one value after the other: what is made on the way, a chunk for each head, is of one at a time
        keep, documents = self.decay(q), context.numbered(q.shape[-2])
        parts = zip(*(u.chunk(2, 1) for u in (q, k, v, memory)), strict=True)
        mixed, held = zip(*(chunked(q, k, v, keep, before, documents=documents) for q, k, v, before in parts))
        return self._mixed_values(torch.cat(mixed, 1)), torch.cat(held, 1)

    def parallel(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        if self.convolution is None:
            return super().parallel(q, k, v, x, context, tape)
        local, _ = self.local(v, context, tape)
        return super().parallel(q, k, v, x, context, tape) + local

    def scan(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: PolaState, tape: Tape | None
    ) -> tuple[Tensor, PolaState]:
        memory = LinearState(state.memory)
        if self.convolution is None:
            z, memory = super().scan(q, k, v, x, context, memory, tape)
            return z, PolaState(*memory, state.values)
        if self.dims.grid is not None:
            raise needs_whole_grid(f"layer {self.dims.layer} (pola)", self.dims.grid)
        local, values = self.local(v, context, tape, state.values)
        z, memory = super().scan(q, k, v, x, context, memory, tape)
        return z + local, PolaState(*memory, values.to(state.values.dtype))

    def local(
        self,
        v: Float[Tensor, "batch 2 kv_head pos d_value"],
        context: Context,
        tape: Tape | None = None,
        before: Float[Tensor, "batch kv_head earlier d_z"] | None = None,
    ) -> tuple[Float[Tensor, "batch head pos d_z"], Float[Tensor, "batch kv_head earlier d_z"]]:
        """Return what the convolution adds to z, and the last values, both of a head side by side.

        Args:
            v: Values at the new positions.
            context: Facts of the pass.
            tape: Reads and edits of the site.
            before: Values at those just before them; None where none is kept.
        """
        assert self.convolution is not None, "asked for where there is one"
        joined, grid = self.merged(v), self.dims.grid
        if grid is None:
            mixed, last = self.convolution.along(joined, context, before)
        elif context.looks_back:
            raise needs_whole_grid(f"layer {self.dims.layer} (pola)", grid)
        else:
            mixed, last = self.convolution.over(joined, context), joined[..., :0, :]
        return site(tape, self.at.local, repeated(mixed, self.dims.n_heads, 1)), last

    def begin(self, batch: int, like: Tensor) -> PolaState:  # type: ignore[override]
        dims, dtype = self.dims, torch.promote_types(like.dtype, torch.float32)
        shape = 2 * dims.n_heads, 2 * dims.d_head, dims.d_value + 1
        earlier = 0 if self.convolution is None else self.convolution.width - 1
        return PolaState(
            like.new_zeros(batch, *shape, dtype=dtype),
            like.new_zeros(batch, dims.n_kv_heads, earlier, dims.d_z, dtype=dtype),
        )
