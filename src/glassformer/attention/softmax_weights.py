"""What mechanisms share that make weights of scores by softmax: mask, window, cap, sinks and temperature.

    pattern_ts = softmax_s(cap(factor * scale * score(q_t, k_s)) + bias_ts)

A mechanism says what a score is. If it is a product of what it makes of the query with the key, `fused` mixes values
without the pattern.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.arguments import Count, Positive
from glassformer.attention.context import Context, Rule
from glassformer.attention.kernels.fused import fused_softmax, fused_softmax_with_sinks
from glassformer.attention.mixer import Dims, Mixer, MixerConfig
from glassformer.attention.scores import masked_softmax, placed
from glassformer.attention.temperature import Temperature
from glassformer.config import UNSAID, require
from glassformer.trace import Tape, changes, site


@dataclass(frozen=True)
class SoftmaxWeights(MixerConfig):
    """Softmax of some score.

    Args:
        window: Each query sees keys less than this many positions away; None for all.
        scale: Factor on the scores; by default 1 / sqrt(d_head) if they are `scaled`, else 1.
        cap: Largest size of a score times its scale and temperature, approached smoothly; what positions add and the
            mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies scores.
    """

    window: Count | None = None
    scale: float | None = None
    cap: Positive | None = None
    sinks: bool = False
    temperature: Temperature | None = field(default=None, metadata={UNSAID: True})

    # whether scores grow with the width of a head, and are divided by its root
    scaled: ClassVar[bool] = True

    @property
    def rule(self) -> Rule | None:
        """Which keys it looks at of those that mask and `limit` allow; None for all."""
        return None

    @property
    def crosses(self) -> bool:
        # a rule goes by places, which those of another sequence are not
        return self.rule is None and super().crosses

    @property
    def limit(self) -> int | None:
        """How far apart a query and a key are at most, plus one; None for no limit."""
        return self.window

    @property
    def reach(self) -> int | None:
        return None if self.limit is None else self.limit - 1


class SoftmaxWeightsMixer(Mixer):
    """Softmax of what `scores` says, which has to be written; `mixed = fused` too, where that is a product."""

    config: SoftmaxWeights
    mixes_biased = mixes_continued = mixes_compiled = True

    def __init__(self, config: SoftmaxWeights, dims: Dims, path: str) -> None:
        if config.cap is not None:
            self.SITES = {name: "batch head query key" for name in ("scores_raw", "scores")}
            self.LAZY = ("scores_raw",)
        super().__init__(config, dims, path)
        bilinear, capped = config.traits.bilinear_scores, config.cap is not None
        self.traits = replace(
            config.traits,
            rows_sum_to_one=not config.sinks, rows_lack_mass=config.sinks,
            bilinear_scores=bilinear and not capped, capped_scores=bilinear and capped,
        )  # fmt: skip
        self.sinks = nn.Parameter(torch.zeros(dims.n_heads)) if config.sinks else None
        built = None if config.temperature is None else config.temperature.build(dims.n_heads, dims.d_head)
        self.temperature = built
        if built is not None and built.by_coordinate:
            require(
                self.traits.by_products,
                f'attention: a temperature by coordinate is of products of queries and keys; "{config.kind}" makes '
                'scores otherwise. Use LearnedTemperature(), one factor per head, or the mixer "softmax".',
            )
            # other queries with the same products have other coordinates
            self.traits = replace(self.traits, by_products=False)
            # nor does a rotation keep products of scaled coordinates
            self.by_offset = False  # type: ignore[misc]

    @property
    def scale(self) -> float:
        if self.config.scale is not None:
            return self.config.scale
        # not by super(), which compilers of models cannot see through
        return self.dims.d_head**-0.5 if self.config.scaled else 1.0

    @property
    def needs_scores(self) -> bool:
        """Whether something is done to scores that fused kernels know nothing of."""
        return self.config.cap is not None or (self.temperature is not None and self.temperature.reads_scores)

    def scores(
        self, q: Float[Tensor, "batch head query d_head"], k: Float[Tensor, "batch head key d_head"], context: Context
    ) -> Float[Tensor, "batch head query key"]:
        """Return the score of every query with every key, times scale and temperature."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a score is")

    def ruled(self, context: Context) -> Context:
        """Return the context with the mechanism's rule in it."""
        return context.ruled(self.config.rule)

    def visible(self, context: Context, n_queries: int, n_keys: int) -> Bool[Tensor, "b h query key"] | None:
        return self.ruled(context).allowed(n_queries, n_keys, self.config.limit)

    def tempered(
        self, rows: Float[Tensor, "*lead head query d"], context: Context | None, heads: slice = slice(None)
    ) -> Float[Tensor, "*lead head query d"]:
        """Return queries, or raw scores, times what the temperature multiplies their heads and positions by."""
        if self.temperature is None:
            return rows
        if (factor := self.temperature.of_heads()) is not None:
            rows = rows * factor[heads].to(rows.dtype)
        if self.temperature.by_query and context is not None:
            factor = self.temperature.of_queries(self.ruled(context), rows.shape[-2], self.config.limit)
            rows = rows * (factor if factor.shape[1] == 1 else factor[:, heads]).to(rows.dtype)
        return rows

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        scores = self.scores(q, k, context)
        if self.config.cap is not None:
            scores = self.capped(site(tape, self.at.scores_raw, scores))
        scores = site(tape, self.at.scores, placed(scores, self.ruled(context), self.config.limit))
        return self.normalised(scores, empty_rows=not context.sees_itself or changes(tape, self.at.scores))

    def capped(self, scores: Float[Tensor, "*n query key"]) -> Float[Tensor, "*n query key"]:
        return scores if self.config.cap is None else self.config.cap * (scores / self.config.cap).tanh()

    def normalised(
        self, scores: Float[Tensor, "*lead head query key"], *, empty_rows: bool = True, heads: slice = slice(None)
    ) -> Float[Tensor, "*lead head query key"]:
        wide = scores if scores.dtype == torch.float64 else scores.float()
        if self.sinks is not None:
            # no row is empty: there is always the sink, whose share is what the row lacks to one
            sink = self.sinks[heads].to(wide.dtype)[:, None, None].expand(*wide.shape[:-1], 1)
            wide, empty_rows = torch.cat((wide, sink), -1), False
        if self.temperature is not None:
            wide = self.temperature.sharpened(wide)
        pattern = masked_softmax(wide, empty_rows=empty_rows)
        return (pattern if self.sinks is None else pattern[..., :-1]).to(scores.dtype)

    def mixes(self, context: Context, q: Tensor, k: Tensor) -> bool:
        return not self.needs_scores and super().mixes(context, q, k)

    def fused(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        """Return z by the library's kernels, where products of q and k, times `scale`, are the scores."""
        return self.fused_heads(q, k, v, context, self.config.limit)

    def fused_heads(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, size: int | None, heads: Any = slice(None)
    ) -> Tensor:
        """Return the same of some heads, within a window of this size.

        Args:
            q: Queries.
            k: Keys.
            v: Values.
            context: Facts of the pass.
            size: How many of the rows given a key is away at most, plus one; None for no limit.
            heads: Which of the layer's heads queries are of.
        """
        if self.sinks is not None:
            return fused_softmax_with_sinks(q, k, v, self.scale, context, self.sinks[heads], size)
        return fused_softmax(q, k, v, self.scale, context, size)
