"""Atrous attention: each query looks at every rate-th key, counted from itself; also called dilated.

    z_t = sum_s softmax_s(q_t . k_s * scale + bias_ts) v_s    over s with (t - s) mod rate = 0

Positions fall into `rate` classes that never see each other: each is a text of its own, 1 / rate as long, and is mixed
as one. A window counts the keys of a class: with it, this is the dilated window. rate = 1 is softmax attention; from
rate = length on, every position sees itself alone. Heads may have rates of their own: with a window, and some heads of
rate 1, they are those of an autoregressive Longformer.

Pattern: exact, non-negative, rows sum to one, with sinks to less; zero between classes; an all-zero row where nothing
may be attended to.
State: keys and values of earlier positions, with a window the last (window - 1) rate of them; a step reads one in
`rate`.
Cost: O(pos^2 / rate) time, O(pos) memory without the pattern; masks other than the causal one take O(pos^2 / rate)
memory. With a cap, with positions that add to scores of heads of several rates, and with an adaptive temperature in
evaluation, the pattern is made in any case.
Source: Su 2019, "Born to economise: from standard to sparse attention" (kexue.fm/archives/6853); compare Child et al.
2019, "Generating Long Sequences with Sparse Transformers", section 4.2, for the strided half; Beltagy et al. 2020,
"Longformer", section 3.1, for rates by head. Differs from Su's code, in which texts are filled up to a multiple of the
rate with zeros that take part in the softmax.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, Counts
from glassformer.attention.context import Context, Rule
from glassformer.attention.kernels.classes import HeadsByRate, by_class
from glassformer.attention.mechanisms.softmax import SoftmaxMixer
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.softmax_weights import SoftmaxWeights
from glassformer.attention.temperature import LogN


@dataclass(frozen=True)
class EveryNth(Rule):
    """Keys at distances that are a multiple of the rate, and less than so many steps of it.

    Args:
        rates: Of each head, or of all.
        window: How many steps away keys are no longer looked at; None for all.
    """

    rates: tuple[int, ...]
    window: int | None

    @property
    def n_heads(self) -> int:
        return len(self.rates)

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        rate = torch.tensor(self.rates, device=q.device)[:, None, None]
        looks = (q - k) % rate == 0
        return looks if self.window is None else looks & ((q - k).abs() < rate * self.window)


@dataclass(frozen=True)
class Atrous(SoftmaxWeights, kind="atrous"):
    """Attention to every rate-th key.

    Args:
        window: Each query sees keys less than this many steps of its rate away; None for all.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
        cap: Largest size of q . k * scale, approached smoothly; what positions add and the mask come behind it.
        sinks: One learned logit per head that takes part in the normaliser and has no value.
        temperature: What else multiplies q . k * scale.
        rate: How many positions lie from one key to the next; about the root of the length in Su's text. Several are
            those of heads, in their order, repeated until every head has one.
    """

    rate: Count | Counts = 16

    traits: ClassVar[Traits] = Traits(rows_sum_to_one=True, has_scores=True, bilinear_scores=True, by_products=True)
    variants = (
        {"rate": 2},
        {"rate": 3, "window": 2},
        {"rate": 2, "sinks": True, "temperature": LogN(2)},
        {"rate": 2, "cap": 0.5},
        {"rate": (1, 2), "window": 3, "sinks": True, "temperature": LogN(2)},
    )

    @property
    def rates(self) -> tuple[int, ...]:
        return self.rate if isinstance(self.rate, tuple) else (self.rate,)

    @property
    def rule(self) -> EveryNth:
        return EveryNth(self.rates, self.window)

    @property
    def limit(self) -> None:
        return None

    @property
    def reach(self) -> int | None:
        return None if self.window is None else (self.window - 1) * max(self.rates)


class AtrousMixer(SoftmaxMixer, config=Atrous):
    def __init__(self, config: Atrous, dims: Dims, path: str) -> None:
        super().__init__(config, dims, path)
        self.window, self.by_rate = config.window, HeadsByRate(config.rates, dims.n_heads)
        self.rule = EveryNth(self.by_rate.rates, config.window)

    def ruled(self, context: Context) -> Context:
        return context.ruled(self.rule)

    def mixes(self, context: Context, q: Tensor, k: Tensor) -> bool:
        return not (context.biased and len(self.by_rate.heads) > 1) and super().mixes(context, q, k)

    def mixed(self, context: Context, q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query d_value"]:
        def of_rate(rate: int, heads: slice | list[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            def of_classes(context: Context, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return self.fused_heads(q, k, v, context, self.window, heads)

            return by_class(of_classes, context, rate, q, k, v)

        return self.by_rate.mixed(of_rate, q, k, v)
