"""Segment recurrence: a text is read segment by segment, each beside a memory of what came before it.

    z_t = sum_s softmax_s(q_t . k_s * scale) v_s       over s <= t with s >= (t // segment) segment - memory

so that a query sees its own segment up to itself, and the `memory` positions before that. What lies further back comes
through the layers: each reaches `memory` positions beyond the last.

In training what is remembered is a constant: gradients stay within a segment, so that a row of several segments trains
as the same segments do that are read one after the other. The values are those of attention under this mask.

Pattern: exact, non-negative, rows sum to one; columns before a query's segment are the memory's.
State: keys and values of the last (segment - 1 + memory) positions, of which a segment's first query sees `memory`.
Cost: O(pos (segment + memory)) time and memory. Positions that make scores, as those of the paper do, or add to them,
and queries that continue a state, take the pattern.
Source: Dai et al. 2019, "Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context" (1901.02860), section
3.2. Differs from the released code in what is kept: keys and values in place of what the layer read, which is the same
as long as weights are. So W_K and W_V learn from their own segment alone, where theirs also learn from what is
remembered; and the memory of a row is made with the weights of this step, where theirs is of earlier steps. Segments
are counted from the beginning of each text, and nothing is remembered of another document.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.arguments import Count, Natural
from glassformer.attention.context import Context, Rule
from glassformer.attention.kernels.fused import attend_masked
from glassformer.attention.mechanisms.softmax import SoftmaxMixer
from glassformer.attention.mixer import Traits, per_query_head
from glassformer.attention.positions import RelativeSinusoids
from glassformer.attention.softmax_weights import SoftmaxWeights
from glassformer.attention.stored import weighed_stored
from glassformer.attention.temperature import LogN
from glassformer.trace import Tape, site


@dataclass(frozen=True)
class Segments(Rule):
    """Keys of a query's own segment, and so many before it."""

    segment: int
    memory: int

    by_distance: ClassVar[bool] = False

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        begin = q // self.segment * self.segment
        return (k >= begin - self.memory) & (k < begin + self.segment)

    def stored(self, q: Tensor, k: Tensor) -> Tensor:
        """Return whether a key at `k` lies before the segment of a query at `q`."""
        return k < q // self.segment * self.segment


@dataclass(frozen=True)
class SegmentRecurrence(SoftmaxWeights, kind="segment_recurrence"):
    """Attention within a segment of a text, and to a memory of what came before it.

    Args:
        window: Each query sees keys less than this many positions away besides; None for all.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
        cap: Largest size of q . k * scale, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies q . k * scale.
        segment: Positions of a segment.
        memory: How many positions before its segment a query sees.
    """

    segment: Count = 150
    memory: Natural = 150

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True, by_products=True)
    variants = (
        {"segment": 2, "memory": 3, "temperature": LogN(2)},
        {"segment": 3, "memory": 0},
        {"segment": 3, "memory": 2, "sinks": True},
    )

    @property
    def rule(self) -> Segments:
        return Segments(self.segment, self.memory)

    @property
    def reach(self) -> int:
        furthest = self.segment - 1 + self.memory
        return furthest if self.window is None else min(furthest, self.window - 1)

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        return {"mixer": self, "positions": RelativeSinusoids()}


class SegmentRecurrenceMixer(SoftmaxMixer, config=SegmentRecurrence):
    config: SegmentRecurrence  # type: ignore[assignment]
    mixes_biased = mixes_continued = mixes_compiled = False

    @property
    def takes_parts(self) -> bool:
        return False

    def stored(self, context: Context, n_queries: int, n_keys: int) -> Bool[Tensor, "b 1 query key"]:
        """Return which of the last keys are remembered, to each query."""
        rule = self.config.rule
        return rule.stored(*context.places(n_queries, n_keys, rule))

    def scores(self, q: Tensor, k: Tensor, context: Context) -> Float[Tensor, "batch head query key"]:
        scores = super().scores(q, k, context)
        if not self.training:
            return scores
        remembered = super().scores(q, k.detach(), context)
        return torch.where(self.stored(context, *scores.shape[-2:]), remembered, scores)

    def weighed(self, pattern: Tensor, v: Tensor, q: Tensor, context: Context, tape: Tape | None) -> Tensor:
        if not self.training:
            return super().weighed(pattern, v, q, context, tape)
        pattern = site(tape, self.at.pattern, pattern)
        pattern = F.dropout(pattern, context.dropout) if context.dropout > 0 else pattern
        return weighed_stored(pattern, per_query_head(v, q), self.stored(context, *pattern.shape[-2:]))

    def mixes(self, context: Context, q: Tensor, k: Tensor) -> bool:
        plain = self.sinks is None and self.config.window is None
        # segments are counted from where each text begins
        return plain and super().mixes(context, q, k) and all(text.first == 0 for text in context.texts(len(q)))

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        segment, memory, n = self.config.segment, self.config.memory, q.shape[-2]
        k, v = per_query_head(k, q), per_query_head(v, q)
        rows = torch.arange(context.mask.batch, device=q.device)[:, None, None, None]
        pieces: list[Tensor] = []
        for begin in range(0, n, segment):
            start, stop = max(begin - memory, 0), min(begin + segment, n)
            at, of_key = torch.arange(begin, stop, device=q.device)[:, None], torch.arange(start, stop, device=q.device)
            allowed = context.mask.allows(rows, at, of_key)
            key, value = (self._met(x, start, begin, stop) for x in (k, v))
            piece = attend_masked(q[..., begin:stop, :], key, value, allowed, self.scale)
            # of a row of nothing kernels say anything
            pieces.append(piece if context.sees_itself else piece.masked_fill(~allowed.any(-1, keepdim=True), 0.0))
        return torch.cat(pieces, -2)

    def _met(self, x: Tensor, start: int, begin: int, stop: int) -> Float[Tensor, "batch head key d"]:
        """Return keys or values of a segment behind those that are remembered, which training takes as constants."""
        if not self.training:
            return x[..., start:stop, :]
        return torch.cat((x[..., start:begin, :].detach(), x[..., begin:stop, :]), -2)
