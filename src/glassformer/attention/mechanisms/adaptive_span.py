"""Adaptive span: each head learns how far it looks, and a short one costs less.

    m(x) = min(1, max(0, (ramp + z longest - x) / ramp))       x = t - s, how far a key lies back; z in [0, 1] per head
    pattern_ts = m(t - s) exp(score_ts) / sum_r m(t - r) exp(score_tr)

which is the softmax of score + log m. A head sees z longest positions in full and fades out over a ramp, through which
z has a gradient. Training adds `cost` times the mean of z longest to the loss, in nats, so that a head looks as far as
that is worth it. What leaves every head's span is neither computed nor kept.

Pattern: exact, non-negative, rows sum to one.
State: keys and values of as many positions as the furthest head of the layer sees, less one.
Cost: O(pos span) time and memory where the span is that of the furthest head, forwards and backwards.
Differs from the authors' code: a token sees itself, at full weight, where theirs begins with the token before; z is
kept in [0, 1] where it is used, and only a gradient that would lead back moves it from outside; nothing is added to the
normaliser; positions are the layer's, of any kind.
Source: Sukhbaatar et al. 2019, "Adaptive Attention Span in Transformers", section 2.2.
"""

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.arguments import Amount, Count, Share
from glassformer.attention.context import Context
from glassformer.attention.kernels.blocked import distances, is_blocked, windowed
from glassformer.attention.kernels.growing import append
from glassformer.attention.mixer import Dims, KeyValue, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.scores import masked_softmax, scaled_scores
from glassformer.trace import Tape, changes, site


@dataclass(frozen=True)
class AdaptiveSpan(MixerConfig, kind="adaptive_span"):
    """Attention whose heads learn how far they look.

    Args:
        longest: The furthest that a head may come to see in full, in positions.
        ramp: Positions over which it fades out; even a head whose z is 0 sees so many, its own among them.
        start: z of every head of a new model.
        cost: What training adds to the loss, in nats for each position of mean span.
    """

    longest: Count = 1024
    ramp: Count = 32
    start: Share = 0.0
    cost: Amount = 0.0

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True)
    learns_reach: ClassVar[bool] = True
    variants = ({"longest": 4, "ramp": 2}, {"longest": 3, "ramp": 1, "start": 1.0})

    @property
    def reach(self) -> int | None:
        """Earlier positions that any head may come to see."""
        return self.longest + self.ramp - 1

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """Both products over all pairs, in a closed form: how far a head sees is read from what it has learned."""
        return self.all_pairs_flops(n_queries, n_keys, dims)

    def keeps(self, length: int) -> bool:
        # what heads have learned is not known here
        return length <= self.ramp - 1


class AdaptiveSpanMixer(Mixer, config=AdaptiveSpan):
    SITES = MappingProxyType({"span": "head", "scores": "batch head query key"})
    LAZY = ("span",)

    config: AdaptiveSpan
    mixes_biased = mixes_continued = mixes_compiled = True

    def __init__(self, config: AdaptiveSpan, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.share = nn.Parameter(torch.full((dims.n_heads,), config.start))

    def span(self) -> Float[Tensor, " head"]:
        """Return how many positions each head sees in full, beside those on its ramp."""
        share = self.share.to(torch.promote_types(self.share.dtype, torch.float32))
        return _Within.apply(share) * self.config.longest  # type: ignore[operator]

    def reached(self) -> int:
        """Return how many positions the furthest head sees at all, its own among them."""
        if torch.compiler.is_compiling():
            # a compiled graph is the same for all spans
            return self.config.longest + self.config.ramp
        return int(self.span().detach().max().ceil()) + self.config.ramp

    def penalty(self) -> Float[Tensor, ""] | None:
        return None if self.config.cost == 0 else self.config.cost * self.span().mean()

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        span = site(tape, self.at.span, self.span())
        scores = site(tape, self.at.scores, scaled_scores(q, k, self.scale, context))
        faded = self._faded(_apart(scores), span).to(scores.dtype)
        changed = changes(tape, self.at.scores) or changes(tape, self.at.span)
        return masked_softmax(scores + faded, empty_rows=not context.sees_itself or changed)

    def normalised(
        self, scores: Float[Tensor, "*lead head query key"], *, empty_rows: bool = True, heads: slice = slice(None)
    ) -> Float[Tensor, "*lead head query key"]:
        faded = self._faded(_apart(scores), self.span()[heads]).to(scores.dtype)
        return masked_softmax(scores + faded, empty_rows=empty_rows)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        reached = self.reached()
        if not context.looks_back or not is_blocked(context, q.shape[-2], k.shape[-2], reached):
            return self.dense(q, k, v, q, context, None)
        faded = self._faded(distances(reached, q.device), self.span()).to(q.dtype)

        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            added = faded.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else faded + mask.to(q.dtype)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=self.scale)

        return windowed(q, per_query_head(k, q), per_query_head(v, q), context, reached, attend)

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Any, tape: Tape | None
    ) -> tuple[Tensor, Any]:
        kept = self.reached() - 1
        (k, keys), (v, values) = append(state.key, k, kept), append(state.value, v, kept)
        return self.parallel(q, k, v, x, context, tape), KeyValue(keys, values)

    def _faded(self, apart: Int[Tensor, "query key"], span: Float[Tensor, " head"]) -> Float[Tensor, "head query key"]:
        """Return log m: what is added to the scores of keys so far away."""
        m = ((self.config.ramp + span[:, None, None] - apart) / self.config.ramp).clamp(0.0, 1.0)
        # no gradient where m is 0, whose logarithm has none
        return torch.where(m > 0, m, 1.0).log().masked_fill(m == 0, -math.inf)


def _apart(scores: Float[Tensor, "*lead query key"]) -> Int[Tensor, "query key"]:
    """Return how far away each key is from each of the last queries."""
    (n, m), device = scores.shape[-2:], scores.device
    return (torch.arange(m - n, m, device=device)[:, None] - torch.arange(m, device=device)).abs()


class _Within(torch.autograd.Function):
    """Brings numbers into [0, 1]; outside, only a gradient that leads back passes."""

    @staticmethod
    def forward(ctx: Any, share: Tensor) -> Tensor:
        ctx.save_for_backward(share)
        return share.clamp(0.0, 1.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (share,), (gradient,) = ctx.saved_tensors, gradients
        outwards = ((share <= 0) & (gradient > 0)) | ((share >= 1) & (gradient < 0))
        return gradient.masked_fill(outwards, 0.0)
