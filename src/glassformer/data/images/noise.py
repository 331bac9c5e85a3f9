"""Noise for images: how much of an image and how much of noise is there at each time, and what a model is asked for.

    x_t = alpha_t x_0 + sigma_t e          e ~ N(0, 1);   x_0 at t = 0, noise alone at t = 1
    v   = (alpha'_t x_0 + sigma'_t e) / w_t          w_t = alpha_t sigma'_t - alpha'_t sigma_t
    x_0 = (sigma'_t / w_t) x_t - sigma_t v,   e = alpha_t v - (alpha'_t / w_t) x_t

v is the velocity with which x_t moves, in units of w_t; from it and x_t follow image and noise, at either end of time
too. Straight: alpha = 1 - t, sigma = t, v = e - x_0 (rectified flow). Cosine: alpha = cos(pi t / 2),
sigma = sin(pi t / 2), so that unit variance stays, v = alpha e - sigma x_0.

Source: Lipman et al. 2022, "Flow Matching" (2210.02747); Salimans and Ho 2022, "Progressive Distillation" (2202.00512),
appendix D, for v of the cosine.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.config import Config


class Shares(NamedTuple):
    """What there is at a time: shares of image and noise, and how fast each changes, in units of w."""

    alpha: Tensor
    sigma: Tensor
    alpha_rate: Tensor
    sigma_rate: Tensor


class NoiseSchedule(Config, family=True):
    """Shares of image and noise at each time, from 0 (the image) to 1 (noise)."""

    def shares(self, times: Float[Tensor, "*batch"]) -> Shares:
        """Return the shares at some times."""
        raise NotImplementedError(f"{type(self).__name__} does not say what there is at a time")

    def noised(
        self,
        images: Float[Tensor, "batch channel row column"],
        noise: Float[Tensor, "batch channel row column"],
        times: Float[Tensor, " batch"],
    ) -> Float[Tensor, "batch channel row column"]:
        """Return images with noise in them, x_t."""
        at = self._over(times)
        return at.alpha * images + at.sigma * noise

    def velocity(
        self,
        images: Float[Tensor, "batch channel row column"],
        noise: Float[Tensor, "batch channel row column"],
        times: Float[Tensor, " batch"],
    ) -> Float[Tensor, "batch channel row column"]:
        """Return what a model is asked for, v."""
        at = self._over(times)
        return at.alpha_rate * images + at.sigma_rate * noise

    def parts(
        self,
        noised: Float[Tensor, "batch channel row column"],
        velocity: Float[Tensor, "batch channel row column"],
        times: Float[Tensor, " batch"],
    ) -> tuple[Float[Tensor, "batch channel row column"], Float[Tensor, "batch channel row column"]]:
        """Return image and noise, x_0 and e, that what was noised and its velocity are made of."""
        at = self._over(times)
        return at.sigma_rate * noised - at.sigma * velocity, at.alpha * velocity - at.alpha_rate * noised

    def _over(self, times: Float[Tensor, " batch"]) -> Shares:
        return self.shares(times[:, None, None, None])


@dataclass(frozen=True)
class Straight(NoiseSchedule, kind="straight"):
    """On a straight line from the image to noise; it has no settings."""

    def shares(self, times: Float[Tensor, "*batch"]) -> Shares:
        one = torch.ones_like(times)
        return Shares(1 - times, times, -one, one)


@dataclass(frozen=True)
class Cosine(NoiseSchedule, kind="cosine"):
    """On a circle, which keeps the variance of images that have unit variance; it has no settings."""

    def shares(self, times: Float[Tensor, "*batch"]) -> Shares:
        angle = times * (math.pi / 2)
        return Shares(angle.cos(), angle.sin(), -angle.sin(), angle.cos())
