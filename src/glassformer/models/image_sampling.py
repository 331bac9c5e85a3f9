"""From noise to images, step by step.

    x_0, e = parts(x_t, v(x_t, t))
    deterministic   x_s = alpha_s x_0 + sigma_s e                                      s < t
    ancestral       x_s = alpha_s x_0 + sqrt(sigma_s^2 - d^2) e + d z                  z ~ N(0, 1)
                    d^2 = (sigma_s / sigma_t)^2 (sigma_t^2 - (alpha_t / alpha_s)^2 sigma_s^2)

Times go from 1 to 0 in equal steps. The deterministic step is DDIM's, and for noise on a straight line that of Euler
for dx = v dt; the ancestral one draws from what the noising of x_0 leaves open of x_s, given x_t, as DDPM does. Both
end in the last x_0.

Source: Song, Meng and Ermon 2020, "Denoising Diffusion Implicit Models" (2010.02502), equations 12 and 16; Ho, Jain and
Abbeel 2020, "Denoising Diffusion Probabilistic Models" (2006.11239), equation 7.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Count, checked
from glassformer.data.images.noise import NoiseSchedule, Straight
from glassformer.errors import AnalysisUnavailable
from glassformer.models.evaluation import evaluating
from glassformer.models.model import ModelLike, require_model
from glassformer.models.patches import unpatchify

# images that are made side by side
AT_ONCE = 256

Velocity = Callable[[Tensor, Tensor], Tensor]


@checked
def sample_images(
    model: ModelLike,
    classes: Int[Tensor, " batch"] | Sequence[int],
    *,
    steps: Count = 50,
    ancestral: bool = False,
    seed: int = 0,
) -> Float[Tensor, "batch channel row column"]:
    """Return images that a model makes, of numbers from about -1 to 1: not clipped, as it makes them.

    Args:
        model: An encoder that makes images, see `image_generator`.
        classes: What each is to be of.
        steps: How many steps from noise to image.
        ancestral: Draw at each step; by default the first noise decides the image.
        seed: Image i begins and goes on with draws of seed + i, whatever else is made beside it.

    Raises:
        AnalysisUnavailable: The model makes no images.
        TokenOutOfRange: There is no such class.
    """
    found = require_generator(model, "sample_images")
    told, like = torch.as_tensor(classes, dtype=torch.long), next(found.parameters())
    made: list[Tensor] = []
    with torch.no_grad(), evaluating(found):
        for first in range(0, len(told), AT_ONCE):
            part = told[first : first + AT_ONCE]
            draws = Draws(len(part), found.patches.shape, seed + first)
            noise = draws().to(like.device, like.dtype)
            schedule = found.config.denoises.schedule
            made.append(denoised(_velocity(found, part), noise, steps, schedule, draws if ancestral else None))
    return torch.cat(made) if made else like.new_zeros(0, *found.patches.shape)


def require_generator(found: Any, what: str) -> Any:
    """Return a model that makes images; raises `AnalysisUnavailable`, which says why, for any other."""
    model = require_model(found, what)
    if model.config.denoises is None:
        raise AnalysisUnavailable(
            f'"{model.name}" makes no images: it is not told of noise and class.\n'
            "    Build one that does by image_generator(…), and train it on Noised(…)."
        )
    return model


class Draws:
    """Noise for images, row by row from generators of their own."""

    def __init__(self, rows: int, shape: tuple[int, ...], seed: int) -> None:
        self.shape = shape
        self.generators = [torch.Generator().manual_seed(seed + i) for i in range(rows)]

    def __call__(self) -> Float[Tensor, "batch channel row column"]:
        return torch.stack([torch.randn(self.shape, generator=generator) for generator in self.generators])


def denoised(
    velocity: Velocity,
    noise: Float[Tensor, "batch channel row column"],
    steps: int,
    schedule: NoiseSchedule | None = None,
    draws: Callable[[], Tensor] | None = None,
) -> Float[Tensor, "batch channel row column"]:
    """Return images from noise.

    Args:
        velocity: From images with noise in them, and the time of each, to v.
        noise: Where to begin.
        steps: How many steps.
        schedule: How much noise there is at each time; `Straight()` by default.
        draws: Returns the noise of an ancestral step; None for deterministic ones.
    """
    schedule, x = schedule or Straight(), noise
    times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    for now, then in pairwise(times):
        t = now.to(x).expand(len(x))
        image, left = schedule.parts(x, velocity(x, t), t)
        before, after = schedule.shares(now), schedule.shares(then)
        if draws is None:
            x = float(after.alpha) * image + float(after.sigma) * left
            continue
        drawn = drawn_variance(before.alpha, before.sigma, after.alpha, after.sigma)
        kept = (after.sigma.square() - drawn).clamp_min(0).sqrt()
        x = float(after.alpha) * image + float(kept) * left + float(drawn.sqrt()) * draws().to(x)
    return x


def drawn_variance(alpha_t: Tensor, sigma_t: Tensor, alpha_s: Tensor, sigma_s: Tensor) -> Tensor:
    """Return d^2, the variance of x_s once x_t and x_0 are known."""
    return (sigma_s / sigma_t).square() * (sigma_t.square() - (alpha_t / alpha_s).square() * sigma_s.square())


def _velocity(model: Any, classes: Tensor) -> Velocity:
    """Return a model's velocity of whole images of some classes, which are checked once."""
    like = next(model.parameters())
    own = model.config.denoises.told(len(classes), torch.zeros(len(classes)), classes, like)[1]

    def velocity(x: Tensor, times: Tensor) -> Tensor:
        return unpatchify(model(x, times=times, classes=own), model.patches)

    return velocity
