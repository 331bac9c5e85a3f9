"""Local attention by chunks: a text is cut into chunks, and queries meet the keys of their own and of some beside it.

    z_t = sum_s softmax_s(q_t . k_s * scale) v_s          over s with t // chunk - s // chunk in [-after, before]

so that a query sees from `before` chunks to nearly one more behind it, by where it stands in its own. A window sees as
many from everywhere.

Pattern: exact, non-negative, rows sum to one.
State: keys and values of the last (before + 1) chunk - 1 positions.
Cost: O(pos chunk (before + 1 + after)) time and memory. Positions that add to scores or make them, and queries that
continue a state, take the pattern.
Source: Kitaev et al. 2020, "Reformer: The Efficient Transformer", whose models alternate it with hashed attention; the
chunks are those of google/trax and transformers. Chunks are counted from the beginning of each text.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, Natural
from glassformer.attention.context import Context, Rule
from glassformer.attention.kernels.blocked import chunked
from glassformer.attention.kernels.fused import attend_masked
from glassformer.attention.mechanisms.softmax import SoftmaxMixer
from glassformer.attention.mixer import Traits, per_query_head
from glassformer.attention.softmax_weights import SoftmaxWeights
from glassformer.attention.temperature import LogN


@dataclass(frozen=True)
class Chunks(Rule):
    """Keys of a query's own chunk and of some beside it."""

    chunk: int
    before: int
    after: int

    by_distance: ClassVar[bool] = False

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        apart = q // self.chunk - k // self.chunk
        return (apart <= self.before) & (apart >= -self.after)


@dataclass(frozen=True)
class LocalChunks(SoftmaxWeights, kind="local_chunks"):
    """Attention within a chunk of a text and to some chunks beside it.

    Args:
        window: Each query sees keys less than this many positions away besides; None for all.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
        cap: Largest size of q . k * scale, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies q . k * scale.
        chunk: Positions of a chunk.
        before: How many chunks before its own a query sees.
        after: How many chunks behind its own, in a text that is read both ways.
    """

    chunk: Count = 64
    before: Natural = 1
    after: Natural = 0

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True, by_products=True)
    variants = (
        {"chunk": 2, "temperature": LogN(2)},
        {"chunk": 3, "before": 0},
        {"chunk": 2, "before": 1, "after": 1, "sinks": True},
    )

    @property
    def rule(self) -> Rule:
        return Chunks(self.chunk, self.before, self.after)

    @property
    def reach(self) -> int:
        furthest = (self.before + 1) * self.chunk - 1
        return furthest if self.window is None else min(furthest, self.window - 1)


class LocalChunksMixer(SoftmaxMixer, config=LocalChunks):
    config: LocalChunks  # type: ignore[assignment]
    mixes_biased = mixes_continued = mixes_compiled = False

    @property
    def takes_parts(self) -> bool:
        return False

    def mixes(self, context: Context, q: Tensor, k: Tensor) -> bool:
        plain = self.sinks is None and self.config.window is None
        # chunks are counted from where each text begins
        return plain and super().mixes(context, q, k) and all(text.first == 0 for text in context.texts(len(q)))

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        config, after = self.config, 0 if context.looks_back else self.config.after
        attend = partial(attend_masked, scale=self.scale)
        k, v = per_query_head(k, q), per_query_head(v, q)
        return chunked(q, k, v, context, config.chunk, config.before, after, attend)
