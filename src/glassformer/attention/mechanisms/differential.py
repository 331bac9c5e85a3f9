"""Differential attention: the difference of two softmax patterns cancels what both attend to by accident.

    z_t = sum_s (softmax(q1 k1' scale) - lambda softmax(q2 k2' scale))_ts v_s
    lambda = exp(lq1 . lk1) - exp(lq2 . lk2) + lambda_init

Pattern: signed, exact, rows sum to 1 - lambda.   State: both key streams and the values.
Each head has two query/key streams of d_head and values of 2 d_head. Under grouped keys a group of query heads shares
both key streams of its key head, as the equations say; of the authors' files only the flash one does. The head norm and
its factor 1 - lambda_init are the merge step: see `differential`.
Source: Ye et al. 2024, "Differential Transformer", section 2.1.
"""

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.kernels.growing import append
from glassformer.attention.mechanisms.softmax import fused_softmax, masked_softmax, scaled_scores
from glassformer.attention.mixer import Dims, Mixer, MixerConfig, Traits
from glassformer.trace import Tape, changes, site


@dataclass(frozen=True)
class Differential(MixerConfig, kind="differential"):
    """Differential attention.

    Args:
        lambda_init: Constant part of lambda; the paper grows it with depth, see `lambda_init_at`.
    """

    lambda_init: float = 0.8

    traits: ClassVar[Traits] = Traits(has_scores=True, bilinear_scores=True, streams=2)
    variants = ({"lambda_init": 0.2},)

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        # each stream mixes all values by itself in the fused form; the dense form subtracts the patterns first
        return dims.n_heads * n_queries * n_keys * self.traits.streams * 2 * (dims.d_head + dims.d_value)

    def keeps(self, length: int) -> bool:
        return True

    def build(self, dims: Dims, path: str) -> "DifferentialMixer":
        return DifferentialMixer(self, dims, path)


def lambda_init_at(layer: int) -> float:
    """Return the paper's schedule, 0.8 - 0.6 exp(-0.3 layer), for layers counted from 0."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class DifferentialState(NamedTuple):
    """Keys of both streams, and values, of earlier positions."""

    key: Float[Tensor, "batch stream kv_head key d_head"]
    value: Float[Tensor, "batch kv_head key d_value"]


class DifferentialMixer(Mixer):
    SITES = MappingProxyType({"patterns": "batch stream head query key", "lambda": ""})
    LAZY = ("patterns",)

    config: Differential

    def __init__(self, config: Differential, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.at_lambda = getattr(self.at, "lambda")
        # rows: lambda_q1, lambda_k1, lambda_q2, lambda_k2; shared by all heads of the layer
        self.lambdas = nn.Parameter(torch.empty(4, dims.d_head))
        nn.init.normal_(self.lambdas, std=0.1)

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        allowed = context.allowed(q.shape[-2], k.shape[-2])
        scores = site(tape, self.at.scores, scaled_scores(q, k, self.dims.d_head**-0.5, context, allowed))
        patterns = masked_softmax(scores, empty_rows=not context.sees_itself or changes(tape, self.at.scores))
        patterns = site(tape, self.at.patterns, patterns)
        return patterns[:, 0] - self._lambda(tape) * patterns[:, 1]

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        first, second = (fused_softmax(q[:, i], k[:, i], v, self.dims.d_head**-0.5, context) for i in range(2))
        return first - self._lambda(tape) * second

    def scan(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: DifferentialState, tape: Tape | None
    ):
        state = DifferentialState(append(state.key, k)[1], append(state.value, v)[1])
        return self.parallel(q, state.key, state.value, x, context, tape), state

    def begin(self, batch: int, like: Tensor) -> DifferentialState:
        dims = self.dims
        return DifferentialState(
            like.new_zeros(batch, 2, dims.n_kv_heads, 0, dims.d_head),
            like.new_zeros(batch, dims.n_kv_heads, 0, dims.d_value),
        )

    def _lambda(self, tape: Tape | None) -> Tensor:
        q1, k1, q2, k2 = self.lambdas.unbind()
        value = (q1 @ k1).exp() - (q2 @ k2).exp() + self.config.lambda_init
        return site(tape, self.at_lambda, value)
