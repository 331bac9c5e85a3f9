"""Temperatures: how sharp softmax is, by head, by the number of keys that a query sees, or by how uncertain it is.

    pattern = softmax(factor * score)        factor = 1 / temperature

A factor of a head or of a query multiplies scores before they are capped, before positions add to them and before the
mask; so it may as well multiply queries, and fused kernels remain. One of each coordinate does so to the addends of a
score. One that goes by the scores themselves acts on what softmax reads.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Amount, Positive, Within
from glassformer.attention.context import Context
from glassformer.attention.learned_scale import LearnedScale
from glassformer.attention.scores import masked_softmax
from glassformer.config import Config, require

SMALLEST = 1e-9  # added to a weight before its logarithm is taken


class Temperature(Config, family=True):
    """What multiplies scores."""

    def build(self, n_heads: int, d_head: int) -> "Sharpness":
        raise NotImplementedError(f"{type(self).__name__} does not say what it builds")


class Sharpness(nn.Module):
    """What a temperature does to scores; kinds replace the method they need, the others leave scores as they are."""

    # whether the factor differs from query to query, and from coordinate to coordinate
    by_query: ClassVar[bool] = False
    by_coordinate: ClassVar[bool] = False

    @property
    def reads_scores(self) -> bool:
        """Whether scores have to be made for it: a fused kernel has none to show."""
        return False

    def of_heads(self) -> Float[Tensor, "head 1 width"] | None:
        """Return each head's factor, or that of each coordinate of its queries; None for one."""
        return None

    def of_queries(self, context: Context, n_queries: int, window: int | None) -> Float[Tensor, "b h query 1"]:
        """Return each query's factor, if it is `by_query`."""
        raise AssertionError("by_query says whether this is defined")

    def sharpened(self, scores: Float[Tensor, "*lead key"]) -> Float[Tensor, "*lead key"]:
        """Return what softmax reads in place of the scores, which are -inf where attention is not allowed."""
        return scores


@dataclass(frozen=True)
class LogN(Temperature, kind="log_n"):
    """Scores grow with the logarithm of the number of keys, so that rows stay as sharp as they were in training.

        factor = log n / log length

    where n is how many keys this query may attend to: those of its document up to its own position if attention is
    causal, those within a window if there is one, and no padding. It is counted for each query, so that a text read
    token by token has the scores that it has in one pass. Where a query sees `length` keys the factor is one, and with
    a single key it is zero.

    Args:
        length: Keys at which scores are what they are without it: the length trained on; at least 2.
        beyond: Leave scores alone up to that length, factor = max(1, log n / log length): for a model that was trained
            without, in a text longer than any it was trained on.

    Source: Su 2021, "Entropy invariance of softmax" (kexue.fm/archives/8823); Nakanishi 2025, "Scalable-Softmax Is
    Superior for Attention", whose factor s log n has s = 1 / log length here, and a learned s there. What Llama 4 and
    Mistral call temperature tuning, 1 + c log(1 + floor(position / length)), is another: it goes by the position, in
    steps.
    """

    length: Annotated[int, Within(2)]
    beyond: bool = False

    def build(self, n_heads: int, d_head: int) -> "LogNSharpness":
        return LogNSharpness(self)


class LogNSharpness(Sharpness):
    by_query = True

    def __init__(self, config: LogN) -> None:
        super().__init__()
        self.config = config

    def of_queries(self, context: Context, n_queries: int, window: int | None) -> Float[Tensor, "b h query 1"]:
        seen = context.visible(n_queries, window)
        # a query that sees nothing has a row of zeros whatever it is multiplied by
        factor = seen.clamp_min(1).double().log() / math.log(self.config.length)
        return (factor.clamp_min(1.0) if self.config.beyond else factor)[..., None]


@dataclass(frozen=True)
class LearnedTemperature(Temperature, kind="learned"):
    """One learned factor per head, stored as its logarithm, so that it stays positive.

    Args:
        start: The factor (one over the temperature) that every head starts with.

    Source: Henry et al. 2020, "Query-Key Normalization for Transformers", section 3.1, where it scales a cosine; here
    each head has its own.
    """

    start: Positive = 1.0

    def build(self, n_heads: int, d_head: int) -> "LearnedSharpness":
        return LearnedSharpness(self, n_heads)


class LearnedSharpness(Sharpness):
    def __init__(self, config: LearnedTemperature, n_heads: int) -> None:
        super().__init__()
        self.log_factor = nn.Parameter(torch.full((n_heads,), math.log(config.start)))

    def of_heads(self) -> Float[Tensor, "head 1 1"]:
        return self.log_factor[:, None, None].exp()


@dataclass(frozen=True)
class CoordinateScales(Temperature, kind="coordinates"):
    """A learned scale of each coordinate of a head, by which queries and keys are both multiplied.

        score = sum_i  s_i^2 q_i k_i * scale

    Both factors stand at the query, which gives the same scores and the same gradients. They act on what positions have
    turned: where two coordinates that turn together have other scales, scores go by more than the distance.

    Args:
        scale: Where the scales begin, and at what size they are stored.

    Source: Loshchilov et al. 2024, "nGPT" (2410.01131), section 2.3, by head as in the authors' code. They stand behind
    `QueryKeyNorm(gains="none")`, under which the usual scale makes sqrt(d_head) times the cosine, as published.
    """

    scale: LearnedScale = field(default_factory=LearnedScale)

    def build(self, n_heads: int, d_head: int) -> "CoordinateSharpness":
        return CoordinateSharpness(self, n_heads, d_head)


class CoordinateSharpness(Sharpness):
    by_coordinate = True

    def __init__(self, config: CoordinateScales, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.config, self.scale = config, config.scale.stored(n_heads, d_head)

    def of_heads(self) -> Float[Tensor, "head 1 d_head"]:
        return self.config.scale.factors(self.scale).square()[:, None]


@dataclass(frozen=True)
class AdaptiveTemperature(Temperature, kind="adaptive"):
    """In evaluation, rows that spread over many keys are made sharper, by a polynomial of their entropy.

        H = - sum_s p_s log(p_s + 1e-9),    p = softmax(score),    in nats
        factor = max(1, c_0 H^4 + c_1 H^3 + ... + c_4)    if H > threshold, else 1

    It acts on what softmax reads, behind the cap, positions and mask, a sink included; the site `scores` holds what was
    there before. The largest weight stays the largest, and no row becomes less sharp. With the coefficients given here
    the factor is above one for entropies in (0.849, 5.944) only: a row spread evenly over 382 keys or more is
    left as it is. They were fitted to one task, finding a maximum, and are for models trained without: in training mode
    (`model.train()`) this temperature does nothing, so such a model says one thing in training and another in
    evaluation.

    Args:
        coefficients: Of the polynomial, highest power first.
        threshold: Entropy from which rows are looked at, in nats.

    Source: Veličković et al. 2024, "softmax is not enough (for sharp out-of-distribution)", section 5.
    """

    coefficients: tuple[float, ...] = (-0.037, 0.481, -2.3, 4.917, -1.791)
    threshold: Amount = 0.5

    def __post_init__(self) -> None:
        require(len(self.coefficients) > 0, "adaptive temperature: a polynomial has at least one coefficient.")

    def build(self, n_heads: int, d_head: int) -> "AdaptiveSharpness":
        return AdaptiveSharpness(self)


class AdaptiveSharpness(Sharpness):
    def __init__(self, config: AdaptiveTemperature) -> None:
        super().__init__()
        self.config = config

    @property
    def reads_scores(self) -> bool:
        return not self.training

    def sharpened(self, scores: Float[Tensor, "*lead key"]) -> Float[Tensor, "*lead key"]:
        if self.training:
            return scores
        pattern, hidden = masked_softmax(scores), scores == float("-inf")
        factor = self.factor(-(pattern * (pattern + SMALLEST).log()).sum(-1, keepdim=True))
        # -inf times a factor would have no gradient
        return (scores.masked_fill(hidden, 0.0) * factor).masked_fill(hidden, float("-inf"))

    def factor(self, entropy: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        """Return what rows of an entropy, in nats, are multiplied by."""
        total: Any = self.config.coefficients[0]
        for coefficient in self.config.coefficients[1:]:
            total = total * entropy + coefficient
        one = torch.ones_like(entropy)
        return torch.where(entropy > self.config.threshold, torch.maximum(one * total, one), one)
