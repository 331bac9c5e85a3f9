"""Linear attention with one fixed decay per head, computed in chunks.

    z_t = sum_{s<=t} decay^(t-s) (q_t . k_s) v_s,   decay = exp(-slope)

No normaliser: the papers' layer RMS-norms z over all heads and gates it, which `Lightning()` alone does not;
`models.published_block` builds theirs.
Pattern: signed, exact, rows do not sum to one.   State: d_head x d_value per head, float32; with `Lrpe` twice that.
Cost: O(pos (chunk + d_head) d_value) time, O(1) state.   Forms: left product (dense), chunks (fast), recurrence (scan).
Differs from the reference code: slopes are a field of the config; `depth_slopes` has those that fall with depth.
Source: Qin et al. 2023 (2307.14995, Lightning Attention-1) and 2024 (2401.04658, Lightning Attention-2).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Amount, Count
from glassformer.attention.context import Causal, Context, Documents, Padding, Spread
from glassformer.attention.kernels.chunked import chunked, chunked_flops, decay_matrix
from glassformer.attention.merge import Merge
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, no_pattern, per_query_head
from glassformer.attention.positions import alibi_slopes
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Tape


@dataclass(frozen=True)
class Lightning(MixerConfig, kind="lightning"):
    """Lightning attention.

    Args:
        slopes: Decay of each head is exp(-slope); 2^(-8(h+1)/n_heads) by default.
        activation: Applied to queries and keys.
        chunk: Rows per chunk; changes speed, not results.
    """

    slopes: tuple[Amount, ...] | None = None
    activation: Literal["none", "silu"] = "silu"
    chunk: Count = 64

    traits: ClassVar[Traits] = Traits()
    stores_keys: ClassVar[bool] = False
    wide_state: ClassVar[bool] = True
    variants = ({"chunk": 1}, {"chunk": 3}, {"activation": "none"})

    @property
    def crosses(self) -> bool:
        return False

    @property
    def turns_features(self) -> bool:
        return True

    @property
    def spreads(self) -> bool:
        return True

    def slopes_of(self, n_heads: int) -> tuple[float, ...]:
        """Return the slope of each head."""
        return self.slopes or tuple(2 ** (-8 * (h + 1) / n_heads) for h in range(n_heads))

    def of_heads(self, heads: range, n_heads: int) -> "Lightning":
        return self.replace(slopes=self.slopes_of(n_heads)[heads.start : heads.stop])

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return mixer and merge of the papers' layer: z normed over all heads, then gated."""
        return {"mixer": self, "merge": Merge(norm="all", gate="sigmoid")}

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """A closed form, linear in the number of queries: a text of many chunks is too long to walk."""
        return dims.n_heads * chunked_flops(n_queries, dims.d_feature, dims.d_value, self.chunk)

    def state_numbers(self, length: int, dims: Dims) -> int:
        return dims.n_heads * dims.d_feature * dims.d_value


def depth_slopes(
    n_heads: int, layer: int, n_layers: int, rule: Literal["transnormer", "minimax"] = "transnormer"
) -> tuple[float, ...]:
    """Return slopes of heads that fall with depth, so that the last layer hardly decays.

        slope_h * (1 - layer / (n_layers - 1) + 1e-5)

    Args:
        n_heads: How many heads.
        layer: Depth of the layer, from 0.
        n_layers: How many layers.
        rule: Slopes of the first layer: `transnormer`, those of ALiBi; `minimax`, 2^(-8(h+1)/n_heads) whatever
            n_heads, and 1e-5 is added to n_layers - 1 too.

    Source: the released code of TransNormerLLM (Qin et al. 2023, whose paper states another schedule,
    8h / n_heads (1 - layer / n_layers)) and of MiniMax-01.
    """
    require(0 <= layer < n_layers, f"depth_slopes: layer {layer} of n_layers={n_layers}; use 0 to {n_layers - 1}.")
    if rule == "minimax":
        share = 1 - layer / (n_layers - 1 + 1e-5) + 1e-5
        return tuple(2 ** (-8 * (h + 1) / n_heads) * share for h in range(n_heads))
    share = 1 - layer / max(n_layers - 1, 1) + 1e-5
    return tuple(slope * share for slope in alibi_slopes(n_heads).tolist())


class LightningState(NamedTuple):
    """Sum over earlier positions of decay^(age) k v'."""

    memory: Float[Tensor, "batch head d_feature d_value"]


class LightningMixer(Mixer, config=Lightning):
    config: Lightning

    def __init__(self, config: Lightning, dims: Dims, path: str) -> None:
        found = dims.n_heads if config.slopes is None else len(config.slopes)
        require(found == dims.n_heads, f"lightning: {found} slopes for n_heads={dims.n_heads}.")
        super().__init__(config, dims, path)

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        self._require_causal(context)
        n, m = q.shape[-2], k.shape[-2]
        t = torch.arange(m, device=q.device)
        q_wide, k_wide = context.met(self._activate(q), self._activate(k))
        weight = (q_wide @ k_wide.mT) * decay_matrix(self.decay(q), t[m - n :], t)
        allowed = context.allowed(n, m)
        return (weight if allowed is None else weight * allowed).to(q.dtype)

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        self._require_causal(context)
        kinds = [type(term) for term in context.mask.terms]
        if not {*kinds} <= {Causal, Padding, Documents} or kinds.count(Documents) > 1:
            return self.dense(q, k, v, x, context, None)
        return self._mix(q, k, v, context, q.new_zeros(*q.shape[:2], self.dims.d_feature, v.shape[-1]))[0]

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: LightningState, tape: Tape | None
    ):
        if self.wants_dense(tape):
            raise no_pattern(self)
        self._require_causal(context)
        context.mask.only(Causal, Padding, Documents, mechanism="lightning")
        z, memory = self._mix(q, k, v, context, state.memory)
        return z, LightningState(memory)

    def begin(self, batch: int, like: Tensor) -> LightningState:
        dims, dtype = self.dims, torch.promote_types(like.dtype, torch.float32)
        return LightningState(like.new_zeros(batch, dims.n_heads, dims.d_feature, dims.d_value, dtype=dtype))

    def spread(self, q: Tensor, k: Tensor, v: Tensor, context: Context, spread: Spread) -> Tensor:
        of_queries, of_keys, v = self._features(q, k, v, context)
        return spread.linear(of_queries, of_keys, v, self.decay(of_queries), context.documents).to(q.dtype)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, context: Context, memory: Tensor) -> tuple[Tensor, Tensor]:
        of_queries, of_keys, v = self._features(q, k, v, context)
        documents, memory = context.numbered(q.shape[-2]), memory.to(v.dtype)
        z, memory = chunked(of_queries, of_keys, v, self.decay(of_queries), memory, self.config.chunk, documents)
        return z.to(q.dtype), memory

    def _features(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys with padding hidden, and values as they meet, by head."""
        # the state is kept in float32 at least: sums over long ranges lose their small terms in bfloat16
        k, v = per_query_head(self._activate(k), q), per_query_head(v, q)
        q, k = context.met(self._activate(q), k)
        real = context.real_keys(k.shape[-2], "lightning")
        k = k if real is None else k * real[:, None, :, None]
        return q, k, v.to(q.dtype)

    def _activate(self, u: Tensor) -> Tensor:
        u = u.to(torch.promote_types(u.dtype, torch.float32))
        return F.silu(u) if self.config.activation == "silu" else u

    def decay(self, like: Tensor) -> Float[Tensor, " head"]:
        """Return what each head keeps of its memory from one position to the next, on the device of `like`."""
        slopes = self.config.slopes_of(self.dims.n_heads)
        decay = torch.tensor(slopes, dtype=torch.float64, device=like.device).neg().exp()
        # never below float32: 0.996 is 1 - 2^-8, and bfloat16 has eight bits
        return decay.to(torch.promote_types(like.dtype, torch.float32))

    def _require_causal(self, context: Context) -> None:
        if not context.looks_back:
            raise AnalysisUnavailable(
                f'layer {self.dims.layer}: "lightning" decays with distance into the past and is defined for causal '
                'self-attention only; use "linear" or "softmax" here.'
            )
