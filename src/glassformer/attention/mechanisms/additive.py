"""Additive attention: a hidden layer of each head looks at query and key together.

    z_t = sum_s softmax_s(v . tanh(W_q q_t + W_k k_s + b) * scale + bias_ts) v_s

The v of the score is a vector of the head. No score is larger than the sum of the sizes of its numbers: with c for that
bound, no weight among M keys exceeds e^{2c} / (e^{2c} + M - 1). With normalised v, g v over its length stands for it, g
learned.

Differs from the paper, where queries are states of a recurrent network and weights start near zero, v at zero: here
they start at the size that keeps variance.

Pattern: exact, non-negative, rows sum to one, with sinks to less; an all-zero row where nothing may be attended to.
State: keys and values of earlier positions, the last window - 1 of them if there is a window.
Cost: O(pos^2 hidden) time, O(pos^2) memory: the hidden layer is made for a few queries at a time, and again for the
derivative. There is no fused form: a tanh of a sum is no product of something of the query with something of the key,
which is all that a fused kernel computes, so each pair costs hidden tanh where a product costs d_head multiply-adds: 20
to 40 times the fused product's time on a CPU, 256 to 512 tokens and 64 units, and 35 to 60 times with the derivative. A
single step projects all keys in the state anew.
Source: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate", appendix A.1.2;
Salimans and Kingma 2016, "Weight Normalization", for normalised v.
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
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.softmax_weights import SoftmaxWeights, SoftmaxWeightsMixer
from glassformer.attention.temperature import AdaptiveTemperature, LearnedTemperature, LogN


@dataclass(frozen=True)
class Additive(SoftmaxWeights, kind="additive"):
    """Bahdanau's additive attention.

    Args:
        window: Each query sees keys less than this many positions away; None for all.
        scale: Factor on the scores; 1 by default.
        cap: Largest size of a score, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies scores.
        hidden: Units of each head's hidden layer; d_head by default.
        bias: Whether the hidden layer has one.
        normalised: Divide v by its length, and multiply by a learned number that starts at 1 / sqrt(hidden).
    """

    hidden: Count | None = None
    bias: bool = True
    normalised: bool = False

    scaled: ClassVar[bool] = False
    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True)
    variants = (
        {"hidden": 3, "bias": False, "window": 3},
        {"normalised": True, "temperature": LearnedTemperature()},
        {"sinks": True, "cap": 0.5, "temperature": LogN(4)},
        {"temperature": AdaptiveTemperature()},
    )

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form: a few queries are scored at a time, which is too long to walk."""
        return hidden_flops(self.hidden or dims.d_head, n_queries, self.keys_met(n_queries, n_keys), dims)


def hidden_flops(hidden: int, n_queries: int, n_keys: int, dims: Dims) -> int:
    """Return the operations of scores by a hidden layer and of mixing by them: projections, sums over units, values."""
    projected = 2 * (n_queries + n_keys) * dims.d_head * hidden
    return dims.n_heads * (projected + 2 * n_queries * n_keys * (hidden + dims.d_value))


class AdditiveMixer(SoftmaxWeightsMixer, config=Additive):
    def __init__(self, config: Additive, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        heads, hidden = dims.n_heads, config.hidden or dims.d_head
        self.of_query, self.of_key = (nn.Parameter(torch.empty(heads, dims.d_head, hidden)) for _ in range(2))
        self.read = nn.Parameter(torch.empty(heads, hidden))
        self.bias = nn.Parameter(torch.zeros(heads, hidden)) if config.bias else None
        self.gain = nn.Parameter(torch.full((heads,), hidden**-0.5)) if config.normalised else None
        for parameter, width in ((self.of_query, dims.d_head), (self.of_key, dims.d_head), (self.read, hidden)):
            nn.init.normal_(parameter, std=1 / math.sqrt(width))

    def scores(
        self, q: Float[Tensor, "batch head query d_head"], k: Float[Tensor, "batch head key d_head"], context: Context
    ) -> Float[Tensor, "batch head query key"]:
        return self.tempered(context.scores(self._score, q, k) * self.scale, context)

    def _score(self, q: Tensor, k: Tensor) -> Float[Tensor, "batch head query key"]:
        k = k @ self.of_key
        return additive_scores(q @ self.of_query, k if self.bias is None else k + self.bias[:, None], self.reads())

    def reads(self) -> Float[Tensor, "head hidden"]:
        """Return v: what each head reads off its hidden layer."""
        if self.gain is None:
            return self.read
        return self.gain[:, None] * self.read / self.read.norm(dim=-1, keepdim=True)
