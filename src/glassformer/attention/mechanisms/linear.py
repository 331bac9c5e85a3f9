"""Linear attention: a positive feature map in place of the exponential.

    z_t = sum_{s<=t} (phi(q_t) . phi(k_s)) v_s  /  (sum_{s<=t} phi(q_t) . phi(k_s) + eps)

Pattern: exact, non-negative, rows sum to one (up to eps).  State: two running sums, float32, O(1) in pos.
Cost: O(pos d_head d_value).  Forms: left product (dense), chunks (fast), recurrence (scan, one position at a time).
Padding hides phi(k), not k: phi(0) is not zero.
Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Amount
from glassformer.attention.context import Causal, Context, Documents, Padding
from glassformer.attention.kernels.chunked import chunked, chunked_flops
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, no_pattern, per_query_head
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Tape

FEATURE_MAPS = {"elu": lambda u: F.elu(u) + 1, "softplus": F.softplus}


@dataclass(frozen=True)
class Linear(MixerConfig, kind="linear"):
    """Kernel linear attention.

    Args:
        feature_map: Positive function of queries and keys.
        eps: Added to the normaliser.
    """

    feature_map: Literal["elu", "softplus"] = "elu"
    eps: Amount = 1e-6

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True)
    stores_keys: ClassVar[bool] = False
    wide_state: ClassVar[bool] = True
    variants = ({"feature_map": "softplus"}, {"eps": 0.0})

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form: a text of many chunks is too long to walk.

        Chunks if causal, else one product for the memory and one to read it; the normaliser is a further value.
        """
        if causal:
            return dims.n_heads * chunked_flops(n_queries, dims.d_head, dims.d_value + 1)
        return dims.n_heads * 2 * (n_queries + n_keys) * dims.d_head * (dims.d_value + 1)

    def state_numbers(self, length: int, dims: Dims) -> int:
        return dims.n_heads * dims.d_head * (dims.d_value + 1)


class LinearState(NamedTuple):
    """Sums over earlier positions: phi(k) v' and phi(k)."""

    memory: Float[Tensor, "batch head d_head d_value"]
    weight: Float[Tensor, "batch head d_head 1"]


class LinearMixer(Mixer, config=Linear):
    config: Linear

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        weight = self.phi(q) @ self.phi(k).mT
        allowed = context.allowed(q.shape[-2], k.shape[-2])
        if allowed is not None:
            weight = weight * allowed
        return self._over(weight, weight.sum(-1, keepdim=True)).to(q.dtype)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        kinds = [type(term) for term in context.mask.terms]
        unknown = not {*kinds} <= {Causal, Padding, Documents} or kinds.count(Documents) > 1
        if unknown or (context.crossed and not {*kinds} <= {Padding}):
            return self.dense(q, k, v, x, context, None)
        if Causal in kinds:
            features, width = self.features(q, k, v, context), v.shape[-1] + 1
            memory = features[0].new_zeros(*q.shape[:2], q.shape[-1], width)
            return self._chunks(*features, memory, context)[0].to(q.dtype)
        return self.text_by_text(context, q, k, v)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        """Return z of texts that are read both ways."""
        if context.documents is not None:
            return self.dense(q, k, v, q, context, None)
        dtype = q.dtype
        q, k, v = self.features(q, k, v, context)
        return self._normalise(q @ (k.mT @ v)).to(dtype)

    def scan(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: LinearState, tape: Tape | None):
        if self.wants_dense(tape):
            raise no_pattern(self)
        if not context.mask.only(Causal, Padding, Documents, mechanism="linear")[Causal]:
            raise AnalysisUnavailable(
                f'layer {self.dims.layer}: "linear" scans causal attention only; use form="parallel" here.'
            )
        features = self.features(q, k, v, context)
        memory = torch.cat((state.memory, state.weight), -1).to(features[0].dtype)
        z, memory = self._chunks(*features, memory, context)
        return z.to(q.dtype), LinearState(memory[..., :-1], memory[..., -1:])

    def _chunks(self, q: Tensor, k: Tensor, v: Tensor, memory: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        alike = q.new_ones(q.shape[-3])
        total, memory = chunked(q, k, v, alike, memory, documents=context.numbered(q.shape[-2]))
        return self._normalise(total), memory

    def begin(self, batch: int, like: Tensor) -> LinearState:
        dims, dtype = self.dims, torch.promote_types(like.dtype, torch.float32)
        return LinearState(
            like.new_zeros(batch, dims.n_heads, dims.d_head, dims.d_value, dtype=dtype),
            like.new_zeros(batch, dims.n_heads, dims.d_head, 1, dtype=dtype),
        )

    def phi(self, u: Tensor) -> Tensor:
        """Return the features of queries or keys, in float32 at least: their sums run over the whole past."""
        return FEATURE_MAPS[self.config.feature_map](u.to(torch.promote_types(u.dtype, torch.float32)))

    def features(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Return phi(q), phi(k) with padding hidden, and v with a column of ones that sums the weights."""
        k, v = per_query_head(self.phi(k), q), per_query_head(v, q)
        real = context.real_keys(k.shape[-2], "linear")
        if real is not None:
            k = k * real[:, None, :, None]
        return self.phi(q), k, torch.cat((v, torch.ones_like(v[..., :1])), -1).to(k.dtype)

    def _normalise(self, total: Tensor) -> Tensor:
        return self._over(total[..., :-1], total[..., -1:])

    def _over(self, weighted: Tensor, total: Tensor) -> Tensor:
        # a row with nothing to attend to is 0 / 0 when eps is zero, and so is its gradient
        return weighted / (total + self.config.eps).masked_fill(total == 0, 1.0)
