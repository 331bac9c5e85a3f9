"""Stochastic self-attention (STOSA): queries, keys and values are Gaussians, and attention goes by their distance.

    W2^2_ts = |m_t - m_s|^2 + |sqrt(c_t) - sqrt(c_s)|^2       query N(m_t, diag c_t), key N(m_s, diag c_s)
    A_ts    = softmax_s(-W2^2_ts / sqrt(d_head) + bias_ts)
    z_t     = (sum_s A_ts m^v_s,  sum_s A_ts^2 c^v_s)          mean and covariance, side by side

The squared 2-Wasserstein distance, unlike a product, obeys the triangle inequality in its root. The covariance is that
of a weighted sum of independent values. Means are the first of two streams, covariances the second; the projection that
makes them so is `Gaussian`. Under another one a covariance below zero counts as zero, in distances; what is mixed is
what is given.

Pattern: one for each value, A for means and A^2 for covariances; rows of A sum to one.
State: keys and values of earlier positions, two each.
Cost: O(pos^2) time and memory, twice the products of softmax.
Differs from the authors' code: A is squared and then dropped from, each of the two by a draw of its own.
Source: Fan et al. 2022, "Sequential Recommendation via Stochastic Self-Attention", section 4.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.context import Context
from glassformer.attention.mixer import Mixer, MixerConfig, Traits
from glassformer.attention.projections import Gaussian
from glassformer.attention.scores import masked_softmax, placed
from glassformer.trace import Tape, changes, site

LEAST = 1e-24  # of a covariance under the root, whose slope at zero is infinite


@dataclass(frozen=True)
class Wasserstein(MixerConfig, kind="wasserstein"):
    """Attention by the distance of Gaussians; it has no settings."""

    traits: ClassVar[Traits] = Traits("grouped", has_scores=True, streams=2, value_streams=2, value_merge="concat")

    def as_published(self, layer: int = 0) -> dict[str, Any]:
        """Return mixer and projection of the paper's layer, but for its two streams; see `Gaussian`."""
        return {"mixer": self, "projection": Gaussian()}


class WassersteinMixer(Mixer, config=Wasserstein):
    # the two streams make one score
    SITES = MappingProxyType({"scores": "batch head query key"})

    def pattern(self, q: Tensor, k: Tensor, x: Tensor, context: Context, tape: Tape | None) -> Tensor:
        scores = site(tape, self.at.scores, distance_scores(q, k, self.dims.d_head, context))
        empty_rows = not context.sees_itself or changes(tape, self.at.scores)
        return with_square(masked_softmax(scores, empty_rows=empty_rows)).to(q.dtype)


def distance_scores(
    q: Float[Tensor, "batch 2 head query d_head"],
    k: Float[Tensor, "batch 2 head key d_head"],
    d_head: int,
    context: Context,
) -> Float[Tensor, "batch head query key"]:
    """Return -W2^2 / sqrt(d_head) plus the position bias, -inf where the mask forbids attention; float32 at least."""

    def apart(q: Tensor, k: Tensor) -> Tensor:
        return squared_distances(points(q), points(k))

    return placed(context.scores(apart, q, k).sum(1) * -(d_head**-0.5), context)


def points(gaussians: Float[Tensor, "batch 2 head pos d"]) -> Float[Tensor, "batch 2 head pos d"]:
    """Return means and standard deviations of means and covariances: distances are those of points, then."""
    # in float32 at least: a distance is a difference of large squares
    mean, covariance = gaussians.to(torch.promote_types(gaussians.dtype, torch.float32)).unbind(1)
    return torch.stack((mean, covariance.clamp_min(LEAST).sqrt()), 1)


def squared_distances(
    one: Float[Tensor, "batch stream head query d"], other: Float[Tensor, "batch stream head key d"]
) -> Float[Tensor, "batch stream head query key"]:
    """Return squared distances in each stream, as a.a + b.b - 2 a.b; of `points`, the sum of both streams is W2^2."""
    squares = one.square().sum(-1)[..., None] + other.square().sum(-1)[..., None, :]
    # rounding may leave less than nothing of equal points
    return (squares - 2 * one @ other.mT).clamp_min(0.0)


def with_square(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch 2 head query key"]:
    """Return what means and what covariances are mixed by."""
    return torch.stack((pattern, pattern.square()), 1)
