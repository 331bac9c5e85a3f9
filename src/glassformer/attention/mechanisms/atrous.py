"""Atrous attention: each query looks at every rate-th key, counted from itself; also called dilated.

    z_t = sum_s softmax_s(q_t . k_s * scale + bias_ts) v_s    over s with (t - s) mod rate = 0

Positions fall into `rate` classes that never see each other: each is a text of its own, 1 / rate as long, and is mixed
as one. With a window, which is counted in positions, it is the dilated window: window = (n - 1) rate + 1 reaches n keys
on one side. rate = 1 is softmax attention; from rate = length on, every position sees itself alone.

Pattern: exact, non-negative, rows sum to one, with sinks to less; zero between classes; an all-zero row where nothing
may be attended to.
State: keys and values of earlier positions, the last window - 1 of them if there is a window; a step reads one in `rate`.
Cost: O(pos^2 / rate) time, O(pos) memory without the pattern; masks other than the causal one take O(pos^2 / rate)
memory. With a cap, and with an adaptive temperature in evaluation, the pattern is made in any case.
Source: Su 2019, "Born to economise: from standard to sparse attention" (kexue.fm/archives/6853); compare Child et al.
2019, "Generating Long Sequences with Sparse Transformers", section 4.2, for the strided half. Differs from Su's code in
that texts whose length is no multiple of the rate are not filled up with zeros that take part in the softmax.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from glassformer.attention.context import Context, Rule
from glassformer.attention.kernels.classes import by_class
from glassformer.attention.mechanisms.softmax import SoftmaxMixer
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.packed import by_document, documents_of
from glassformer.attention.softmax_weights import SoftmaxWeights
from glassformer.attention.temperature import LogN
from glassformer.config import require
from glassformer.trace import Tape


@dataclass(frozen=True)
class EveryNth(Rule):
    """Keys at distances that are a multiple of the rate."""

    rate: int

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return (q - k) % self.rate == 0


@dataclass(frozen=True)
class Atrous(SoftmaxWeights, kind="atrous"):
    """Attention to every rate-th key.

    Args:
        window: Each query sees keys less than this many positions away; None for all.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
        cap: Largest size of q . k * scale, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies q . k * scale.
        rate: How many positions lie from one key to the next; about the root of the length in Su's text.
    """

    rate: int = 16

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True, by_products=True)
    variants = (
        {"rate": 2},
        {"rate": 3, "window": 4},
        {"rate": 2, "sinks": True, "temperature": LogN(2)},
        {"rate": 2, "cap": 0.5},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rate >= 1, f"atrous: rate must be at least 1, found {self.rate}.")

    @property
    def rule(self) -> EveryNth:
        return EveryNth(self.rate)

    @property
    def crosses(self) -> bool:
        return False

    def flops(self, n_queries: int, n_keys: int, dims: Dims, causal: bool = True) -> int:
        """Both products over all pairs within a class, masked ones included."""
        classes = min(n_queries, self.rate)
        of_class = -(-n_queries // classes), -(-n_keys // self.rate)
        return classes * super().flops(*of_class, dims, causal)


class AtrousMixer(SoftmaxMixer, config=Atrous):
    config: Atrous

    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        if self.needs_scores:
            return self.dense(q, k, v, x, context, tape)
        q = self.queries(q, context)
        if (runs := documents_of(context, q.shape[-2], k.shape[-2], len(q))) is not None:
            return by_document(self._mixed, context, runs, q, k, v)
        return self._mixed(context, q, k, v)

    def _mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        return by_class(self._of_classes, context, self.config.rate, q, k, v)

    def _of_classes(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.fused(q, k, v, context, self.config.rate)
