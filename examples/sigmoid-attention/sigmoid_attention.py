"""Sigmoid attention: every key is weighed on its own.

    z_t = sum_s sigmoid(q_t . k_s * scale + bias) v_s

Pattern: exact, non-negative, rows do not sum to one.   State: keys and values of earlier positions.
Cost: O(pos^2) time and memory: there is no fused route.
Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention".
"""

from dataclasses import dataclass
from typing import ClassVar

from glassformer.attention import Mixer, MixerConfig, Traits
from glassformer.attention.scores import scaled_scores
from glassformer.trace import site


@dataclass(frozen=True)
class Sigmoid(MixerConfig, kind="sigmoid"):
    """Sigmoid attention.

    Args:
        bias: Added to every score; about minus the logarithm of the context length, so that rows start near sum one.
    """

    bias: float = -4.0

    traits: ClassVar[Traits] = Traits(has_scores=True, bilinear_scores=True)


class SigmoidMixer(Mixer, config=Sigmoid):
    config: Sigmoid

    def pattern(self, q, k, x, context, tape):
        scores = scaled_scores(q, k, self.dims.d_head**-0.5, context)
        # -inf where attention is not allowed, and the sigmoid of -inf is 0
        return (site(tape, self.at.scores, scores) + self.config.bias).sigmoid()
