"""Concat attention, Luong's: a hidden layer of each head on query and key side by side.

    z_t = sum_s softmax_s(v . tanh(W [q_t; k_s]) * scale + bias_ts) v_s

It is additive attention without a bias, [W_q; W_k] being the two parts of W, stored as one matrix here as there.
Without the tanh the query would drop out: that is `concat_linear`, which tutorials call by the same name.

Pattern: exact, non-negative, rows sum to one, with sinks to less; an all-zero row where nothing may be attended to.
State: keys and values of earlier positions, the last window - 1 of them if there is a window.
Cost: that of additive attention, O(pos^2 hidden) time and O(pos^2) memory, 20 to 60 times a fused product's time on a
CPU. There is no fused form as there is none there: a tanh of a sum is no product of one part of the query and one of
the key.
Source: Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation", section 3.1.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.kernels.additive import additive_scores
from glassformer.attention.mechanisms.additive import hidden_flops
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.softmax_weights import SoftmaxWeights, SoftmaxWeightsMixer
from glassformer.attention.temperature import LogN


@dataclass(frozen=True)
class Concat(SoftmaxWeights, kind="concat"):
    """Luong's `concat`, with a tanh; for the linear form see `ConcatLinear`.

    Args:
        window: Each query sees keys less than this many positions away; None for all.
        scale: Factor on the scores; 1 by default.
        cap: Largest size of a score, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies scores.
        hidden: Units of each head's hidden layer; d_head by default.
    """

    hidden: Count | None = None

    scaled: ClassVar[bool] = False
    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True)
    variants = ({"hidden": 3, "window": 3}, {"sinks": True, "temperature": LogN(4)})

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form: a few queries are scored at a time, which is too long to walk."""
        return hidden_flops(self.hidden or dims.d_head, n_queries, self.keys_met(n_queries, n_keys), dims)


class ConcatMixer(SoftmaxWeightsMixer, config=Concat):
    def __init__(self, config: Concat, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        hidden = config.hidden or dims.d_head
        # rows: those of the query, then those of the key
        self.joint = nn.Parameter(torch.empty(dims.n_heads, 2 * dims.d_head, hidden))
        self.read = nn.Parameter(torch.empty(dims.n_heads, hidden))
        nn.init.normal_(self.joint, std=1 / math.sqrt(2 * dims.d_head))
        nn.init.normal_(self.read, std=1 / math.sqrt(hidden))

    def scores(
        self, q: Float[Tensor, "batch head query d_head"], k: Float[Tensor, "batch head key d_head"], context: Context
    ) -> Float[Tensor, "batch head query key"]:
        return self.tempered(context.scores(self._score, q, k) * self.scale, context)

    def _score(self, q: Tensor, k: Tensor) -> Float[Tensor, "batch head query key"]:
        of_query, of_key = self.joint.chunk(2, 1)
        return additive_scores(q @ of_query, k @ of_key, self.read)
