"""Neural long-term memory: a map from keys to values that learns while the text is read, by momentum and forgetting.

    S_t = eta_t S_{t-1} - theta_t grad |M(k_t) - v_t|^2,   M_t = (1 - alpha_t) M_{t-1} + S_t,   z_t = M_t(q_t)

Queries and keys are divided by their length. theta_t = rate sigmoid(x_t W + b), eta_t and alpha_t = sigmoid(x_t W + b)
with maps of their own, of each head. A position reads what it has written itself. Gradients are taken of the weights
with which the chunk of a position begins, counted from the beginning of its text: `chunk=1` is the recurrence as it
stands, and other lengths are other models. As the gradients of a chunk add up, `rate` is 1 / chunk where it is not
given: unit keys that are all alike are then not overshot, momentum aside. At first theta is half of that, eta .5 and
alpha .02.

M is a matrix for `linear_memory`, which begins as zero unless `learned_start`; for `neural_memory` it has `depth`
matrices, with an activation between them, and begins as learned.
Pattern: of `linear_memory` signed, exact, rows do not sum to one: z = P v, and P v + offset with a learned start
(`affine`); a column depends on all tokens from its own to the row's, as those of the delta rule do. `neural_memory` has
none: what it reads is no linear function of values.
State: per head, the numbers of M three times over (weights, momentum, weights at the start of the open chunk), float32.
Cost: O(pos (chunk d + chunk^2 + numbers of M)) time, O(1) state.   Forms: triangular system of the whole text (dense,
`linear_memory`), chunks (fast, scan). Padding is skipped: it reads zeros and leaves weights and momentum as they are.
Differs from the paper, which does not say how gates are made: ours are said above. Short convolutions with silu, the
norm of z and its gate are slots of the layer, which `models.published_block` fills; queries and keys have no scale.
Source: Behrouz, Zhong, Mirrokni 2025, "Titans: Learning to Memorize at Test Time" (2501.00663), section 3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.arguments import Count, Positive
from glassformer.attention.context import Causal, Context, Documents, Padding
from glassformer.attention.kernels.chunk_layout import chunk_layout, text_positions
from glassformer.attention.kernels.neural_memory import (
    Activation,
    Gates,
    LinearReading,
    MemoryState,
    linear_memory_reading,
    neural_memory,
    neural_memory_flops,
    recalled,
)
from glassformer.attention.linear_map import LinearMap, linear
from glassformer.attention.mechanisms.delta import unit, wide
from glassformer.attention.merge import Merge
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, no_pattern, per_query_head
from glassformer.attention.projections import Convolved
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Tape, site, wants

# what gates are at first: of the largest theta, eta, alpha
FIRST = (0.5, 0.5, 0.02)


@dataclass(frozen=True)
class _Memory(MixerConfig):
    """What both memories have.

    Args:
        chunk: Positions whose gradients are of the same weights.
        rate: The largest theta; 1 / chunk by default.
        eps: Added to the square of the length that queries and keys are divided by.
    """

    chunk: Count = 32
    rate: Positive | None = None
    eps: Positive = 1e-6

    stores_keys: ClassVar[bool] = False
    wide_state: ClassVar[bool] = True

    @property
    def crosses(self) -> bool:
        return False

    @property
    def largest_rate(self) -> float:
        """The largest theta."""
        return 1 / self.chunk if self.rate is None else self.rate

    def widths(self, dims: Dims) -> tuple[int, ...]:
        """Return the width of what the first matrix reads, and of what each gives."""
        return dims.d_head, dims.d_value

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return the slots of the paper's layer: convolutions with silu, each head's z normed, then gated."""
        merge = Merge(norm="head", gate="sigmoid")
        return {"mixer": self, "projection": Convolved(activation="silu"), "merge": merge}

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form, linear in the number of queries: a text of many chunks is too long to walk."""
        maps = 3 * 2 * n_queries * dims.d_model
        return dims.n_heads * (neural_memory_flops(n_queries, self.widths(dims), self.chunk) + maps)

    def state_numbers(self, length: int, dims: Dims) -> int:
        widths = self.widths(dims)
        return 3 * dims.n_heads * sum(a * b for a, b in pairwise(widths))


@dataclass(frozen=True)
class LinearMemory(_Memory, kind="linear_memory"):
    """A long-term memory of one matrix.

    Args:
        chunk: Positions whose gradients are of the same weights; part of the model.
        rate: The largest theta; 1 / chunk by default.
        eps: Added to the square of the length that queries and keys are divided by.
        learned_start: The matrix that a text begins with is learned, and not zero.
    """

    learned_start: bool = False

    traits: ClassVar[Traits] = Traits(reads_input=True)
    variants = ({"chunk": 1}, {"chunk": 3, "rate": 0.7})

    def __post_init__(self) -> None:
        if self.learned_start:
            object.__setattr__(self, "traits", replace(type(self).traits, linear_in_value="affine"))


@dataclass(frozen=True)
class NeuralMemory(_Memory, kind="neural_memory"):
    """A long-term memory of several matrices.

    Args:
        chunk: Positions whose gradients are of the same weights; part of the model.
        rate: The largest theta; 1 / chunk by default.
        eps: Added to the square of the length that queries and keys are divided by.
        depth: How many matrices there are.
        expansion: Width of what lies between two matrices, over that of keys.
        activation: Of what lies between.
    """

    depth: Count = 2
    expansion: Count = 2
    activation: Activation = "silu"

    traits: ClassVar[Traits] = Traits("no", reads_input=True)
    variants = ({"chunk": 4, "activation": "gelu"}, {"chunk": 3, "rate": 0.1, "expansion": 1})

    def __post_init__(self) -> None:
        require(self.depth > 1, 'neural_memory: depth=1 is one matrix, which has a pattern; use "linear_memory".')

    def widths(self, dims: Dims) -> tuple[int, ...]:
        return dims.d_head, *[self.expansion * dims.d_head] * (self.depth - 1), dims.d_value


class _MemoryMixer(Mixer):
    """Gates, the state, and the way through chunks; `activation` lies between matrices, if there are several."""

    SITES = MappingProxyType(dict.fromkeys(("rate", "log_momentum", "log_decay", "surprise"), "batch head pos"))
    READ_ONLY = MappingProxyType({"surprise": "it is measured, and nothing follows from it; edit rate instead."})
    config: _Memory
    activation: Activation = "silu"

    def __init__(self, config: _Memory, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.traits = config.traits
        self.gates = LinearMap(dims.d_model, 3 * dims.n_heads, bias=False)
        first = torch.tensor([[math.log(share / (1 - share))] for share in FIRST])
        self.gate_bias = nn.Parameter(first.repeat(1, dims.n_heads))

    def start(self, like: Tensor, d_value: int) -> Sequence[Float[Tensor, "head d_in d_out"]]:
        """Return the matrices that a text begins with, in the dtype of `like`, float32 at least."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it begins with")

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        return self._mix(q, k, v, x, context, self._begun(len(v), v, v.shape[-1]), tape)[0]

    def scan(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: MemoryState, tape: Tape | None):
        if self.wants_dense(tape):
            raise no_pattern(self)
        return self._mix(q, k, v, x, context, state, tape)

    def begin(self, batch: int, like: Tensor) -> MemoryState:
        return self._begun(batch, like, self.dims.d_value)

    def _begun(self, batch: int, like: Tensor, d_value: int) -> MemoryState:
        weights = tuple(x.expand(batch, *x.shape) for x in self.start(like, d_value))
        return MemoryState(weights, weights, tuple(torch.zeros_like(x) for x in weights))

    def gated(self, x: Float[Tensor, "batch pos d_model"], context: Context, tape: Tape | None) -> Gates:
        """Return theta and the logarithms of eta and of 1 - alpha, which leave all as it is where there is padding."""
        logits = linear(wide(x), wide(self.gates.weight)).mT.unflatten(1, (3, -1)) + wide(self.gate_bias)[..., None]
        rate, momentum, forget = logits.unbind(1)
        found = Gates(
            site(tape, self.at.rate, self.config.largest_rate * rate.sigmoid()),
            site(tape, self.at.log_momentum, F.logsigmoid(momentum)),
            site(tape, self.at.log_decay, F.logsigmoid(-forget)),
        )
        real = self._real(x.shape[1], context)
        return found if real is None else Gates(*(gate * real[:, None] for gate in found))

    def _mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: MemoryState, tape: Tape | None
    ) -> tuple[Tensor, MemoryState]:
        self._require_causal(context)
        dtype, n, batch = q.dtype, q.shape[-2], len(q)
        q, k, v = self.unit(q), per_query_head(self.unit(k), q), per_query_head(wide(v), q)
        gates, real = self.gated(x, context, tape), self._real(n, context)
        state = MemoryState(*(tuple(each.to(q.dtype) for each in part) for part in state))
        layout = chunk_layout(context, n, batch, self.config.chunk, real)
        start, wanted = self.start(v, v.shape[-1]), wants(tape, self.at.surprise)
        z, surprise, state = neural_memory(q, k, v, gates, state, start, layout, self.activation, wanted)
        if surprise is not None:
            site(tape, self.at.surprise, surprise)
        z = z if real is None else z * real[:, None, :, None]
        return z.to(dtype), state

    def recalled(
        self, q: Float[Tensor, "batch head pos d_head"], context: Context, state: MemoryState
    ) -> Float[Tensor, "batch head pos d_value"]:
        """Return what queries find in the memory as it was when their chunk began; nothing is written.

        Args:
            q: Queries of length one.
            context: Facts of the pass. Positions are of one chunk in each row.
            state: The memory before them.
        """
        self._require_causal(context)
        dtype, n, q = q.dtype, q.shape[-2], wide(q)
        real = self._real(n, context)
        state = MemoryState(*(tuple(each.to(q.dtype) for each in part) for part in state))
        layout = chunk_layout(context, n, len(q), self.config.chunk, real)
        return recalled(q, state, self.start(q, self.dims.d_value), layout, self.activation).to(dtype)

    def unit(self, u: Float[Tensor, "*lead d_head"]) -> Float[Tensor, "*lead d_head"]:
        """Return queries or keys of length one, in float32 at least."""
        return unit(u, self.config.eps)

    def _real(self, n: int, context: Context) -> Bool[Tensor, "b pos"] | None:
        return context.real_keys(n, str(self.config.kind))

    def _require_causal(self, context: Context) -> None:
        """Raise if what positions may know of each other is more than that later ones and other texts are hidden.

        What hides some earlier keys from some queries would have to say whose writes they miss.
        """
        kind = str(self.config.kind)
        if not context.looks_back:
            raise AnalysisUnavailable(
                f'layer {self.dims.layer}: "{kind}" learns one position after another and is defined for causal '
                'self-attention only; use "linear" or "softmax" here.'
            )
        context.mask.only(Causal, Padding, Documents, mechanism=kind)


class LinearMemoryMixer(_MemoryMixer, config=LinearMemory):
    def __init__(self, config: LinearMemory, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        shape = dims.n_heads, dims.d_head, dims.d_value
        self.matrix = nn.Parameter(drawn(*shape)) if config.learned_start else None

    def start(self, like: Tensor, d_value: int) -> Sequence[Tensor]:
        if self.matrix is not None:
            return [wide(self.matrix)]
        dtype = torch.promote_types(like.dtype, torch.float32)
        return [like.new_zeros(self.dims.n_heads, self.dims.d_head, d_value, dtype=dtype)]

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        return self._reading(self.unit(q), self.unit(k), x, context, tape).pattern.to(q.dtype)

    def dense(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        rows, keys, values = self.unit(q), self.unit(self.keys(k)), per_query_head(wide(v), q)
        found = self._reading(rows, keys, x, context, tape)
        if wants(tape, self.at.surprise):
            site(tape, self.at.surprise, found.surprise(keys, values))
        z = self.weighed(found.pattern.to(q.dtype), v, q, context, tape)
        return z if found.offset is None else z + found.offset.to(z.dtype)

    def _reading(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> LinearReading:
        self._require_causal(context)
        n = q.shape[-2]
        gates, allowed, real = self.gated(x, context, tape), context.allowed(n, n), self._real(n, context)
        start = None if self.matrix is None else wide(self.matrix)
        found = linear_memory_reading(q, k, gates, text_positions(context, n), self.config.chunk, allowed, start)
        if real is None:
            return found
        rows = real[:, None, :, None]
        offset = None if found.offset is None else found.offset * rows
        return found._replace(pattern=found.pattern * rows, offset=offset)


class NeuralMemoryMixer(_MemoryMixer, config=NeuralMemory):
    def __init__(self, config: NeuralMemory, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.activation = config.activation
        widths = config.widths(dims)
        self.matrices = nn.ParameterList([drawn(dims.n_heads, *pair) for pair in pairwise(widths)])

    def start(self, like: Tensor, d_value: int) -> Sequence[Tensor]:
        return [wide(x) for x in self.matrices]


def drawn(n_heads: int, d_in: int, d_out: int) -> Float[Tensor, "head d_in d_out"]:
    """Return matrices that keep the length of what they read, drawn at random."""
    return torch.randn(n_heads, d_in, d_out) * d_in**-0.5
