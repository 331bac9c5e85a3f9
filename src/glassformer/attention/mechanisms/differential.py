"""Differential attention: the difference of two softmax patterns cancels what both attend to by accident.

    z_t = sum_s (softmax(q1 k1' scale) - lambda softmax(q2 k2' scale))_ts v_s
    lambda = exp(lq1 . lk1) - exp(lq2 . lk2) + lambda_init

Pattern: signed, exact, rows sum to 1 - lambda.   State: both key streams and the values.
Each head has two query/key streams of d_head and values of 2 d_head. Under grouped keys a group of query heads shares
both key streams of its key head, as the equations say; of the authors' files only the flash one does. The head norm and
its factor 1 - lambda_init are the merge step.
`Differential()` alone is the mechanism: the norm, its factor and the growth of lambda with depth belong to the paper's
layer, which `models.published_block` builds.
Source: Ye et al. 2024, "Differential Transformer", section 2.1.
"""

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.kernels.fused import fused_softmax
from glassformer.attention.merge import Merge
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits
from glassformer.attention.scores import masked_softmax, scaled_scores
from glassformer.trace import Tape, changes, site


@dataclass(frozen=True)
class Differential(MixerConfig, kind="differential"):
    """Differential attention.

    Args:
        lambda_init: Constant part of lambda, the same at every depth; the paper grows it, see `lambda_init_at`.
    """

    lambda_init: float = 0.8

    traits: ClassVar[Traits] = Traits(has_scores=True, bilinear_scores=True, streams=2, by_products=True)
    variants = ({"lambda_init": 0.2},)

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return mixer and merge of the paper's layer: lambda by depth, each head's z normed and scaled down."""
        start = lambda_init_at(layer)
        return {"mixer": self.replace(lambda_init=start), "merge": Merge(norm="head", factor=1 - start)}

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        # each stream mixes all values by itself in the fused form; the dense form subtracts the patterns first
        return dims.n_heads * n_queries * n_keys * self.traits.streams * 2 * (dims.d_head + dims.d_value)


def lambda_init_at(layer: int) -> float:
    """Return the paper's schedule, 0.8 - 0.6 exp(-0.3 layer), for layers counted from 0."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class DifferentialMixer(Mixer, config=Differential):
    SITES = MappingProxyType({"patterns": "batch stream head query key", "lambda": ""})
    LAZY = ("patterns",)

    config: Differential

    def __init__(self, config: Differential, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
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
        first, second = (fused_softmax(q[:, i], k[:, i], v, self.dims.d_head**-0.5, context) for i in range(2))
        return first - self._lambda(tape) * second

    def _lambda(self, tape: Tape | None) -> Tensor:
        q1, k1, q2, k2 = self.lambdas.unbind()
        value = (q1 @ k1).exp() - (q2 @ k2).exp() + self.config.lambda_init
        return site(tape, self.at_lambda, value)
