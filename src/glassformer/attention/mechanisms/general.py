"""General (multiplicative) attention: a matrix of each head stands between query and key.

    z_t = sum_s softmax_s(q_t W k_s * scale + bias_ts) v_s

W starts as the identity, so that a new layer is scaled dot-product attention; Luong's score has `scale=1.0`. Where
nothing comes between the projections and W, W_Q W W_K' is again a product of rank d_head: W says nothing that W_Q could
not say. Rotary positions come between: W lies behind them, so scores depend on both positions and not on their distance
alone, and there is no QK circuit by offset.

Pattern: exact, non-negative, rows sum to one, with sinks to less; an all-zero row where nothing may be attended to.
State: keys and values of earlier positions, the last window - 1 of them if there is a window.
Cost: that of softmax, and d_head^2 per query and head: queries go through W, and the fused route stays.
Source: Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation", section 3.1.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.softmax_weights import SoftmaxWeights, SoftmaxWeightsMixer
from glassformer.attention.temperature import AdaptiveTemperature, LearnedTemperature, LogN


@dataclass(frozen=True)
class General(SoftmaxWeights, kind="general"):
    """Attention by a bilinear form of each head; Luong's `general` with `scale=1.0`.

    Args:
        window: Each query sees keys less than this many positions away; None for all.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
        cap: Largest size of q W k * scale, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies q W k * scale.
    """

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True)
    variants = (
        {"scale": 1.0, "window": 3},
        {"cap": 0.5, "temperature": LearnedTemperature()},
        {"sinks": True, "temperature": LogN(4)},
        {"temperature": AdaptiveTemperature()},
    )


class GeneralMixer(SoftmaxWeightsMixer, config=General):
    by_offset = False

    def __init__(self, config: General, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.form = nn.Parameter(torch.eye(dims.d_head).repeat(dims.n_heads, 1, 1))

    def queries(
        self, q: Float[Tensor, "*lead head pos d_head"], context: Context | None = None, heads: slice = slice(None)
    ) -> Float[Tensor, "*lead head pos d_head"]:
        return self.tempered(q @ self.form[heads].to(q.dtype), context, heads)

    def scores(
        self, q: Float[Tensor, "batch head query d_head"], k: Float[Tensor, "batch head key d_head"], context: Context
    ) -> Float[Tensor, "batch head query key"]:
        # W is part of the score: positions that turn queries only when they meet keys do so before it
        return context.scores(self._score, self.tempered(q * self.scale, context), k)

    mixed = SoftmaxWeightsMixer.fused

    def _score(self, q: Tensor, k: Tensor) -> Float[Tensor, "batch head query key"]:
        return q @ self.form @ k.mT
