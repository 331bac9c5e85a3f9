"""Linear concat attention: the score is a sum of something of the query and something of the key.

    z_t = sum_s softmax_s((w_1 . q_t + w_2 . k_s) * scale + bias_ts) v_s

It is here for what it cannot do. What the query adds is the same for all its keys, and softmax does not see that: w_1
has no effect and a gradient of zero, rows of the pattern differ by their masks alone, and causal attention is a running
mean of values with weights exp(w_2 . k_s). A cap or sinks let the query back in. Luong's `concat` has a tanh, and that
is `concat`.

Pattern: exact, non-negative, rows sum to one, with sinks to less; an all-zero row where nothing may be attended to.
State: keys and values of earlier positions, the last window - 1 of them if there is a window.
Cost: O(pos) where attention is causal, with nothing that tells one query's row from another's; else that of softmax.
At 256 tokens on a CPU it still takes twice the fused product's time, for many small operations.
Source: the score w . [q; k] of tutorials on attention; compare Luong et al. 2015, section 3.1.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.kernels.running_mean import running_mean
from glassformer.attention.mixer import Dims, Traits, per_query_head
from glassformer.attention.softmax_weights import SoftmaxWeights, SoftmaxWeightsMixer
from glassformer.attention.temperature import LearnedTemperature, LogN
from glassformer.trace import Tape


@dataclass(frozen=True)
class ConcatLinear(SoftmaxWeights, kind="concat_linear"):
    """Attention by w . [q; k], whose query part cancels.

    Args:
        window: Each query sees keys less than this many positions away; None for all.
        scale: Factor on the scores; 1 by default.
        cap: Largest size of a score, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies scores.
    """

    scaled: ClassVar[bool] = False
    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True)
    variants = (
        {"window": 3, "temperature": LearnedTemperature()},
        {"sinks": True, "temperature": LogN(4)},
        {"cap": 0.5},
    )


class ConcatLinearMixer(SoftmaxWeightsMixer, config=ConcatLinear):
    def __init__(self, config: ConcatLinear, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.of_query, self.of_key = (nn.Parameter(torch.empty(dims.n_heads, dims.d_head)) for _ in range(2))
        for parameter in (self.of_query, self.of_key):
            nn.init.normal_(parameter, std=1 / math.sqrt(dims.d_head))

    def scores(
        self, q: Float[Tensor, "batch head query d_head"], k: Float[Tensor, "batch head key d_head"], context: Context
    ) -> Float[Tensor, "batch head query key"]:
        return self.tempered(context.scores(self._score, q, k) * self.scale, context)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        if self.needs_scores:
            return self.dense(q, k, v, x, context, tape)
        k, v = self._of_key(per_query_head(k, q)), per_query_head(v, q)
        n, alike = q.shape[-2], self.temperature is None or not self.temperature.by_query
        unseen = self.config.window is None or n <= self.config.window
        if alike and unseen and self.sinks is None and context.is_causal and not context.biased and n == k.shape[-2]:
            scores = self.tempered(k * self.scale, None)[..., 0]
            return running_mean(scores.to(torch.promote_types(v.dtype, torch.float32)), v)
        # a product of two numbers each, q's with one and one with k's; as wide as values, as kernels want them
        q = torch.cat((self._of_query(q), torch.ones_like(q[..., :1])), -1)
        k = torch.cat((torch.ones_like(k), k), -1)
        q, k = (F.pad(u, (0, max(0, v.shape[-1] - 2))) for u in (q, k))
        return self.text_by_text(context, self.tempered(q, context), k, v)

    mixed = SoftmaxWeightsMixer.fused

    def _score(self, q: Tensor, k: Tensor) -> Float[Tensor, "batch head query key"]:
        return self._of_query(q) + self._of_key(k).mT

    def _of_query(self, q: Tensor) -> Float[Tensor, "batch head query 1"]:
        return q @ self.of_query[..., None]

    def _of_key(self, k: Tensor) -> Float[Tensor, "batch head key 1"]:
        return k @ self.of_key[..., None]
