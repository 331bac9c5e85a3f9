"""Longformer's attention: near keys and global tokens; global tokens look everywhere, by matrices of their own.

    z_t = sum_s softmax_s(q_t . k_s / sqrt(d)) v_s             over near s, and global s;      t no global token
    z_g = sum_s softmax_s(q'_g . k'_s / sqrt(d)) v'_s          over all s;                     g a global token

q, k, v and q', k', v' are the two streams of a projection, local and global. Near are keys less than `window` steps
away, on both sides, a step being `dilation` positions. A global token that is near counts once, and meets others by its
local key and value. What the mask hides is hidden from all: in a causal text global tokens look back only, which no
paper has; the autoregressive Longformer has none, and is `Atrous(rate=…, window=…)` too.

Global are the first `n_global` tokens of every text, and those that a pass marks: `encoder(tokens, marked=…)`. Padding
is never global. Where n_global is None there are none, whatever the pass: heads have one query, key, value and pattern,
those of the window, and marks are refused.

Pattern: two per head and exact, P z = P v + P' v': that of local queries, with rows of zeros for global tokens, which
multiplies local values, and that of global tokens, which multiplies global ones. Rows of their sum sum to one. There is
no one pattern that multiplies the values of a head, unless n_global is None.
State: without `n_global`, local keys and values of the last (window - 1) dilation positions; with it, both streams of
all positions.
Cost: O(pos (window + tokens)) time and memory for so many global tokens; the projection makes both streams of every
position. Positions that add to scores, and several positions that continue a state, take the pattern.
Source: Beltagy et al. 2020, "Longformer: The Long-Document Transformer", section 3. Differs from the code of both
allenai/longformer and transformers in that texts are not filled up to a multiple of the window, and from transformers
in that heads may be dilated. Window: theirs is one-sided in allenai/longformer, w = window - 1, and two-sided in
transformers, attention_window = 2 (window - 1). Their global matrices start as copies of trained local ones; here they
are drawn.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.arguments import Count, Counts, Natural
from glassformer.attention.context import Context
from glassformer.attention.kernels.blocked import blocks_of
from glassformer.attention.kernels.classes import HeadsByRate, by_class
from glassformer.attention.kernels.fused import attend_masked, fused_softmax
from glassformer.attention.kernels.growing import append
from glassformer.attention.kernels.sparse import Tokens, met_by_all, near
from glassformer.attention.kernels.union import alike, union_softmax
from glassformer.attention.mechanisms.atrous import EveryNth
from glassformer.attention.mixer import Dims, KeyValue, Mixer, MixerConfig, Traits
from glassformer.attention.scores import masked_softmax, placed, products
from glassformer.errors import ConfigError
from glassformer.trace import Tape, site

# of layers without global tokens
LOCAL = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True, by_products=True)


@dataclass(frozen=True)
class Longformer(MixerConfig, kind="longformer"):
    """Attention to near keys and global tokens.

    Args:
        window: Each query sees keys less than this many steps away, on both sides.
        n_global: How many tokens at the start of a text are global, beside those that a pass marks; None if none ever
            are, so that heads have no second set of matrices.
        dilation: How many positions a step is. Several are those of heads, in their order, repeated until every head
            has one.
    """

    window: Count = 257
    n_global: Natural | None = 0
    dilation: Count | Counts = 1

    traits: ClassVar[Traits] = Traits(
        "grouped", has_scores=True, bilinear_scores=True, streams=2, share_width=False, value_streams=2
    )
    variants = (
        {"window": 2},
        {"window": 2, "n_global": 1},
        {"window": 3, "n_global": 2, "dilation": 2},
        {"window": 2, "dilation": (1, 2)},
        {"window": 2, "n_global": None},
    )

    def __post_init__(self) -> None:
        if self.n_global is None:
            object.__setattr__(self, "traits", LOCAL)

    @property
    def dilations(self) -> tuple[int, ...]:
        return self.dilation if isinstance(self.dilation, tuple) else (self.dilation,)

    @property
    def reach(self) -> int | None:
        return None if self.n_global else (self.window - 1) * max(self.dilations)

    @property
    def crosses(self) -> bool:
        return False

    @property
    def takes_marks(self) -> bool:
        return self.n_global is not None

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """Which tokens are global is read from numbers: a closed form then, of all pairs handed to kernels."""
        if not self.n_global:
            return super().flops(n_queries, n_keys, dims, causal)
        n, m, tokens = n_queries, n_keys, min(self.n_global, n_keys)
        if n != m:
            # of both streams, by way of the pattern
            seen = m if self.reach is None or n > 1 else min(m, self.reach + 1)
            return 2 * dims.n_heads * n * seen * 2 * (dims.d_head + dims.d_value)
        rows, back = blocks_of(self.window)
        pairs = 2 * dims.n_heads * n * tokens
        for rate, heads in HeadsByRate(self.dilations, dims.n_heads).heads.items():
            classes = min(n, rate)
            blocks = len(heads) * classes * math.ceil(math.ceil(n / classes) / rows)
            pairs += blocks * rows * rows * (1 + back * (1 if causal else 2))
        return pairs * 2 * (dims.d_head + dims.d_value)

    def state_numbers(self, length: int, dims: Dims) -> int:
        kept = length if self.reach is None else min(length, self.reach)
        return kept * dims.n_kv_heads * (dims.d_head + dims.d_value) * (2 if self.n_global else 1)


class LongformerMixer(Mixer, config=Longformer):
    config: Longformer

    def __init__(self, config: Longformer, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.by_rate = HeadsByRate(config.dilations, dims.n_heads)
        self.near = EveryNth(self.by_rate.rates, config.window)

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        scores = placed(products(q * self.scale, k, context), context)
        seen = self.visible(context, q.shape[-2], k.shape[-2])
        # a row has something to look at in one of the two
        return masked_softmax(site(tape, self.at.scores, scores.masked_fill(~seen, float("-inf"))))

    def visible(self, context: Context, n_queries: int, n_keys: int) -> Bool[Tensor, "b *stream h query key"]:
        looks = self.near.allows(*context.places(n_queries, n_keys, self.near))
        if self.config.n_global is None:
            self._refuse_marks(context)
            allowed = context.allowed(n_queries, n_keys)
            return looks if allowed is None else looks & allowed
        everywhere = torch.zeros_like(looks)
        if (tokens := self.global_tokens(context, n_keys)) is not None:
            everywhere = tokens[:, None, -n_queries:, None].expand(-1, *looks.shape[1:])
            looks = (looks | tokens[:, None, None]) & ~everywhere
        seen = torch.stack((looks, everywhere), 1)
        allowed = context.allowed(n_queries, n_keys)
        return seen if allowed is None else seen & allowed[:, None]

    def global_tokens(self, context: Context, n_keys: int) -> Bool[Tensor, "b key"] | None:
        """Return which of the last keys are global tokens; None if none are."""
        first = self.config.n_global or 0
        if first == 0 and context.marked is None:
            return None
        key = ("global tokens", first, n_keys)
        if key not in context.memo:
            found = context.key_positions[:, -n_keys:] < first
            found = found if context.marked is None else found | context.marked[:, -n_keys:]
            real = context.real_keys(n_keys, "longformer")
            context.memo[key] = found if real is None else found & real
        return context.memo[key]

    def _refuse_marks(self, context: Context) -> None:
        if context.marked is not None:
            raise ConfigError(
                f"layer {self.dims.layer} has no global tokens (longformer, n_global=None), and this pass marks some.\n"
                "    Leave `marked` out, or build the layer with n_global=0: marked tokens need matrices of their own."
            )

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        if self.config.n_global is None:
            self._refuse_marks(context)
            return self.by_rate.mixed(partial(self._of_heads, context, tokens=None), q, k, v)
        flags = self.global_tokens(context, q.shape[-2])
        tokens = None if flags is None else Tokens.marked(flags)

        of_rate = partial(self._of_heads, context, tokens=tokens)
        z = self.by_rate.mixed(of_rate, q[:, 0], k[:, 0], v[:, 0])
        return z if tokens is None else self._with_global(z, context, tokens, q[:, 1], k[:, 1], v[:, 1])

    def _of_heads(
        self,
        context: Context,
        rate: int,
        heads: slice | list[int],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        tokens: Tokens | None,
    ) -> Float[Tensor, "batch heads query d_value"]:
        """Return what some heads of a rate make of local queries; rows of global tokens mean nothing."""
        window, scale = self.config.window, self.scale
        if tokens is None:
            return by_class(partial(_window, scale=scale, size=window), context, rate, q, k, v)
        width, given = v.shape[-1], v.dtype
        q, k, v = alike(q, k, v)
        sets = [
            near(k, v, context, window, rate=rate),
            met_by_all(k, v, context, tokens, but=EveryNth((rate,), window).allows),
        ]
        return union_softmax(q, sets, scale)[..., :width].to(given)

    def _with_global(
        self, z: Tensor, context: Context, tokens: Tokens, q: Tensor, k: Tensor, v: Tensor
    ) -> Float[Tensor, "batch head query d_value"]:
        """Return z with rows of global tokens put in, which look at all that the mask allows."""
        keys = torch.arange(k.shape[-2], device=k.device)
        allowed = context.mask.allows(tokens.rows(context.mask.batch), tokens.at[:, None, :, None], keys)
        rows = attend_masked(tokens.of(q), k, v, allowed, self.scale)
        if not context.sees_itself:
            rows = rows.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
        return tokens.put(z, rows)

    def begin(self, batch: int, like: Tensor) -> KeyValue:
        if self.config.n_global != 0:
            return super().begin(batch, like)
        heads = self.dims.n_kv_heads
        return KeyValue(
            like.new_zeros(batch, heads, 0, self.dims.d_head), like.new_zeros(batch, heads, 0, self.dims.d_value)
        )

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Any, tape: Tape | None
    ) -> tuple[Tensor, Any]:
        if self.config.n_global != 0:
            return super().scan(q, k, v, x, context, state, tape)
        reach = self.config.reach
        (k, keys), (v, values) = append(state.key, k[:, 0], reach), append(state.value, v[:, 0], reach)
        # nobody reads the global ones
        k, v = (rows[:, None].expand(-1, 2, *rows.shape[1:]) for rows in (k, v))
        return self.parallel(q, k, v, x, context, tape), KeyValue(keys, values)


def _window(context: Context, q: Tensor, k: Tensor, v: Tensor, scale: float, size: int) -> Tensor:
    return fused_softmax(q, k, v, scale, context, size)
