"""Sparse attention: near keys and a few far ones, in one softmax; a key that is both counts once.

    z_t = sum_s softmax_s(q_t . k_s * scale + bias_ts) v_s    over

    strided    s with abs(t - s) < window, or (t - s) mod stride = 0
    fixed      s in t's block of `stride`, floor(s / stride) = floor(t / stride), or among the last `summary` keys of
               any block, s mod stride >= stride - summary

Strided is local and atrous attention together: with window = 1 it is atrous attention. In Child et al. the window is
as wide as the stride, which is meant here where none is given. They also give the two halves to heads of their own, or
to layers in turn; layers in turn are `Softmax(window=stride + 1)` and `Atrous(rate=stride)`.

Pattern: exact, non-negative, rows sum to one, with sinks to less; an all-zero row where nothing may be attended to.
State: keys and values of earlier positions. A step reads those it looks at.
Cost: O(pos (window + pos / stride)) time, O(pos summary pos / stride) for fixed; O(pos) memory without the pattern, and
the masks. What goes through the mask of all pairs: texts of two strides and less, several positions that continue a
state, and fixed blocks in rows that are padded on the left. With a cap, and with an adaptive temperature in evaluation,
the pattern is made in any case.
Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", sections 4.2 and 4.3; Su 2019, "Born to
economise: from standard to sparse attention" (kexue.fm/archives/6853), whose abs(t - s) <= w is window = w + 1. Differs
from Su's code, in which local keys are dilated too and the token itself counts twice.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.attention.context import Context, Mask, Rule
from glassformer.attention.kernels import sparse
from glassformer.attention.kernels.union import alike, union_softmax
from glassformer.attention.mechanisms.softmax import SoftmaxMixer
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.softmax_weights import SoftmaxWeights
from glassformer.attention.temperature import LogN
from glassformer.config import require


@dataclass(frozen=True)
class Strided(Rule):
    """Keys within a window, and those at multiples of the stride."""

    stride: int
    window: int

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k).abs() < self.window) | ((q - k) % self.stride == 0)


@dataclass(frozen=True)
class Fixed(Rule):
    """Keys of one's own block, and the last ones of every block."""

    stride: int
    summary: int

    by_distance: ClassVar[bool] = False

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return (q // self.stride == k // self.stride) | (k % self.stride >= self.stride - self.summary)


@dataclass(frozen=True)
class Sparse(SoftmaxWeights, kind="sparse"):
    """Attention to near keys and a few far ones.

    Args:
        window: Strided: keys less than this many positions away are all looked at; the stride by default.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
        cap: Largest size of q . k * scale, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies q . k * scale.
        form: Which far keys there are.
        stride: How many positions lie from one far key to the next, or the length of a block; near the root of the
            length.
        summary: Fixed: how many keys at the end of a block all others look at.
    """

    form: Literal["strided", "fixed"] = "strided"
    stride: Count = 128
    summary: int = 8

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True, by_products=True)
    variants = (
        {"stride": 2, "window": 1},
        {"stride": 3, "window": 2, "sinks": True},
        {"stride": 3, "window": 5, "temperature": LogN(2)},
        {"stride": 2, "cap": 0.5},
        {"form": "fixed", "stride": 2, "summary": 1},
        {"form": "fixed", "stride": 3, "summary": 2, "sinks": True, "temperature": LogN(2)},
    )

    def __post_init__(self) -> None:
        require(
            self.form == "strided" or 1 <= self.summary <= self.stride,
            f"sparse: summary must be from 1 to the stride, {self.stride}, found {self.summary}.",
        )
        require(
            self.form == "strided" or self.window is None,
            f'sparse: blocks of form "fixed" have no window, found {self.window}; leave it out, or use form "strided".',
        )

    @property
    def rule(self) -> Strided | Fixed:
        return Strided(self.stride, self.near) if self.form == "strided" else Fixed(self.stride, self.summary)

    @property
    def near(self) -> int:
        """The window."""
        return self.stride if self.window is None else self.window

    @property
    def limit(self) -> None:
        return None

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """Which keys a single step looks at is read from numbers: it has a closed form, of the pairs that it makes."""
        if not 1 == n_queries < n_keys:
            return super().flops(n_queries, n_keys, dims, causal)
        near, each = (self.near, 1) if self.form == "strided" else (self.stride, self.summary)
        pairs = min(n_keys, near + n_keys // self.stride * each)
        return dims.n_heads * pairs * 2 * (dims.d_head + dims.d_value)


class SparseMixer(SoftmaxMixer, config=Sparse):
    def __init__(self, config: Sparse, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.settings = config

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        n, m, given, context = q.shape[-2], k.shape[-2], v.dtype, self.ruled(context)
        if n == 1 < m and context.first is not None and not torch.compiler.is_compiling():
            return self._step(context, q, k, v)
        if n != m or n <= 2 * self.settings.stride or not self._begins_a_block(context):
            return self.fused(context, q, k, v)
        settings, width = self.settings, v.shape[-1]
        q, k, v = alike(q, k, v)
        if settings.form == "strided":
            sets = sparse.strided(k, v, context, settings.stride, settings.near)
        else:
            sets = sparse.fixed(k, v, context, settings.stride, settings.summary)
        return union_softmax(q, sets, self.scale, self.sinks)[..., :width].to(given)

    def _begins_a_block(self, context: Context) -> bool:
        """Whether the first position of every row is the first of a block, if there are blocks."""
        if self.settings.form == "strided":
            return True
        if context.first is not None:
            return context.first % self.settings.stride == 0
        if torch.compiler.is_compiling():
            return False
        first = context.positions[:, :1]
        counted = first + torch.arange(context.positions.shape[-1], device=first.device)
        return bool((first % self.settings.stride == 0).all() and (context.positions == counted).all())

    def _step(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return z of one position, from the keys that it looks at."""
        m = k.shape[-2]
        key = ("looked at", m, self.settings.rule)
        if key not in context.memo:
            allowed = context.allowed(1, m)
            assert allowed is not None, "there is a rule"
            # one row for all: their positions count up from one number
            context.memo[key] = allowed[0, 0, 0].nonzero()[:, 0] if len(allowed) == 1 else None
        if (looked_at := context.memo[key]) is None:
            return self.fused(context, q, k, v)
        positions = context.key_positions[:, -m:][:, looked_at]
        bare = replace(context, mask=Mask(), key_positions=positions, first=None, rule=None, memo={})
        return self.fused(bare, q, k.index_select(-2, looked_at), v.index_select(-2, looked_at))
