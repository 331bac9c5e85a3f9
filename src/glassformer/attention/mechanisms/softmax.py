"""Scaled dot-product attention: each query averages values with softmax weights.

    z_t = sum_s softmax_s(q_t . k_s * scale + bias_ts) v_s

With a cap c, c tanh(q_t . k_s * scale / c) stands for the product: no score exceeds c, and scores are not bilinear;
they are in the order of the raw scores before the cap, which are.
With sinks, each head has one learned logit b that takes part in the normaliser and has no value,

    pattern_ts = exp(score_ts) / (exp(b) + sum_r exp(score_tr))

so that a head may attend to nothing; b = 0 is softmax with one added to its denominator. A temperature multiplies the
product, see `attention.temperature`.

The unscaled dot product, Luong's `dot`, is `Softmax(scale=1.0)`: what the scaled one makes of queries that are
sqrt(d_head) times as long, so the two do not compare at one learning rate.

Pattern: exact, non-negative, rows sum to one, with sinks to less; an all-zero row where nothing may be attended to.
State: keys and values of earlier positions, the last window - 1 of them if there is a window.
Cost: O(pos^2) time, O(pos) memory without the pattern; with a cap, and with an adaptive temperature in evaluation, the
pattern is made in any case.
Source: Vaswani et al. 2017, section 3.2; Luong et al. 2015, section 3.1, for the unscaled product; Shazeer 2019 and
Ainslie et al. 2023 for shared key/value heads; Gemma Team 2024, "Gemma 2", section 2, for the cap; Miller 2023,
"Attention Is Off By One", and OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2, for sinks.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from glassformer.attention.context import Context, Spread
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.scores import products
from glassformer.attention.softmax_weights import SoftmaxWeights, SoftmaxWeightsMixer
from glassformer.attention.temperature import AdaptiveTemperature, LearnedTemperature, LogN


@dataclass(frozen=True)
class Softmax(SoftmaxWeights, kind="softmax"):
    """Scaled dot-product attention; `scale=1.0` is the unscaled product, Luong's `dot`.

    Args:
        window: Each query sees keys less than this many positions away; None for all.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
        cap: Largest size of q . k * scale, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies q . k * scale.
    """

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True, by_products=True)
    variants = (
        {"window": 1},
        {"window": 3},
        {"scale": 1.0},
        {"cap": 0.5},
        {"sinks": True},
        {"sinks": True, "window": 3},
        {"temperature": LogN(4)},
        {"temperature": LogN(2, beyond=True), "window": 3, "sinks": True},
        {"temperature": LearnedTemperature(2.0)},
        {"temperature": AdaptiveTemperature()},
    )

    @property
    def spreads(self) -> bool:
        return self.window is None and self.cap is None and not self.sinks and self.temperature is None

    def of_heads(self, heads: range, n_heads: int) -> "Softmax | None":
        return self if not self.sinks and self.temperature is None else None

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form where all pairs are met: a pass without numbers loads torch's compiler first."""
        if self.window is None and not self.sinks:
            return self.all_pairs_flops(n_queries, n_keys, dims)
        return super().flops(n_queries, n_keys, dims, causal)


class SoftmaxMixer(SoftmaxWeightsMixer, config=Softmax):
    @property
    def takes_parts(self) -> bool:
        narrowed = self.config.limit is not None or self.config.rule is not None
        return self.sinks is None and not narrowed and not self.needs_scores

    def queries(
        self, q: Float[Tensor, "*lead head pos d_head"], context: Context | None = None, heads: slice = slice(None)
    ) -> Float[Tensor, "*lead head pos d_head"]:
        return self.tempered(q, context, heads)

    def scores(
        self, q: Float[Tensor, "batch head query d_head"], k: Float[Tensor, "batch head key d_head"], context: Context
    ) -> Float[Tensor, "batch head query key"]:
        return products(self.queries(q, context) * self.scale, k, context)

    def spread(self, q: Tensor, k: Tensor, v: Tensor, context: Context, spread: Spread) -> Tensor:
        return spread.softmax(q, k, v, self.scale, context.documents, context.dropout)

    mixed = SoftmaxWeightsMixer.fused
