"""Time mixing of RWKV-6: linear attention whose memory decays by channel, at a rate that each position says.

    z_t = S_{t-1}' r_t + (r_t . (u * k_t)) v_t,   S_t = diag(w_t) S_{t-1} + k_t v_t'
    w_t = exp(-exp(d + tanh(x_t A) B))

Queries are what the paper calls receptance, r. A position meets its own key with the bonus u of each channel, and what
was written before it as it stands: its own decay is for those behind it.
Pattern: signed, exact, rows do not sum to one: P_ts = sum_c r_tc k_sc (product of w_ic, s < i < t) where s < t, and
sum_c r_tc u_c k_tc where s = t.   State: d_head x d_value per head, float32.
Cost: O(pos (chunk (d_head + d_value) + d_head d_value)) time, O(1) state.   Forms: halves of the whole text (dense),
halves of chunks (fast), chunks or single steps on a memory (scan). Padding has k = 0 and w = 1.
Differs from the released code: token shift, norm and gate are slots of the layer, which `models.published_block` fills.
Its GroupNorm is there a root mean square of centred values, which is the same but for gains, here one for all heads,
where W_O holds the rest, and a bias, which is left out. Decays and bonus begin as they do there halfway up a stack.
Source: Peng et al. 2024, "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence" (2404.05892).
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.context import Causal, Context, Documents, Padding
from glassformer.attention.kernels.channel_decay import (
    channel_decay_chunks,
    channel_decay_flops,
    channel_decay_pattern,
    power_of_two,
)
from glassformer.attention.linear_map import LinearMap, linear
from glassformer.attention.merge import Merge
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, no_pattern, per_query_head
from glassformer.attention.projections import Shifted
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Tape, site


@dataclass(frozen=True)
class Rwkv6(MixerConfig, kind="rwkv6"):
    """Time mixing of RWKV-6.

    Args:
        rank: Width of the map from the input to what decays depend on of it.
        chunk: Rows per chunk, a power of two; changes speed, not results.
    """

    rank: Count = 64
    chunk: Count = 32

    traits: ClassVar[Traits] = Traits(reads_input=True)
    stores_keys: ClassVar[bool] = False
    wide_state: ClassVar[bool] = True
    variants = ({"chunk": 1, "rank": 3}, {"chunk": 4})

    def __post_init__(self) -> None:
        require(
            power_of_two(self.chunk) == self.chunk, f"rwkv6: chunk={self.chunk} is halved; use 1, 2, 4, 8, 16, 32, …."
        )

    @property
    def crosses(self) -> bool:
        return False

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return the slots of the paper's layer: all it reads shifted, each head's z normed, then gated."""
        merge = Merge(norm="head", eps=64e-5, gate="silu")
        return {"mixer": self, "projection": Shifted(rank=32, gate=True, centred=True), "merge": merge}

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form, linear in the number of queries: a text of many chunks is too long to walk."""
        maps = 2 * n_queries * self.rank * (dims.d_model + dims.n_heads * dims.d_head)
        return maps + dims.n_heads * channel_decay_flops(n_queries, dims.d_head, dims.d_value, self.chunk)

    def state_numbers(self, length: int, dims: Dims) -> int:
        return dims.n_heads * dims.d_head * dims.d_value


class Rwkv6State(NamedTuple):
    """Sum over earlier positions of k v', each channel as far as it has decayed."""

    memory: Float[Tensor, "batch head d_head d_value"]


class Rwkv6Mixer(Mixer, config=Rwkv6):
    SITES = MappingProxyType({"log_decay": "batch head pos d_head"})
    config: Rwkv6

    def __init__(self, config: Rwkv6, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        shape = dims.n_heads, dims.d_head
        channel = torch.arange(dims.n_heads * dims.d_head) / max(dims.n_heads * dims.d_head - 1, 1)
        # logarithm of the rate, from slow channels to quick ones
        self.rate = nn.Parameter((5 * channel**1.35 - 6).view(shape))
        zigzag = (torch.arange(dims.n_heads * dims.d_head) + 1) % 3 - 1
        self.bonus = nn.Parameter((0.5 * (1 - channel) + 0.1 * zigzag).view(shape))
        self.narrow = LinearMap(dims.d_model, config.rank, bias=False)
        self.widen = LinearMap(config.rank, dims.n_heads * dims.d_head, bias=False)

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        self._require_causal(context)
        log_keep, allowed = self._log_keep(x, context, tape), context.allowed(q.shape[-2], k.shape[-2])
        return channel_decay_pattern(wide(q), wide(k), log_keep, wide(self.bonus), allowed).to(q.dtype)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        self._require_causal(context)
        kinds = [type(term) for term in context.mask.terms]
        if not {*kinds} <= {Causal, Padding, Documents} or kinds.count(Documents) > 1:
            return self.dense(q, k, v, x, context, tape)
        return self._mix(q, k, v, x, context, q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), tape)[0]

    def scan(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Rwkv6State, tape: Tape | None):
        if self.wants_dense(tape):
            raise no_pattern(self)
        self._require_causal(context)
        context.mask.only(Causal, Padding, Documents, mechanism="rwkv6")
        z, memory = self._mix(q, k, v, x, context, state.memory, tape)
        return z, Rwkv6State(memory)

    def begin(self, batch: int, like: Tensor) -> Rwkv6State:
        dims, dtype = self.dims, torch.promote_types(like.dtype, torch.float32)
        return Rwkv6State(like.new_zeros(batch, dims.n_heads, dims.d_head, dims.d_value, dtype=dtype))

    def log_decay(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch head pos d_head"]:
        """Return the logarithm of what each channel keeps of the memory behind each position."""
        turned = linear(linear(wide(x), wide(self.narrow.weight)).tanh(), wide(self.widen.weight))
        rate = turned.unflatten(-1, self.rate.shape).transpose(1, 2) + wide(self.rate)[:, None]
        return -rate.exp()

    def _log_keep(self, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        """Return the same, which leaves the memory as it is where there is padding."""
        log_keep, real = site(tape, self.at.log_decay, self.log_decay(x)), self._real(x.shape[1], context)
        return log_keep if real is None else log_keep * real

    def _mix(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, memory: Tensor, tape: Tape | None
    ) -> tuple[Tensor, Tensor]:
        dtype, n, log_keep = q.dtype, q.shape[-2], self._log_keep(x, context, tape)
        q, k, v = wide(q), wide(per_query_head(k, q)), wide(per_query_head(v, q))
        real, memory = self._real(n, context), memory.to(q.dtype)
        k = k if real is None else k * real
        z, memory = channel_decay_chunks(
            q, k, v, log_keep, wide(self.bonus), memory, self.config.chunk, context.numbered(n)
        )
        return z.to(dtype), memory

    def _real(self, n: int, context: Context) -> Tensor | None:
        real = context.real_keys(n, "rwkv6")
        return None if real is None else real[:, None, :, None]

    def _require_causal(self, context: Context) -> None:
        if not context.looks_back:
            raise AnalysisUnavailable(
                f'layer {self.dims.layer}: "rwkv6" lets what was written decay position by position and is defined for '
                'causal self-attention only; use "linear" or "softmax" here.'
            )


def wide(u: Tensor) -> Tensor:
    """Return numbers in float32 at least: sums over long ranges lose their small terms in fewer bits."""
    return u.to(torch.promote_types(u.dtype, torch.float32))
