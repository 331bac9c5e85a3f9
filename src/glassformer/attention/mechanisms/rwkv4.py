"""Time mixing of RWKV-4: a softmax over time that fades, of keys that no query is compared with.

    z_t = sigmoid(r_t) sum_s softmax(e_t)_s v_s,   e_ts = -(t - 1 - s) exp(d) + k_s for s < t,   e_tt = u + k_t

A head has one rate d and one bonus u; its receptance r and key k are one number each, or the sum of `d_head` numbers.
RWKV has as many heads as channels, each with a value of one number. Keys say how much of them is read by everybody, the
receptance how much a position reads at all.
Pattern: exact, non-negative, rows sum to sigmoid(r_t).   State: a mean of values and the logarithm of their weights'
sum per head, float32.   Cost: O(pos chunk d_value) time, O(1) state.   Forms: all pairs (dense), chunks (fast), chunks
or single steps on a mean (scan). Padding is skipped: it has no weight, and nothing fades by it.
Differs from the released code: receptance is the query, and its gate part of the pattern; the state is in two numbers
and not three. Rates and bonus begin as they do there halfway up a stack.
Source: Peng et al. 2023, "RWKV: Reinventing RNNs for the Transformer Era" (2305.13048), section 3.1.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.context import Causal, Context, Documents, Padding
from glassformer.attention.kernels.fading_softmax import (
    NOTHING,
    Mean,
    fading_scores,
    fading_softmax,
    fading_softmax_flops,
)
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, no_pattern, per_query_head
from glassformer.attention.projections import Shifted
from glassformer.attention.scores import masked_softmax
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Tape


@dataclass(frozen=True)
class Rwkv4(MixerConfig, kind="rwkv4"):
    """Time mixing of RWKV-4.

    Args:
        chunk: Rows per chunk; changes speed, not results.
    """

    chunk: Count = 16

    traits: ClassVar[Traits] = Traits(rows_lack_mass=True)
    stores_keys: ClassVar[bool] = False
    wide_state: ClassVar[bool] = True
    variants = ({"chunk": 1}, {"chunk": 3})

    @property
    def crosses(self) -> bool:
        return False

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return the slots of the paper's layer: all it reads is shifted."""
        return {"mixer": self, "projection": Shifted()}

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form, linear in the number of queries: a text of many chunks is too long to walk."""
        return dims.n_heads * fading_softmax_flops(n_queries, dims.d_value, self.chunk)

    def state_numbers(self, length: int, dims: Dims) -> int:
        return dims.n_heads * (dims.d_value + 1)


class Rwkv4State(NamedTuple):
    """The mean of earlier values by their weights, and the logarithm of what these sum to."""

    mean: Float[Tensor, "batch head d_value"]
    log_sum: Float[Tensor, "batch head"]


class Rwkv4Mixer(Mixer, config=Rwkv4):
    config: Rwkv4

    def __init__(self, config: Rwkv4, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        channel = torch.arange(dims.n_heads) / max(dims.n_heads - 1, 1)
        # logarithm of the rate, from slow heads to quick ones
        self.rate = nn.Parameter(8 * channel**1.35 - 5)
        self.bonus = nn.Parameter(math.log(0.3) + 0.5 * ((torch.arange(dims.n_heads) + 1) % 3 - 1))

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        self._require_causal(context)
        scores = fading_scores(self._summed(k), self.log_keep(), self._wide(self.bonus))
        allowed = context.allowed(q.shape[-2], k.shape[-2])
        scores = scores if allowed is None else scores.masked_fill(~allowed, float("-inf"))
        return (self._summed(q).sigmoid()[..., None] * masked_softmax(scores)).to(q.dtype)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        self._require_causal(context)
        kinds = [type(term) for term in context.mask.terms]
        if not {*kinds} <= {Causal, Padding, Documents} or kinds.count(Documents) > 1:
            return self.dense(q, k, v, x, context, None)
        return self._mix(q, k, v, context, self._empty(len(v), v, v.shape[-1]))[0]

    def scan(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Rwkv4State, tape: Tape | None):
        if self.wants_dense(tape):
            raise no_pattern(self)
        self._require_causal(context)
        context.mask.only(Causal, Padding, Documents, mechanism="rwkv4")
        return self._mix(q, k, v, context, state)

    def begin(self, batch: int, like: Tensor) -> Rwkv4State:
        return self._empty(batch, like, self.dims.d_value)

    def log_keep(self) -> Float[Tensor, " head"]:
        """Return what a score falls by with each position."""
        return -self._wide(self.rate).exp()

    def _empty(self, batch: int, like: Tensor, d_value: int) -> Rwkv4State:
        shape, dtype = (batch, self.dims.n_heads), torch.promote_types(like.dtype, torch.float32)
        return Rwkv4State(like.new_zeros(*shape, d_value, dtype=dtype), like.new_full(shape, NOTHING, dtype=dtype))

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, context: Context, state: Rwkv4State) -> tuple[Tensor, Rwkv4State]:
        n, key, value = q.shape[-2], per_query_head(k, q), self._wide(per_query_head(v, q))
        real, before = context.real_keys(n, "rwkv4"), Mean(*(part.to(value.dtype) for part in state))
        z, after = fading_softmax(
            self._summed(key), value, self.log_keep(), self._wide(self.bonus), before, real, self.config.chunk,
            context.numbered(n),
        )  # fmt: skip
        return (self._summed(q).sigmoid()[..., None] * z).to(q.dtype), Rwkv4State(*after)

    def _summed(self, u: Float[Tensor, "*lead d_head"]) -> Float[Tensor, " *lead"]:
        return self._wide(u).sum(-1)

    def _wide(self, u: Tensor) -> Tensor:
        # the rate and what it falls to are small differences of large numbers
        return u.to(torch.promote_types(u.dtype, torch.float32))

    def _require_causal(self, context: Context) -> None:
        if not context.looks_back:
            raise AnalysisUnavailable(
                f'layer {self.dims.layer}: "rwkv4" fades with distance into the past and is defined for causal '
                'self-attention only; use "softmax" here.'
            )
