"""Differential attention: the difference of two softmax patterns cancels what both attend to by accident.

    z_t = sum_s (softmax(q1 k1' scale) - lambda softmax(q2 k2' scale))_ts v_s
    lambda = exp(lq1 . lk1) - exp(lq2 . lk2) + lambda_init

Pattern: signed, exact, rows sum to 1 - lambda.   State: both key streams and the values.
Cost: O(pos^2) time, that of two softmax patterns; O(pos) memory without the pattern.
Each head has two query/key streams of d_head and values of 2 d_head. Under grouped keys a group of query heads shares
both key streams of its key head, as the equations say, and each head subtracts what it finds in the one from what it
finds in the other. So it is in the authors' `multihead_flashdiff_1.py`. In their `multihead_diffattn.py` the streams of
all heads are repeated in a row, so that a head finds the keys of both its streams in one: `sharing="in_a_row"` is that
layout, for weights that were trained in it. The head norm and its factor 1 - lambda_init are the merge step.
`Differential()` alone is the mechanism: the norm, its factor and the growth of lambda with depth belong to the paper's
layer, which `models.published_block` builds.
Source: Ye et al. 2024, "Differential Transformer", section 2.1.
"""

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.kernels.fused import fused_softmax
from glassformer.attention.merge import Merge
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.scores import masked_softmax, scaled_scores
from glassformer.config import UNSAID
from glassformer.trace import Tape, changes, site


@dataclass(frozen=True)
class Differential(MixerConfig, kind="differential"):
    """Differential attention.

    Args:
        lambda_init: Constant part of lambda, the same at every depth; the paper grows it, see `lambda_init_at`.
        sharing: Which of its group's two key streams each stream of a head meets. `by_stream`: the first the first, the
            second the second. `in_a_row`: number (2 head + stream) // heads per group of a row that has the first and
            the second stream of every key head in turn; without groups it is the same.
    """

    lambda_init: float = 0.8
    sharing: Literal["by_stream", "in_a_row"] = field(default="by_stream", metadata={UNSAID: True})

    traits: ClassVar[Traits] = Traits(has_scores=True, bilinear_scores=True, streams=2, by_products=True)
    variants = ({"lambda_init": 0.2}, {"sharing": "in_a_row"})

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return mixer and merge of the paper's layer: lambda by depth, each head's z normed and scaled down."""
        start = lambda_init_at(layer)
        return {"mixer": self.replace(lambda_init=start), "merge": Merge(norm="head", factor=1 - start)}


def lambda_init_at(layer: int) -> float:
    """The paper's schedule of lambda at initialisation, 0.8 - 0.6 exp(-0.3 layer), for layers counted from 0."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class DifferentialMixer(Mixer, config=Differential):
    SITES = MappingProxyType({"patterns": "batch stream head query key", "lambda": ""})
    LAZY = ("patterns",)

    config: Differential

    def __init__(self, config: Differential, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        # a word of Python, which compilers could not write where they guard what was read
        self.at_lambda = getattr(self.at, "lambda")
        # rows: lambda_q1, lambda_k1, lambda_q2, lambda_k2; shared by all heads of the layer
        self.lambdas = nn.Parameter(torch.empty(4, dims.d_head))
        nn.init.normal_(self.lambdas, std=0.1)

    @property
    def takes_parts(self) -> bool:
        return True

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        scores = site(tape, self.at.scores, scaled_scores(q, k, self.dims.d_head**-0.5, context))
        patterns = masked_softmax(scores, empty_rows=not context.sees_itself or changes(tape, self.at.scores))
        patterns = site(tape, self.at.patterns, patterns)
        return patterns[:, 0] - self._lambda(tape) * patterns[:, 1]

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        k = k if self.key_streams is None else self.keys(k)
        first, second = (self.text_by_text(context, q[:, i], k[:, i], v) for i in range(2))
        return first - self._lambda(tape) * second

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        """Return what one stream makes of the values."""
        v = v if v.shape[-3] == k.shape[-3] else per_query_head(v, q)
        return fused_softmax(q, k, v, self.dims.d_head**-0.5, context)

    @property
    def key_streams(self) -> Int[Tensor, "head stream"] | None:
        """Which key stream of its group each stream of a head meets; None for the one of its own number."""
        heads, shared = self.dims.n_heads, self.dims.n_heads // self.dims.n_kv_heads
        if self.config.sharing == "by_stream" or shared == 1:
            return None
        return torch.arange(2 * heads).view(heads, 2) // shared % 2

    def keys(self, k: Float[Tensor, "*lead kv_head key d_head"]) -> Float[Tensor, "*lead head key d_head"]:
        expanded, which = per_query_head(k, k.new_empty(self.dims.n_heads, 1, 1)), self.key_streams
        if which is None:
            return expanded
        head = torch.arange(self.dims.n_heads)
        return torch.stack([expanded[..., which[:, i], head, :, :] for i in range(2)], -4)

    def _lambda(self, tape: Tape | None) -> Tensor:
        q1, k1, q2, k2 = self.lambdas.unbind()
        value = (q1 @ k1).exp() - (q2 @ k2).exp() + self.config.lambda_init
        return site(tape, self.at_lambda, value)
