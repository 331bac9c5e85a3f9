"""The delta rule: linear attention whose write replaces the value stored for a key, with a gate or without.

    S_t = a_t S_{t-1} + b_t k_t (v_t - (a_t S_{t-1})' k_t)',   z_t = S_t' q_t / sqrt(d_head)

Queries and keys are divided by their length. b_t = sigmoid(x_t W_b), of each head; a_t = 1 for `delta`. For
`gated_delta`, a_t = exp(-exp(A) softplus(x_t W_a + c)): what is held fades first, and the write corrects what is left.
Pattern: signed, exact, rows do not sum to one: (Q K' * Gamma) (I + tril(B (K K' * Gamma), -1))^-1 B / sqrt(d_head),
where Gamma_ts is the product of a from s + 1 to t, and B has b on its diagonal. A column depends on all tokens from its
own to the row's, since each erases, and not on the pair alone.   State: d_head x d_value per head, float32.
Cost: O(pos (chunk (d_head + d_value) + d_head d_value)) time, O(1) state.   Forms: triangular system of the whole text
(dense), chunks (fast), chunks or single steps on a memory (scan). Padding has b = 0 and a = 1.
Differs from the reference code: its short convolutions with silu, its norm of z and its gate on that are slots of the
layer, which `models.published_block` fills; keys have as many heads as values.
Source: Schlag, Irie, Schmidhuber 2021 (2102.11174); Yang et al. 2024 (2406.06484); with a gate, Yang, Kautz,
Hatamizadeh 2024 (2412.06464).
"""

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count, Positive
from glassformer.attention.context import Causal, Context, Documents, Padding
from glassformer.attention.kernels.delta import delta_chunks, delta_flops, delta_pattern
from glassformer.attention.linear_map import LinearMap, linear
from glassformer.attention.merge import Merge
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, no_pattern, per_query_head
from glassformer.attention.projections import Convolved
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Tape, site

LARGEST_RATE, STEPS = 16.0, (1e-3, 0.1)  # a gate's rate and step are drawn below, and between, these


@dataclass(frozen=True)
class _DeltaRule(MixerConfig):
    """What both rules have.

    Args:
        negative_eigenvalues: b in (0, 2) and not (0, 1): above 1 a write turns what is held for a key around.
        eps: Added to the square of the length that queries and keys are divided by.
        chunk: Rows per chunk; changes speed, not results.
    """

    negative_eigenvalues: bool = False
    eps: Positive = 1e-6
    chunk: Count = 32

    traits: ClassVar[Traits] = Traits(reads_input=True)
    stores_keys: ClassVar[bool] = False
    wide_state: ClassVar[bool] = True
    variants = ({"chunk": 3}, {"negative_eigenvalues": True})
    gated: ClassVar[bool] = False

    @property
    def crosses(self) -> bool:
        return False

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form, linear in the number of queries: a text of many chunks is too long to walk."""
        maps = (2 if self.gated else 1) * 2 * n_queries * dims.d_model
        return dims.n_heads * (delta_flops(n_queries, dims.d_head, dims.d_value, self.chunk) + maps)

    def state_numbers(self, length: int, dims: Dims) -> int:
        return dims.n_heads * dims.d_head * dims.d_value


@dataclass(frozen=True)
class Delta(_DeltaRule, kind="delta"):
    """The delta rule.

    Args:
        negative_eigenvalues: b in (0, 2) and not (0, 1): above 1 a write turns what is held for a key around.
        eps: Added to the square of the length that queries and keys are divided by.
        chunk: Rows per chunk; changes speed, not results.
    """

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return the slots of the 2024 layer: convolutions with silu, and each head's z normed."""
        return {"mixer": self, "projection": Convolved(activation="silu"), "merge": Merge(norm="head")}


@dataclass(frozen=True)
class GatedDelta(_DeltaRule, kind="gated_delta"):
    """The delta rule with a gate that lets what is held fade.

    Args:
        negative_eigenvalues: b in (0, 2) and not (0, 1): above 1 a write turns what is held for a key around.
        eps: Added to the square of the length that queries and keys are divided by.
        chunk: Rows per chunk; changes speed, not results.
    """

    gated: ClassVar[bool] = True

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return the slots of the paper's layer: convolutions with silu, each head's z normed, then gated."""
        merge = Merge(norm="head", gate="silu")
        return {"mixer": self, "projection": Convolved(activation="silu"), "merge": merge}


class DeltaState(NamedTuple):
    """What is held for each direction that a key may have."""

    memory: Float[Tensor, "batch head d_head d_value"]


class _DeltaRuleMixer(Mixer):
    SITES = MappingProxyType({"beta": "batch head pos"})
    config: _DeltaRule

    def __init__(self, config: _DeltaRule, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.write = LinearMap(dims.d_model, dims.n_heads, bias=False)

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        self._documents(context)
        beta, log_keep = self._gates(x, context, tape)
        pattern = delta_pattern(self.unit(q), self.unit(k), beta, log_keep, context.allowed(q.shape[-2], k.shape[-2]))
        return (pattern * self.scale).to(q.dtype)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        if self._documents(context) > 1:
            return self.dense(q, k, v, x, context, None)
        return self._mix(q, k, v, x, context, q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), tape)[0]

    def scan(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: DeltaState, tape: Tape | None):
        if self.wants_dense(tape):
            raise no_pattern(self)
        self._documents(context)
        z, memory = self._mix(q, k, v, x, context, state.memory, tape)
        return z, DeltaState(memory)

    def begin(self, batch: int, like: Tensor) -> DeltaState:
        dims, dtype = self.dims, torch.promote_types(like.dtype, torch.float32)
        return DeltaState(like.new_zeros(batch, dims.n_heads, dims.d_head, dims.d_value, dtype=dtype))

    def unit(self, u: Float[Tensor, "*lead d_head"], length: float = 1.0) -> Float[Tensor, "*lead d_head"]:
        """Return queries or keys of length one, or of another, in float32 at least."""
        return unit(u, self.config.eps, length)

    def beta(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch head pos"]:
        """Return which share of what is held for its key each position replaces."""
        beta = linear(wide(x), wide(self.write.weight)).sigmoid().mT
        return 2 * beta if self.config.negative_eigenvalues else beta

    def log_decay(self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None) -> Tensor | None:
        """Return the logarithm of what each position keeps of the memory before it writes; None where that is all."""
        return None

    def _gates(self, x: Tensor, context: Context, tape: Tape | None) -> tuple[Tensor, Tensor | None]:
        """Return b and log a, which leave the memory as it is where there is padding."""
        beta, log_keep = site(tape, self.at.beta, self.beta(x)), self.log_decay(x, tape)
        real = context.real_keys(x.shape[1], str(self.config.kind))
        if real is not None:
            beta = beta * real[:, None]
            log_keep = None if log_keep is None else log_keep * real[:, None]
        return beta, log_keep

    def _mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, memory: Tensor, tape: Tape | None
    ) -> tuple[Tensor, Tensor]:
        dtype, rows = q.dtype, self.unit(q, self.scale)
        k, v = per_query_head(self.unit(k), q), per_query_head(wide(v), q)
        beta, log_keep = self._gates(x, context, tape)
        z, memory = delta_chunks(
            rows, k, v, beta, log_keep, memory.to(rows.dtype), self.config.chunk, context.numbered(q.shape[-2])
        )
        return z.to(dtype), memory

    def _documents(self, context: Context) -> int:
        """Return how many terms of the mask tell documents apart, once it is one that the rule can be read under.

        What hides some earlier keys from some queries would have to say whose erasures they miss.
        """
        kind = self.config.kind
        if not context.looks_back:
            raise AnalysisUnavailable(
                f'layer {self.dims.layer}: "{kind}" writes one position after another and is defined for causal '
                'self-attention only; use "linear" or "softmax" here.'
            )
        return len(context.mask.only(Causal, Padding, Documents, mechanism=str(kind))[Documents])


class DeltaMixer(_DeltaRuleMixer, config=Delta):
    """The rule as it is: all is kept until it is overwritten."""


class GatedDeltaMixer(_DeltaRuleMixer, config=GatedDelta):
    SITES = MappingProxyType({"beta": "batch head pos", "log_decay": "batch head pos"})

    def __init__(self, config: _DeltaRule, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.step = LinearMap(dims.d_model, dims.n_heads, bias=False)
        self.step_bias = nn.Parameter(drawn_step_biases(dims.n_heads))
        # none is zero, whose logarithm would be none
        self.log_rate = nn.Parameter((LARGEST_RATE * (1 - torch.rand(dims.n_heads))).log())

    def log_decay(self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None) -> Float[Tensor, "batch head pos"]:
        step = F.softplus(linear(wide(x), wide(self.step.weight), wide(self.step_bias)))
        return site(tape, self.at.log_decay, (-wide(self.log_rate).exp() * step).mT)


def drawn_step_biases(n: int) -> Float[Tensor, " n"]:
    """Return numbers whose softplus are steps, their logarithms drawn evenly between those of `STEPS`."""
    low, high = (math.log(step) for step in STEPS)
    step = (low + (high - low) * torch.rand(n)).exp()
    return step + (-torch.expm1(-step)).log()


def unit(u: Float[Tensor, "*lead d_head"], eps: float, length: float = 1.0) -> Float[Tensor, "*lead d_head"]:
    """Return rows of length one, or of another, in float32 at least; `eps` is added to the square of their own."""
    u = wide(u)
    # a norm keeps no square of each number, which a sum of squares does
    square = u.norm(dim=-1, keepdim=True).square()
    return u * ((square + eps).rsqrt() * length)


def wide(u: Tensor) -> Tensor:
    """Return numbers in float32 at least: a memory that is corrected again and again adds its roundings up."""
    return u.to(torch.promote_types(u.dtype, torch.float32))
