"""Linear attention: a feature map in place of the exponential.

    z_t = sum_{s<=t} (phi(q_t) . phi(k_s)) v_s  /  (sum_{s<=t} phi(q_t) . phi(k_s) + eps)

Without its denominator it is NormAttention, of which a norm of z brings the size back (`Merge(norm=…)`); features may
then be signed. `exp` is guarded: the largest exponent of each query is taken off, which the denominator takes off too,
and exponents of keys are cut at 60, which no later key can change.
Pattern: exact, non-negative, rows sum to one (up to eps; with `relu` a row whose products are all zero is zero).
Without a denominator rows do not sum to one, and are signed if features are.
State: sums of phi(k) v' and phi(k), float32, O(1) in pos; without a denominator of phi(k) v' alone, with `Lrpe` twice.
Cost: O(pos d_head d_value).  Forms: left product (dense), chunks (fast), recurrence (scan, one position at a time).
Padding hides phi(k), not k: phi(0) is not zero.
Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3; Qin et al. 2022, "The Devil in Linear
Transformer" (2210.10340), section 4, for NormAttention.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Amount
from glassformer.attention.context import Causal, Context, Documents, Padding, Spread
from glassformer.attention.kernels.chunked import chunked, chunked_flops
from glassformer.attention.merge import Merge
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, no_pattern, per_query_head
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Tape

# of a key's exponent: sums of a million such features, times a million, are finite in float32
LARGEST_EXPONENT = 60.0

FEATURE_MAPS = {
    "elu": lambda u: F.elu(u) + 1,
    "softplus": F.softplus,
    "relu": F.relu,
    "exp": lambda u: u.clamp_max(LARGEST_EXPONENT).exp(),
    "signed_elu": F.elu,
}


class FeatureWeights(MixerConfig):
    """What mechanisms share whose weights are products of features of queries and keys."""

    stores_keys: ClassVar[bool] = False
    wide_state: ClassVar[bool] = True

    @property
    def divides(self) -> bool:
        """Whether weights are divided by their sum."""
        return True

    @property
    def turns_features(self) -> bool:
        # weights that positions make negative may sum to nothing
        return not self.divides

    def n_features_of(self, dims: Dims) -> int:
        """Return how many features a query or key has."""
        return dims.d_feature

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form: a text of many chunks is too long to walk.

        Chunks if causal, else one product for the memory and one to read it; the normaliser is a further value.
        """
        features, value = self.n_features_of(dims), dims.d_value + self.divides
        if causal:
            return dims.n_heads * chunked_flops(n_queries, features, value)
        return dims.n_heads * 2 * (n_queries + n_keys) * features * value

    def state_numbers(self, length: int, dims: Dims) -> int:
        return dims.n_heads * self.n_features_of(dims) * (dims.d_value + self.divides)


@dataclass(frozen=True)
class Linear(FeatureWeights, kind="linear"):
    """Kernel linear attention; `denominator=False` is NormAttention, its norm that of `Merge`.

    Args:
        feature_map: Function of queries and keys: `elu` is elu(x) + 1 and positive, `signed_elu` is elu(x).
        eps: Added to the normaliser.
        denominator: Whether weights are divided by their sum.
    """

    feature_map: Literal["elu", "softplus", "relu", "exp", "signed_elu"] = "elu"
    eps: Amount = 1e-6
    denominator: bool = True

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True)
    variants = (
        {"feature_map": "softplus"},
        {"feature_map": "relu"},
        {"feature_map": "exp"},
        {"eps": 0.0},
        {"denominator": False},
        {"denominator": False, "feature_map": "signed_elu"},
    )

    def __post_init__(self) -> None:
        require(
            self.feature_map != "signed_elu" or not self.denominator,
            'linear: sums of feature_map="signed_elu" may be zero; use "elu", or denominator=False.',
        )
        require(
            self.feature_map != "exp" or self.denominator,
            'linear: feature_map="exp" leaves its size to the denominator; use another, or denominator=True.',
        )

    @property
    def divides(self) -> bool:
        return self.denominator

    @property
    def spreads(self) -> bool:
        return True

    def of_heads(self, heads: range, n_heads: int) -> "Linear":
        return self

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return the mechanism and, without a denominator, NormAttention's norm, over all heads and without a gain."""
        return {"mixer": self} | ({} if self.denominator else {"merge": Merge(norm="all", gain=False)})


class LinearState(NamedTuple):
    """Sums over earlier positions: phi(k) v' and, as a last column if there is a denominator, phi(k)."""

    memory: Float[Tensor, "batch head feature value"]


class FeatureMixer(Mixer):
    """Attention whose weights are products of features; `phi` is what a mechanism has to say."""

    config: FeatureWeights
    eps: float = 0.0  # added to the sum of a row's weights

    def phi(self, u: Tensor) -> Float[Tensor, "*lead pos feature"]:
        """Return the features of keys, in float32 at least: their sums run over the whole past."""
        raise NotImplementedError(f"{type(self).__name__} has no features")

    def of_queries(self, q: Tensor) -> Float[Tensor, "*lead pos feature"]:
        """Return the features of queries; those of one query may have any factor, where there is a denominator."""
        return self.phi(q)

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        of_queries, of_keys = context.met(self.of_queries(q), self.phi(k))
        weight = of_queries @ of_keys.mT
        allowed = context.allowed(q.shape[-2], k.shape[-2])
        if allowed is not None:
            weight = weight * allowed
        if self.config.divides:
            weight = self._over(weight, weight.sum(-1, keepdim=True))
        return weight.to(q.dtype)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        kinds = [type(term) for term in context.mask.terms]
        unknown = not {*kinds} <= {Causal, Padding, Documents} or kinds.count(Documents) > 1
        if unknown or (context.crossed and not {*kinds} <= {Padding}):
            return self.dense(q, k, v, x, context, None)
        if Causal in kinds:
            of_queries, of_keys, summed = self.features(q, k, v, context)
            memory = of_queries.new_zeros(*of_queries.shape[:2], of_queries.shape[-1], summed.shape[-1])
            return self._chunks(of_queries, of_keys, summed, memory, context)[0].to(q.dtype)
        return self.text_by_text(context, q, k, v)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        """Return z of texts that are read both ways."""
        if context.documents is not None:
            return self.dense(q, k, v, q, context, None)
        dtype = q.dtype
        q, k, v = self.features(q, k, v, context)
        return self._mixed_values(q @ (k.mT @ v)).to(dtype)

    def scan(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: LinearState, tape: Tape | None):
        kind = str(self.config.kind)
        if self.wants_dense(tape):
            raise no_pattern(self)
        if not context.mask.only(Causal, Padding, Documents, mechanism=kind)[Causal]:
            raise AnalysisUnavailable(
                f'layer {self.dims.layer}: "{kind}" scans causal attention only; use form="parallel" here.'
            )
        features = self.features(q, k, v, context)
        z, memory = self._chunks(*features, state.memory.to(features[0].dtype), context)
        return z.to(q.dtype), LinearState(memory)

    def spread(self, q: Tensor, k: Tensor, v: Tensor, context: Context, spread: Spread) -> Tensor:
        of_queries, of_keys, summed = self.features(q, k, v, context)
        total = spread.linear(of_queries, of_keys, summed, self.decay(of_queries), context.documents)
        return self._mixed_values(total).to(q.dtype)

    def _chunks(self, q: Tensor, k: Tensor, v: Tensor, memory: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        total, memory = chunked(q, k, v, self.decay(q), memory, documents=context.numbered(q.shape[-2]))
        return self._mixed_values(total), memory

    def decay(self, like: Tensor) -> Float[Tensor, " head"]:
        return like.new_ones(self.dims.n_heads)

    def begin(self, batch: int, like: Tensor) -> LinearState:
        dims, dtype = self.dims, torch.promote_types(like.dtype, torch.float32)
        features, value = self.config.n_features_of(dims), dims.d_value + self.config.divides
        return LinearState(like.new_zeros(batch, dims.n_heads, features, value, dtype=dtype))

    def features(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Return phi(q), phi(k) with padding hidden, and v, with a column of ones that sums the weights."""
        k, v = per_query_head(self.phi(k), q), per_query_head(v, q)
        q, k = context.met(self.of_queries(q), k)
        real = context.real_keys(k.shape[-2], str(self.config.kind))
        if real is not None:
            k = k * real[:, None, :, None]
        if self.config.divides:
            v = torch.cat((v, torch.ones_like(v[..., :1])), -1)
        return q, k, v.to(k.dtype)

    def _mixed_values(self, total: Tensor) -> Tensor:
        return self._over(total[..., :-1], total[..., -1:]) if self.config.divides else total

    def _over(self, weighted: Tensor, total: Tensor) -> Tensor:
        # a row with nothing to attend to is 0 / 0 when eps is zero, and so is its gradient
        return weighted / (total + self.eps).masked_fill(total == 0, 1.0)


class LinearMixer(FeatureMixer, config=Linear):
    config: Linear  # type: ignore[assignment]

    def __init__(self, config: Linear, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.eps = config.eps
        lacks = config.feature_map == "relu"
        full = config.denominator and not lacks
        self.traits = replace(config.traits, rows_sum_to_one=full, rows_lack_mass=config.denominator and lacks)

    def phi(self, u: Tensor) -> Tensor:
        return FEATURE_MAPS[self.config.feature_map](u.to(torch.promote_types(u.dtype, torch.float32)))

    def of_queries(self, q: Tensor) -> Tensor:
        return self.phi(q - q.amax(-1, keepdim=True) if self.config.feature_map == "exp" else q)
