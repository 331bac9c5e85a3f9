"""Softmax attention with persistent tokens: keys and values that are learned, and stand before every text.

    z_t = sum_s w_ts v_s + sum_p w_tp v'_p,    w_t = softmax of q_t . k_s * scale + bias_ts and of q_t . k'_p * scale

They are of no text: every position sees all of them, whatever its window, and no position turns or biases them.
Queries that rotary positions have turned meet them as keys at position 0. A head that has nothing to look at rests on
them; with no other key they are a feed-forward layer whose activation is a softmax, W_2 softmax(W_1 q).

Pattern: of the text's keys, non-negative, rows sum to less than one; z = P v + offset, where the offset is what is
taken from persistent tokens and knows no value of the text (`affine`). The site `persistent` is their share of rows.
State: keys and values of earlier positions, the last window - 1 of them if there is a window.
Cost: that of softmax, with `tokens` keys more for each query.
Differs from models that put learned vectors before the text: their keys and values are learned themselves, in each
layer, as in the second paper. With a window this is the attention of Titans' gated and layered models.
Source: Behrouz, Zhong, Mirrokni 2025, "Titans" (2501.00663), section 3.3; Sukhbaatar et al. 2019, "Augmenting
Self-attention with Persistent Memory" (1907.01470), section 4.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention.context import Context
from glassformer.attention.kernels.fused import fused_softmax_with_prefix
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.scores import masked_softmax, placed, products
from glassformer.errors import AnalysisUnavailable
from glassformer.trace import Tape, site


@dataclass(frozen=True)
class Persistent(MixerConfig, kind="persistent"):
    """Softmax attention with persistent tokens.

    Args:
        tokens: How many there are.
        window: Each query sees keys less than this many positions away, and all persistent tokens; None for all.
    """

    tokens: Count = 4
    window: Count | None = None

    traits: ClassVar[Traits] = Traits("affine", has_scores=True, bilinear_scores=True)
    has_own_keys: ClassVar[bool] = True
    variants = ({"window": 1, "tokens": 1}, {"window": 3})

    @property
    def reach(self) -> int | None:
        return None if self.window is None else self.window - 1


class PersistentMixer(Mixer, config=Persistent):
    SITES = MappingProxyType({"persistent": "batch head query"})
    LAZY = ("persistent",)
    READ_ONLY = MappingProxyType({"persistent": "it is what rows lack to one; edit scores or pattern instead."})
    config: Persistent
    mixes_biased = mixes_continued = mixes_compiled = True

    def __init__(self, config: Persistent, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        # of the size of projected ones, so that they take their share of the first rows
        self.key = nn.Parameter(torch.randn(dims.n_kv_heads, config.tokens, dims.d_head))
        self.value = nn.Parameter(torch.randn(dims.n_kv_heads, config.tokens, dims.d_value) * 0.02)

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        return self._patterns(q, k, context, tape)[0]

    def dense(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        pattern, prefix = self._patterns(q, self.keys(k), context, tape)
        return self.weighed(pattern, v, q, context, tape) + prefix @ per_query_head(self.value[None], q)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        prefix = self.key.to(q.dtype)[None], self.value.to(q.dtype)[None]
        z = fused_softmax_with_prefix(q, k, v, self.scale, context, prefix, self.config.window)
        return z if context.sees_itself else z * (context.visible(q.shape[-2], self.config.window) > 0)[..., None]

    def normalised(self, scores: Tensor, *, empty_rows: bool = True, heads: slice = slice(None)) -> Tensor:
        raise AnalysisUnavailable(
            f'layer {self.dims.layer}: "persistent" also weighs tokens that are of no text, by scores of their own: '
            "scores of a text's keys alone make no pattern.\n"
            f'    Read "{self.at.pattern}" of a run.'
        )

    def _patterns(
        self, q: Tensor, k: Tensor, context: Context, tape: Tape | None
    ) -> tuple[Float[Tensor, "batch head query key"], Float[Tensor, "batch head query token"]]:
        """Return the weights of keys, and of persistent tokens; zeros where no key may be attended to."""
        scores = placed(products(q * self.scale, k, context), context, self.config.window)
        scores = site(tape, self.at.scores, scores)
        of_prefix = (q * self.scale) @ self.keys(self.key.to(q.dtype)).mT
        seen = (scores > float("-inf")).any(-1, keepdim=True)
        both = masked_softmax(torch.cat((of_prefix, scores), -1), empty_rows=False) * seen
        prefix, pattern = both.split((self.config.tokens, scores.shape[-1]), -1)
        site(tape, self.at.persistent, prefix.sum(-1))
        return pattern, prefix
