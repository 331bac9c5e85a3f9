"""Scalings of rotary positions: frequencies with which a model reads texts longer than those it was trained on.

omega_t = base^(-2t/d)          angle per position of pair t, before scaling
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Count, Positive
from glassformer.config import Config, require

Length = Int[Tensor, ""] | None


class RopeScaling(Config, ABC, family=True):
    """How rotary frequencies are changed for texts longer than those trained on."""

    # whether frequencies depend on how long the pass is
    by_length: ClassVar[bool] = False

    @property
    def amplitude(self) -> float:
        """Factor on the parts of queries and keys that turn; their products change by its square."""
        return 1.0

    @abstractmethod
    def frequencies(self, base: float, width: int, length: Length = None) -> Float[Tensor, " pair"]:
        """Return the angle per position of each pair, in radians, float64.

        Args:
            base: Of the frequencies without scaling.
            width: Coordinates that turn.
            length: Positions in the pass; None stands for any length trained on.
        """

    def outgrows(self, before: int, after: int) -> bool:
        """As `Positions.outgrows`."""
        return False

    def trained_on(self) -> int | None:
        """Return the length beyond which frequencies depend on the pass; None if they never do."""
        return None


def plain_frequencies(base: float | Tensor, width: int) -> Float[Tensor, " pair"]:
    """Return base^(-2t/width) of each pair t."""
    # numbers even where a model is built without any, on the meta device
    device = base.device if isinstance(base, Tensor) else "cpu"
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


@dataclass(frozen=True)
class LinearScaling(RopeScaling, kind="linear"):
    """All frequencies divided by `factor`: positions are interpolated.  Source: Chen et al. 2023."""

    factor: Positive = 8.0

    def frequencies(self, base: float, width: int, length: Length = None) -> Float[Tensor, " pair"]:
        return plain_frequencies(base, width) / self.factor


@dataclass(frozen=True)
class DynamicScaling(RopeScaling, kind="dynamic"):
    """A base that grows with the text, so that the slowest pair never turns further than in training.

    base(n) = base * (factor n / original_length - factor + 1)^(d / (d - 2)),  n = max(length, original_length)

    Length is that of the pass, earlier positions included, and of the longest row of a batch. Keys in a state stay as
    they were turned when they were written, so a text read in pieces meets keys of several bases, as it does in other
    libraries: beyond `original_length` it reads differently from the same text in one pass, and what follows a word
    changes what came before it.

    Args:
        factor: How fast the base grows.
        original_length: Longest text trained on; up to there nothing is scaled.

    Source: the "NTK-aware" scaling, published by bloc97 and emozilla; Peng et al. 2023, "YaRN", section 3.1 and 3.3.
    """

    factor: Positive = 8.0
    original_length: Count = 2048

    by_length: ClassVar[bool] = True

    def frequencies(self, base: float, width: int, length: Length = None) -> Float[Tensor, " pair"]:
        require(width > 2, f"rope scaling: dynamic needs more than one pair to turn, found {width // 2}.")
        if length is None:
            return plain_frequencies(base, width)
        growth = self.factor * length.to(torch.float64) / self.original_length - (self.factor - 1)
        return plain_frequencies(base * growth.clamp_min(1.0) ** (width / (width - 2)), width)

    def trained_on(self) -> int | None:
        return self.original_length


@dataclass(frozen=True)
class Llama3Scaling(RopeScaling, kind="llama3"):
    """Frequency scaling of Llama 3.1 for contexts longer than the training length.

    Wavelengths shorter than `original_length / high` are kept, those longer than `original_length / low` are stretched
    by `factor`, and those between are blended.  Source: Llama 3.1 reference code.
    """

    factor: Positive = 8.0
    low: float = 1.0
    high: float = 4.0
    original_length: Count = 8192

    def __post_init__(self) -> None:
        require(self.low < self.high, f"rope scaling: low={self.low} must be below high={self.high}.")

    def frequencies(self, base: float, width: int, length: Length = None) -> Float[Tensor, " pair"]:
        omega = plain_frequencies(base, width)
        turns = self.original_length * omega / (2 * math.pi)
        blend = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - blend) * omega / self.factor + blend * omega


@dataclass(frozen=True)
class YarnScaling(RopeScaling, kind="yarn"):
    """Fast pairs are kept, slow ones interpolated, those between blended by their index; queries and keys grow.

    Pairs that turn more than `fast` times within `original_length` are kept, those that turn less than `slow` times are
    slowed by `factor`. What turns is multiplied by `attention_factor`, so scores by its square: a longer text has more
    keys, and a softmax over more of them would be flatter.

    Args:
        factor: How many times longer texts may be.
        original_length: Longest text trained on.
        attention_factor: 0.1 ln(factor) + 1 by default.
        fast: Turns from which on a pair is kept.
        slow: Turns up to which a pair is slowed all the way.
        truncate: Widen the blended range to whole pairs.

    Source: Peng et al. 2023, "YaRN", sections 3.2 and 3.4.
    """

    factor: Positive = 8.0
    original_length: Count = 4096
    attention_factor: float | None = None
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        require(self.slow <= self.fast, f"rope scaling: slow={self.slow} must not be above fast={self.fast}.")

    @property
    def amplitude(self) -> float:
        return yarn_amplitude(self.factor) if self.attention_factor is None else self.attention_factor

    def frequencies(self, base: float, width: int, length: Length = None) -> Float[Tensor, " pair"]:
        omega = plain_frequencies(base, width)
        first, last = (self._pair(turns, base, width) for turns in (self.fast, self.slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        # a range of no width would divide by zero
        pair = torch.arange(len(omega), dtype=torch.float64, device=omega.device)
        slowed = ((pair - first) / (last - first if last != first else 0.001)).clamp(0, 1)
        return slowed * omega / self.factor + (1 - slowed) * omega

    def _pair(self, turns: float, base: float, width: int) -> float:
        """Return the index, as a real number, of the pair that turns so many times within the original length."""
        return width * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))


def yarn_amplitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's amplitude: 0.1 * weight * ln(factor) + 1, or 1 where nothing is stretched."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


@dataclass(frozen=True)
class LongScaling(RopeScaling, kind="longrope"):
    """A factor per pair that its frequency is divided by, found by search: one set for short texts, one for long.

    The long set is used for passes longer than `original_length`; length is that of the pass, earlier positions
    included, and of the longest row of a batch. Keys in a state stay as they were turned when they were written; since
    short and long keys do not fit together, `generate` rereads a text once when it outgrows `original_length`.

    Args:
        short: By pair.
        long: By pair.
        original_length: Longest text of the first training stage.
        factor: How many times longer texts may be; used for the default of `attention_factor` alone.
        attention_factor: Factor on what turns, at all lengths; sqrt(1 + ln(factor) / ln(original_length)) by default.

    Source: Ding et al. 2024, "LongRoPE"; Abdin et al. 2024, "Phi-3 Technical Report".
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_length: Count = 4096
    factor: Positive = 1.0
    attention_factor: float | None = None

    by_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            len(self.short) == len(self.long),
            f"rope scaling: {len(self.short)} factors for short texts, but {len(self.long)} for long ones; both have "
            "one for each pair that turns.",
        )

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length)) if self.factor > 1 else 1.0

    def frequencies(self, base: float, width: int, length: Length = None) -> Float[Tensor, " pair"]:
        require(
            len(self.short) == width // 2,
            f"rope scaling: {len(self.short)} factors for {width // 2} pairs that turn; give one for each.",
        )
        omega = plain_frequencies(base, width)
        short, long = (torch.tensor(f, dtype=torch.float64, device=omega.device) for f in (self.short, self.long))
        if length is None:
            return omega / short
        chosen = torch.where(length > self.original_length, long.to(length.device), short.to(length.device))
        return omega.to(length.device) / chosen

    def outgrows(self, before: int, after: int) -> bool:
        return 0 < before <= self.original_length < after

    def trained_on(self) -> int | None:
        return self.original_length
