"""Attention on attention weights (AWRSR): rows of a pattern are features, and attention over them refines it.

    A        first-order weights, softmax(q k' / sqrt(d_head) + bias), or their scores (`use_logits`), 0 where hidden
    a_i W    row i of A times a matrix with a row for each of max_len places
    simple           B_ij = (a_i W_Q) . (a_j W_K) / sqrt(rank)
    value-weighted   B_ij = sum_k softmax_k(a_i W_Q . a_k W_K / sqrt(rank)) (a_k W_V)_j
    additive         A_ij + B_ij, of either B
    z_t      = sum_s softmax_s(scores_ts) v_s,   scores one of the three, masked once more
    Wasserstein      a_i becomes N(a_i W_m, elu(a_i W_c) + 1), and B_ij = -W2^2(i, j) / sqrt(rank); A and z as in STOSA

Row i of a causal A has no entry beyond i, so that B is causal under a second mask. Rows and columns count within a
document, padding left out; a document longer than max_len is refused. Matrices are each head's own and drawn as normals
of 0.02. As weights lie between 0 and 1, additive refinement of weights with W = 0 is softmax(A), nearly flat; of scores
it is softmax attention itself.

Pattern: exact, rows sum to one; of Wasserstein one for each value. The first-order weights have a site of their own.
State: keys and values of earlier positions, and what key j is to later queries, a_j W, as row j never changes.
Cost: O(pos^2 (d_head + rank)), value-weighted O(pos^3) and max_len numbers of state per position more.
Differs from the paper: the four refinements and their intent are as published; the formulas, whether weights or scores
are refined, the scales and which matrices are shared are reconstructed, since no code of the authors is known.
Source: Liu, Liu, Liu 2024, "Pay Attention to Attention for Sequential Recommendation"; reconstructed.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.kernels.growing import append
from glassformer.attention.kernels.paged import PagedRows
from glassformer.attention.mechanisms.wasserstein import distance_scores, points, squared_distances, with_square
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head, several
from glassformer.attention.places import Places, places, rows_at
from glassformer.attention.projections import Gaussian
from glassformer.attention.scores import masked_softmax, scaled_scores
from glassformer.trace import Tape, changes, site


class _OnWeights(MixerConfig):
    """What refinements of weights share: they go by places, and keep rows beside keys and values."""

    stores_keys: ClassVar[bool] = False
    rank: int | None

    @property
    def crosses(self) -> bool:
        return False

    def keeps(self, length: int) -> bool:
        return True

    def width(self, dims: Dims) -> int:
        """Return the width of what rows of weights are mapped to."""
        return self.rank or dims.d_head


@dataclass(frozen=True)
class Refined(_OnWeights, kind="refined"):
    """Attention whose weights are refined by attention over rows of weights.

    Args:
        by: What refines row i: its likeness to row j (`simple`), or what rows like it attend to (`value_weighted`).
        additive: Add what is refined to what refines it.
        use_logits: Refine the first-order scores, and not the weights made of them.
        rank: Width that rows are mapped to; d_head by default.
    """

    by: Literal["simple", "value_weighted"] = "simple"
    additive: bool = False
    use_logits: bool = False
    rank: Count | None = None

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True)
    variants = (
        {"by": "value_weighted", "rank": 2},
        {"additive": True, "use_logits": True},
        {"by": "value_weighted", "additive": True},
        {"by": "value_weighted", "use_logits": True, "rank": 3},
    )

    @property
    def weighs_values(self) -> bool:
        """Whether rows have values besides queries and keys, a number for each place."""
        return self.by == "value_weighted"

    def state_numbers(self, length: int, dims: Dims) -> int:
        of_rows = self.width(dims) + self.weighs_values * dims.max_len
        return length * (dims.n_kv_heads * (dims.d_head + dims.d_value) + dims.n_heads * of_rows)


@dataclass(frozen=True)
class RefinedWasserstein(_OnWeights, kind="refined_wasserstein"):
    """Stochastic self-attention whose weights are refined by distances of their rows, made Gaussians.

    Args:
        rank: Width of the Gaussians of rows; d_head by default.
    """

    rank: Count | None = None

    traits: ClassVar[Traits] = Traits("grouped", has_scores=True, streams=2, value_streams=2, value_merge="concat")
    variants = ({"rank": 2},)

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return mixer and projection of the layer that is refined, as `Wasserstein` does."""
        return {"mixer": self, "projection": Gaussian()}

    def state_numbers(self, length: int, dims: Dims) -> int:
        return length * 2 * (dims.n_kv_heads * (dims.d_head + dims.d_value) + dims.n_heads * self.width(dims))


class RefinedState(NamedTuple):
    """Keys, values, and rows of weights mapped to what later queries meet."""

    key: Float[Tensor, "batch *stream kv_head key d_head"]
    value: Float[Tensor, "batch *value_stream kv_head key d_value"]
    row: Float[Tensor, "batch *stream head key width"]


class _OnWeightsMixer(Mixer):
    """Weights, their rows mapped to queries and keys, scores of those, and weights again."""

    SITES = MappingProxyType(dict.fromkeys(("first_scores", "first_pattern", "scores"), "batch head query key"))
    LAZY = ("first_scores", "first_pattern")

    # width of what is kept of a row
    kept: int

    def first_scores(self, q: Tensor, k: Tensor, context: Context) -> Float[Tensor, "batch head query key"]:
        raise NotImplementedError

    def features(
        self, first: Float[Tensor, "batch head query key"], context: Context, tape: Tape | None
    ) -> Float[Tensor, "batch head query key"]:
        """Return what is refined: the weights of first-order scores."""
        return site(tape, self.at.first_pattern, self._softmax(first, context, tape, self.at.first_scores))

    def mapped(self, features: Tensor, where: Places) -> tuple[Tensor, Tensor]:
        """Return what rows are as queries, and what they are to later queries."""
        raise NotImplementedError

    def second_scores(
        self, features: Tensor, own: Tensor, rows: Tensor, where: Places, context: Context
    ) -> Float[Tensor, "batch head query key"]:
        """Return refined scores before the mask, of what is refined, its rows as queries and all rows as keys."""
        raise NotImplementedError

    def patterns(self, pattern: Float[Tensor, "batch head query key"]) -> Tensor:
        """Return what multiplies values."""
        return pattern

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        return self._refine(q, k, context, None, tape)[0]

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: RefinedState, tape: Tape | None
    ) -> tuple[Tensor, RefinedState]:
        (k, keys), (v, values) = append(state.key, k), append(state.value, v)
        pattern, rows = self._refine(q, per_query_head(k, q), context, state.row, tape)
        return self.weighed(pattern, v, q, context, tape), RefinedState(keys, values, rows)

    def begin(self, batch: int, like: Tensor) -> RefinedState:
        key, value = super().begin(batch, like)
        streams = several(self.traits.streams)
        return RefinedState(key, value, like.new_zeros(batch, *streams, self.dims.n_heads, 0, self.kept))

    def _refine(
        self, q: Tensor, k: Tensor, context: Context, earlier: Tensor | PagedRows | None, tape: Tape | None
    ) -> tuple[Tensor, Any]:
        """Return the pattern of the new positions, and rows of all positions as later queries meet them."""
        where = places(context, k.shape[-2], self.dims)
        # in float32 at least: scores of scores multiply what was rounded off
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), k.to(wide)
        first = site(tape, self.at.first_scores, self.first_scores(q, k, context))
        features = self.features(first, context, tape)
        own, new = self.mapped(features, where)
        rows, kept = (new, new) if earlier is None else append(earlier, new.to(earlier.dtype))
        scores = hidden(self.second_scores(features, own, rows.to(own.dtype), where, context), context)
        pattern = self._softmax(site(tape, self.at.scores, scores), context, tape, self.at.scores)
        return self.patterns(pattern).to(dtype), kept

    def _softmax(self, scores: Tensor, context: Context, tape: Tape | None, name: str) -> Tensor:
        return masked_softmax(scores, empty_rows=not context.sees_itself or changes(tape, name))

    def _matrix(self, width: int) -> nn.Parameter:
        return nn.Parameter(torch.randn(self.dims.n_heads, self.dims.max_len, width) * 0.02)


class RefinedMixer(_OnWeightsMixer, config=Refined):
    config: Refined

    def __init__(self, config: Refined, dims: Dims, path: str) -> None:
        if config.use_logits:
            # no weights are made of the first-order scores
            self.SITES = {name: axes for name, axes in self.SITES.items() if name != "first_pattern"}
            self.LAZY = ("first_scores",)
        super().__init__(config, dims, path)
        rank = config.width(dims)
        self.query, self.key = self._matrix(rank), self._matrix(rank)
        self.value = self._matrix(dims.max_len) if config.weighs_values else None
        self.kept = rank + (dims.max_len if config.weighs_values else 0)

    def first_scores(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        return scaled_scores(q, k, self.dims.d_head**-0.5, context)

    def features(self, first: Tensor, context: Context, tape: Tape | None) -> Tensor:
        if not self.config.use_logits:
            return super().features(first, context, tape)
        # what an edit hid has no score either
        return first.masked_fill(first == float("-inf"), 0.0)

    def mapped(self, features: Tensor, where: Places) -> tuple[Tensor, Tensor]:
        to_later = self.key if self.value is None else torch.cat((self.key, self.value), -1)
        query, later = (rows_at(matrix, where.key).to(features.dtype) for matrix in (self.query, to_later))
        return features @ query, features @ later

    def second_scores(self, features: Tensor, own: Tensor, rows: Tensor, where: Places, context: Context) -> Tensor:
        rank = own.shape[-1]
        scores = own @ rows[..., :rank].mT * rank**-0.5
        if self.value is not None:
            alike = masked_softmax(hidden(scores, context))
            scores = alike @ torch.take_along_dim(rows[..., rank:], where.key[:, None, None], -1)
        return features + scores if self.config.additive else scores


class RefinedWassersteinMixer(_OnWeightsMixer, config=RefinedWasserstein):
    config: RefinedWasserstein

    def __init__(self, config: RefinedWasserstein, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.kept = config.width(dims)
        self.mean, self.covariance = self._matrix(self.kept), self._matrix(self.kept)

    def first_scores(self, q: Tensor, k: Tensor, context: Context) -> Tensor:
        return distance_scores(q, k, self.dims.d_head, context)

    def mapped(self, features: Tensor, where: Places) -> tuple[Tensor, Tensor]:
        matrices = (rows_at(matrix, where.key).to(features.dtype) for matrix in (self.mean, self.covariance))
        mean, covariance = (features @ matrix for matrix in matrices)
        rows = points(torch.stack((mean, F.elu(covariance) + 1), 1))
        return rows, rows

    def second_scores(self, features: Tensor, own: Tensor, rows: Tensor, where: Places, context: Context) -> Tensor:
        return squared_distances(own, rows).sum(1) * -(self.kept**-0.5)

    def patterns(self, pattern: Tensor) -> Tensor:
        return with_square(pattern)


def hidden(scores: Float[Tensor, "batch head query key"], context: Context) -> Tensor:
    """Return scores, -inf where the mask forbids attention."""
    allowed = context.allowed(*scores.shape[-2:])
    return scores if allowed is None else scores.masked_fill(~allowed, float("-inf"))
