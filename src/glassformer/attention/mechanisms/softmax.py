"""Scaled dot-product attention: each query averages values with softmax weights.

    z_t = sum_s softmax_s(q_t . k_s * scale + bias_ts) v_s

With a cap c, c tanh(q_t . k_s * scale / c) stands for the product: no score exceeds c, and scores are not bilinear;
they are in the order of the raw scores before the cap, which are.
With sinks, each head has one learned logit b that takes part in the normaliser and has no value,

    pattern_ts = exp(score_ts) / (exp(b) + sum_r exp(score_tr))

so that a head may attend to nothing; b = 0 is softmax with one added to its denominator.

Pattern: exact, non-negative, rows sum to one, with sinks to less; an all-zero row where nothing may be attended to.
State: keys and values of earlier positions, the last window - 1 of them if there is a window.
Cost: O(pos^2) time, O(pos) memory without the pattern; with a cap the pattern is made in any case.
Source: Vaswani et al. 2017, section 3.2; Shazeer 2019 and Ainslie et al. 2023 for shared key/value heads; Gemma Team
2024, "Gemma 2", section 2, for the cap; Miller 2023, "Attention Is Off By One", and OpenAI 2025, "gpt-oss-120b &
gpt-oss-20b Model Card", section 2, for sinks.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.kernels.fused import fused_softmax, fused_softmax_with_sinks
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits
from glassformer.attention.scores import masked_softmax, placed, products
from glassformer.config import require
from glassformer.trace import Tape, changes, site


@dataclass(frozen=True)
class Softmax(MixerConfig, kind="softmax"):
    """Scaled dot-product attention.

    Args:
        window: Each query sees keys less than this many positions away; None for all.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
        cap: Largest size of q . k * scale, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
    """

    window: int | None = None
    scale: float | None = None
    cap: float | None = None
    sinks: bool = False

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True)
    variants = (
        {"window": 1},
        {"window": 3},
        {"scale": 1.0},
        {"cap": 0.5},
        {"sinks": True},
        {"sinks": True, "window": 3},
    )

    def __post_init__(self) -> None:
        require(self.window is None or self.window >= 1, f"softmax: window must be at least 1, found {self.window}.")
        require(self.cap is None or self.cap > 0, f"softmax: cap must be positive, found {self.cap}.")

    @property
    def reach(self) -> int | None:
        return None if self.window is None else self.window - 1

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        # the fused kernel computes masked pairs too; only a single step is spared what has left the window
        seen = n_keys if self.window is None or n_queries > 1 else min(n_keys, self.window)
        return super().flops(n_queries, seen, dims, causal)


class SoftmaxMixer(Mixer, config=Softmax):
    config: Softmax

    def __init__(self, config: Softmax, dims: Dims, path: str) -> None:
        if config.cap is not None:
            self.SITES = {name: "batch head query key" for name in ("scores_raw", "scores")}
            self.LAZY = ("scores_raw",)
        super().__init__(config, dims, path)
        self.traits = replace(
            config.traits,
            rows_sum_to_one=not config.sinks, rows_lack_mass=config.sinks,
            bilinear_scores=config.cap is None, capped_scores=config.cap is not None,
        )  # fmt: skip
        self.sinks = nn.Parameter(torch.zeros(dims.n_heads)) if config.sinks else None

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        scores = products(q * self.scale, k, context)
        if self.config.cap is not None:
            scores = self.capped(site(tape, self.at.scores_raw, scores))
        scores = site(tape, self.at.scores, placed(scores, context, self.config.window))
        return self.normalised(scores, empty_rows=not context.sees_itself or changes(tape, self.at.scores))

    def capped(self, scores: Tensor) -> Tensor:
        return scores if self.config.cap is None else self.config.cap * (scores / self.config.cap).tanh()

    def normalised(self, scores: Tensor, *, empty_rows: bool = True) -> Tensor:
        """Return the pattern of scores; see `masked_softmax`."""
        if self.sinks is None:
            return masked_softmax(scores, empty_rows=empty_rows)
        # no row is empty: there is always the sink, whose share is what the row lacks to one
        wide = scores if scores.dtype == torch.float64 else scores.float()
        sink = self.sinks.to(wide.dtype)[:, None, None].expand(*wide.shape[:-1], 1)
        return torch.cat((wide, sink), -1).softmax(-1)[..., :-1].to(scores.dtype)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        if self.config.cap is not None:
            # the fused kernel knows no cap
            return self.dense(q, k, v, x, context, tape)
        if self.sinks is not None:
            return fused_softmax_with_sinks(q, k, v, self.scale, context, self.sinks, self.config.window)
        return fused_softmax(q, k, v, self.scale, context, self.config.window)

    @property
    def scale(self) -> float:
        return self.config.scale if self.config.scale is not None else self.dims.d_head**-0.5
