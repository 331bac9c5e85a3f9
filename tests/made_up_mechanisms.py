"""Mechanisms made up for tests: each lacks what some analyses assume."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from glassformer.attention import Context, Mixer, MixerConfig, Traits, per_query_head
from glassformer.attention.scores import masked_softmax, scaled_scores
from glassformer.trace import Tape


@dataclass(frozen=True)
class Bent(MixerConfig):
    """Softmax whose mixed values are bent: no pattern multiplies values."""

    kind: ClassVar[str | None] = "bent"
    traits: ClassVar[Traits] = Traits("no")


class BentMixer(Mixer, config=Bent):
    def fast(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        scores = scaled_scores(q, per_query_head(k, q), self.dims.d_head**-0.5, context)
        return (masked_softmax(scores) @ per_query_head(v, q)).tanh()


@dataclass(frozen=True)
class Unscored(MixerConfig):
    """A pattern of feature maps: no scores before it, and rows that sum to anything."""

    kind: ClassVar[str | None] = "unscored"
    traits: ClassVar[Traits] = Traits()


class UnscoredMixer(Mixer, config=Unscored):
    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        found, allowed = q.sigmoid() @ k.sigmoid().mT, context.allowed(q.shape[-2], k.shape[-2])
        return found if allowed is None else found.masked_fill(~allowed, 0.0)


@dataclass(frozen=True)
class Doubled(MixerConfig):
    """Two values per head, each with a pattern of its own."""

    kind: ClassVar[str | None] = "doubled"
    traits: ClassVar[Traits] = Traits("grouped", value_streams=2)


class DoubledMixer(Mixer, config=Doubled):
    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        scores = scaled_scores(q, k, self.dims.d_head**-0.5, context)
        return torch.stack((masked_softmax(scores), masked_softmax(2 * scores)), 1)


@dataclass(frozen=True)
class Braided(MixerConfig):
    """Two query/key maps per head, whose weights are multiplied: no scores are bilinear."""

    kind: ClassVar[str | None] = "braided"
    traits: ClassVar[Traits] = Traits(streams=2)


class BraidedMixer(Mixer, config=Braided):
    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        first, second = masked_softmax(scaled_scores(q, k, self.dims.d_head**-0.5, context)).unbind(1)
        return first * second


MADE_UP = (Bent(), Unscored(), Doubled(), Braided())
