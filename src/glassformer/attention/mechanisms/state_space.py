"""A selective state space with one decay a head: linear attention that fades by how long each token says it lasts.

    h_t = exp(step_t a) h_{t-1} + step_t k_t v_t',   z_t = h_t' q_t + d v_t

In the words of state spaces q is C, k is B, v is the input, step is Delta and d is D. step_t = softplus(x_t W + c), of
each head and within limits if there are any; a = -exp(A) < 0 and d are numbers of a head. What is held fades exactly as
its differential equation says, over a step; what is written is taken at the step's end (Euler), times the step.
Pattern: signed, exact, rows do not sum to one: (q_t . k_s) exp(a (step_{s+1} + … + step_t)) step_s where s <= t, and d
more where s = t.   State: d_head x d_value per head, float32; d_head is the width of the state space.
Cost: O(pos (chunk (d_head + d_value) + d_head d_value)) time, O(1) state.   Forms: left product (dense), chunks (fast),
chunks or single steps on a memory (scan). Padding neither fades nor writes: its step is 0.
Differs from the reference code: its short convolutions, queries and keys that groups of heads share, and its gate with
the norm behind that are slots of the layer, which `models.published_block` fills; limits of steps hold in every form.
Source: Dao, Gu 2024, "Transformers are SSMs" (2405.21060), sections 5 and 6, where it is Mamba-2 with its layer.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Amount, Count, Positive
from glassformer.attention.context import Causal, Context, Documents, Padding
from glassformer.attention.kernels.chunked import chunked_flops, gated
from glassformer.attention.kernels.decay import gates_decay
from glassformer.attention.linear_map import LinearMap, linear
from glassformer.attention.mechanisms.delta import drawn_step_biases, wide
from glassformer.attention.merge import Merge
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, no_pattern, per_query_head
from glassformer.attention.projections import Convolved
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Tape, site

RATES = (1.0, 16.0)  # -a is drawn between these


@dataclass(frozen=True)
class StateSpace(MixerConfig, kind="state_space"):
    """A selective state space.

    Args:
        shortest: No step is shorter.
        longest: No step is longer; None for no limit.
        bias: Bias on what steps read of the stream, beside that of the step itself, as layers have it whose maps do.
        chunk: Rows per chunk; changes speed, not results.
    """

    shortest: Amount = 0.0
    longest: Positive | None = None
    bias: bool = False
    chunk: Count = 32

    traits: ClassVar[Traits] = Traits(reads_input=True)
    stores_keys: ClassVar[bool] = False
    wide_state: ClassVar[bool] = True
    variants = ({"chunk": 3}, {"shortest": 0.5, "longest": 0.8}, {"bias": True})

    def __post_init__(self) -> None:
        require(
            self.longest is None or self.shortest < self.longest,
            f"state_space: shortest={self.shortest:g} is not below longest={self.longest}; no step would be between.",
        )

    @property
    def crosses(self) -> bool:
        return False

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return the slots of Mamba-2's layer: one query and key for all heads, and a norm behind the gate.

        Queries, keys and values pass convolutions with biases and silu.
        """
        projection = Convolved(groups=1, activation="silu", tap_bias=True)
        return {
            "mixer": self,
            "projection": projection,
            "merge": Merge(norm="all", gate="silu", norm_before_gate=False),
        }

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form, linear in the number of queries: a text of many chunks is too long to walk."""
        mixing = chunked_flops(n_queries, dims.d_head, dims.d_value, self.chunk)
        return dims.n_heads * (mixing + 2 * n_queries * dims.d_model)

    def state_numbers(self, length: int, dims: Dims) -> int:
        return dims.n_heads * dims.d_head * dims.d_value


class StateSpaceState(NamedTuple):
    """Sum over earlier positions of step k v', each faded by all steps since."""

    memory: Float[Tensor, "batch head d_head d_value"]


class StateSpaceMixer(Mixer, config=StateSpace):
    SITES = MappingProxyType({"step": "batch head pos", "log_decay": "batch head pos"})
    config: StateSpace

    def __init__(self, config: StateSpace, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        low, high = RATES
        self.step = LinearMap(dims.d_model, dims.n_heads, bias=config.bias)
        self.step_bias = nn.Parameter(drawn_step_biases(dims.n_heads))
        self.log_rate = nn.Parameter((low + (high - low) * torch.rand(dims.n_heads)).log())
        self.skip = nn.Parameter(torch.ones(dims.n_heads))

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        self._require_causal(context)
        step, log_keep = self._gates(x, context, tape)
        weight = wide(q) @ wide(k).mT
        decay = gates_decay(log_keep[:, :, None], None, weight[:, :, None])
        assert decay is not None, "positions say what they keep"
        weight = weight * decay.between[:, :, 0] * step[..., None, :]
        weight = weight + torch.diag_embed(wide(self.skip)[:, None].expand_as(step))
        allowed = context.allowed(q.shape[-2], k.shape[-2])
        return (weight if allowed is None else weight * allowed).to(q.dtype)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        self._require_causal(context)
        kinds = [type(term) for term in context.mask.terms]
        if not {*kinds} <= {Causal, Padding, Documents} or kinds.count(Documents) > 1:
            return self.dense(q, k, v, x, context, tape)
        return self._mix(q, k, v, x, context, q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), tape)[0]

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: StateSpaceState, tape: Tape | None
    ):
        if self.wants_dense(tape):
            raise no_pattern(self)
        self._require_causal(context)
        context.mask.only(Causal, Padding, Documents, mechanism=str(self.config.kind))
        z, memory = self._mix(q, k, v, x, context, state.memory, tape)
        return z, StateSpaceState(memory)

    def begin(self, batch: int, like: Tensor) -> StateSpaceState:
        dims, dtype = self.dims, torch.promote_types(like.dtype, torch.float32)
        return StateSpaceState(like.new_zeros(batch, dims.n_heads, dims.d_head, dims.d_value, dtype=dtype))

    def steps(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch head pos"]:
        """Return how long each position lasts."""
        bias = self.step_bias if self.step.bias is None else self.step_bias + self.step.bias
        step = F.softplus(linear(wide(x), wide(self.step.weight), wide(bias))).mT
        shortest, longest = self.config.shortest, self.config.longest
        return step if shortest == 0 and longest is None else step.clamp(shortest, longest)

    def _gates(self, x: Tensor, context: Context, tape: Tape | None) -> tuple[Tensor, Tensor]:
        """Return steps, and the logarithm of what each position keeps; none are taken where there is padding."""
        step = site(tape, self.at.step, self.steps(x))
        log_keep = site(tape, self.at.log_decay, -wide(self.log_rate).exp()[:, None] * step)
        real = context.real_keys(x.shape[1], str(self.config.kind))
        return (step, log_keep) if real is None else (step * real[:, None], log_keep * real[:, None])

    def _mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, memory: Tensor, tape: Tape | None
    ) -> tuple[Tensor, Tensor]:
        # the state is kept in float32 at least: sums over long ranges lose their small terms in bfloat16
        rows, k, v = wide(q), per_query_head(wide(k), q), per_query_head(wide(v), q)
        step, log_keep = self._gates(x, context, tape)
        real = context.real_keys(x.shape[1], str(self.config.kind))
        v = v if real is None else v * real[:, None, :, None]
        written, documents = step[..., None] * v, context.numbered(q.shape[-2])
        z, memory = gated(rows, k, written, log_keep, memory.to(rows.dtype), self.config.chunk, documents)
        return torch.addcmul(z, wide(self.skip)[:, None, None], v).to(q.dtype), memory

    def _require_causal(self, context: Context) -> None:
        if not context.looks_back:
            raise AnalysisUnavailable(
                f'layer {self.dims.layer}: "{self.config.kind}" fades with time and is defined for causal '
                'self-attention only; use "linear" or "softmax" here.'
            )
