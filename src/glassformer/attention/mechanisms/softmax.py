"""Scaled dot-product attention: each query averages values with softmax weights.

    z_t = sum_s softmax_s(q_t . k_s * scale + bias_ts) v_s

With a cap c, c tanh(q_t . k_s * scale / c) stands for the product: no score exceeds c, and scores are not bilinear.
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
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.kernels.growing import append
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits
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
    def crosses(self) -> bool:
        return self.window is None

    def build(self, dims: Dims, path: str) -> "SoftmaxMixer":
        return SoftmaxMixer(self, dims, path)

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        # the fused kernel computes masked pairs too; only a single step is spared what has left the window
        seen = n_keys if self.window is None or n_queries > 1 else min(n_keys, self.window)
        return super().flops(n_queries, seen, dims, causal)

    def state_numbers(self, length: int, dims: Dims) -> int:
        kept = length if self.window is None else min(length, self.window - 1)
        return super().state_numbers(kept, dims)

    def keeps(self, length: int) -> bool:
        return self.window is None or length < self.window


class KeyValue(NamedTuple):
    """Keys (as rotated when written) and values of earlier positions."""

    key: Float[Tensor, "batch kv_head key d_head"]
    value: Float[Tensor, "batch kv_head key d_value"]


class SoftmaxMixer(Mixer):
    config: Softmax

    def __init__(self, config: Softmax, dims: Dims, path: str) -> None:
        if config.cap is not None:
            self.SITES = {name: "batch head query key" for name in ("scores_raw", "scores")}
            self.LAZY = ("scores_raw",)
        super().__init__(config, dims, path)
        self.traits = replace(config.traits, rows_sum_to_one=not config.sinks, bilinear_scores=config.cap is None)
        self.sinks = nn.Parameter(torch.zeros(dims.n_heads)) if config.sinks else None

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        allowed = context.allowed(q.shape[-2], k.shape[-2], self.config.window)
        scores = (q * self.scale) @ k.mT
        if self.config.cap is not None:
            scores = site(tape, self.at.scores_raw, scores)
            scores = self.config.cap * (scores / self.config.cap).tanh()
        scores = site(tape, self.at.scores, placed(scores, context, allowed))
        return self.normalised(scores, empty_rows=not context.sees_itself or changes(tape, self.at.scores))

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

    def scan(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: KeyValue, tape: Tape | None):
        keep = None if self.config.window is None else self.config.window - 1
        (k, keys), (v, values) = append(state.key, k, keep), append(state.value, v, keep)
        # the pattern's rows are those of the new positions, over all keys that are still in the state
        return self.parallel(q, k, v, x, context, tape), KeyValue(keys, values)

    def begin(self, batch: int, like: Tensor) -> KeyValue:
        dims = self.dims
        return KeyValue(
            like.new_zeros(batch, dims.n_kv_heads, 0, dims.d_head),
            like.new_zeros(batch, dims.n_kv_heads, 0, dims.d_value),
        )

    @property
    def scale(self) -> float:
        return self.config.scale if self.config.scale is not None else self.dims.d_head**-0.5


def scaled_scores(q: Tensor, k: Tensor, scale: float, context: Context, allowed: Tensor | None) -> Tensor:
    """Return q . k * scale plus the position bias, -inf where attention is not allowed."""
    return placed((q * scale) @ k.mT, context, allowed)


def placed(scores: Tensor, context: Context, allowed: Tensor | None) -> Tensor:
    """Return scores plus the position bias, -inf where attention is not allowed; writes into the scores."""
    streams = scores.ndim == 5
    if context.bias is not None:
        bias = context.bias[..., -scores.shape[-1] :]
        scores = scores + (bias.unsqueeze(1) if streams else bias)
    if allowed is None:
        return scores
    allowed = allowed.unsqueeze(1) if streams else allowed
    # in place: they are new, and as large as anything in the model
    return scores.masked_fill_(~allowed, float("-inf"))


def masked_softmax(scores: Tensor, *, empty_rows: bool = True) -> Tensor:
    """Softmax over keys; a row with nothing to attend to becomes zero, not NaN.

    Without `empty_rows` there is no such row, and none is looked for: looking takes longer than the softmax.
    """
    # in float32 at least: bfloat16 loses the tail that head-level ablations measure
    wide = scores if scores.dtype == torch.float64 else scores.float()
    if not empty_rows:
        return wide.softmax(-1).to(scores.dtype)
    nothing = (wide == float("-inf")).all(-1, keepdim=True)
    pattern = wide.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    return pattern.to(scores.dtype)


def fused_softmax(
    q: Tensor, k: Tensor, v: Tensor, scale: float, context: Context, size: int | None = None
) -> Float[Tensor, "batch head pos d_value"]:
    """Return softmax attention by the library's fused kernel, without the pattern."""
    n, m = q.shape[-2], k.shape[-2]
    grouped = k.shape[-3] != q.shape[-3]
    bare = context.bias is None and context.is_causal and (size is None or m <= size)
    if bare and n == m:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    # the newest position sees every key, so a single step needs no mask
    allowed = None if bare and n == 1 else context.allowed(n, m, size)
    mask = _with_bias(allowed, m, q, context)
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    if allowed is None:
        return z
    return z.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


def fused_softmax_with_sinks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    context: Context,
    sinks: Float[Tensor, " head"],
    size: int | None = None,
) -> Float[Tensor, "batch head pos d_value"]:
    """Return the same with a sink per head: a key before all others, with a value of zero.

    Queries hold the sink's logit in one more dimension, in which that key alone is not zero.
    """
    n, m, width = q.shape[-2], k.shape[-2], v.shape[-1]
    grouped = k.shape[-3] != q.shape[-3]
    logit = (sinks / scale).to(q.dtype)[:, None, None].expand(*q.shape[:-1], 1)
    q, k = torch.cat((q, logit), -1), F.pad(k, (0, 1, 1, 0))
    k[..., 0, -1] = 1
    # kernels want values as wide as keys
    v = F.pad(v, (0, max(q.shape[-1] - width, 0), 1, 0))
    bare = context.bias is None and context.is_causal and (size is None or m <= size)
    if bare and n == m:
        # one more query, so that each sees one more key
        q = F.pad(q, (0, 0, 1, 0))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        return z[..., 1:, :width]
    allowed = None if bare and n == 1 else context.allowed(n, m, size)
    mask = _with_bias(allowed, m, q, context)
    if mask is not None:
        mask = F.pad(mask, (1, 0), value=True if mask.dtype == torch.bool else 0.0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)[..., :width]


def _with_bias(allowed: Tensor | None, n_keys: int, q: Tensor, context: Context) -> Tensor | None:
    """Return what a kernel takes for a mask: booleans, or the position bias, -inf where attention is not allowed."""
    if context.bias is None:
        return allowed
    bias = context.bias[..., -n_keys:].to(q.dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
