"""What makes a generator of an encoder of images: it is told time and class, and says a velocity for each pixel.

    x_i = flat(patch_i) W + b + time + class        time = silu(f(1000 t) W_1 + b_1) W_2 + b_2;   class = E[y]
    v_i = stream_i W_v + b_v                        as many numbers as a patch has pixels

f are sinusoids, their frequencies from 1 down to 1/10,000; without the factor neighbouring times look alike. Both
vectors are added to what each patch enters with, so that the blocks are those of any encoder, and every analysis of the
stream holds. What v is of, and what follows from it, see `data.images.noise`.

Differs from the source in that there time and class set the gain, the offset and the gate of each sub-layer (adaLN).
Source: Peebles and Xie 2022, "Scalable Diffusion Models with Transformers" (2212.09748), section 3.2, for how time and
class become vectors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention import LinearMap, sinusoids
from glassformer.config import Config, require
from glassformer.data.images.noise import NoiseSchedule, Straight
from glassformer.errors import ShapeMismatch, TokenOutOfRange
from glassformer.models.patches import Patches, patchify
from glassformer.trace import Site, Tape, declare, site

# so that times from 0 to 1 are as far apart as positions of a text
TIME_SCALE = 1000.0


@dataclass(frozen=True)
class Denoises(Config):
    """What an encoder of images is told beside them when it makes images out of noise.

    Args:
        n_classes: Classes that it is told of.
        schedule: How much noise there is at each time; that of the data it is trained on.
        d_time: Sines and cosines of a time, an even number.
    """

    n_classes: Count
    schedule: NoiseSchedule = field(default_factory=Straight)
    d_time: Count = 256

    def __post_init__(self) -> None:
        require(self.d_time % 2 == 0, f"denoises: d_time={self.d_time}; each frequency has a sine and a cosine.")

    def told(
        self, batch: int, times: Tensor | None, classes: Tensor | None, like: Tensor
    ) -> tuple[Float[Tensor, " batch"], Int[Tensor, " batch"]]:
        """Return what such a model is told of images, checked, on the device and in the dtype of `like`.

        Args:
            batch: How many images there are.
            times: How much noise each has.
            classes: What each is of.
            like: A parameter of the model.

        Raises:
            ShapeMismatch: One of them is missing, is not one per image, or a time lies outside 0 to 1.
            TokenOutOfRange: There is no such class.
        """
        if times is None or classes is None:
            raise ShapeMismatch(
                "this model makes images out of noise, and is told how much there is in each and which class it is "
                "of.\n    Give a Batch with times and classes: data.noise_images(images, classes, times)."
            )
        if times.shape != (batch,) or classes.shape != (batch,) or classes.is_floating_point():
            raise ShapeMismatch(
                f"times and classes are one number and one index per image, of {batch}; found "
                f"{tuple(times.shape)} and {tuple(classes.shape)}."
            )
        if batch and not bool(((times >= 0) & (times <= 1)).all()):
            raise ShapeMismatch("times run from 0, the image, to 1, noise alone; some of these lie outside.")
        if batch and not bool(((classes >= 0) & (classes < self.n_classes)).all()):
            raise TokenOutOfRange(f"classes of this model are 0 to {self.n_classes - 1}; found others.")
        return times.to(like.device, like.dtype), classes.to(like.device).long()


class Condition(nn.Module):
    """Time and class as vectors of the stream."""

    def __init__(self, config: Denoises, d_model: int) -> None:
        super().__init__()
        self.config = config
        self.of_time = LinearMap(config.d_time, d_model, bias=True)
        self.time = LinearMap(d_model, d_model, bias=True)
        self.classes = nn.Parameter(torch.empty(config.n_classes, d_model))

    def forward(
        self, times: Float[Tensor, " batch"] | None, classes: Int[Tensor, " batch"] | None, batch: int
    ) -> tuple[Float[Tensor, "batch 1 d_model"], Float[Tensor, "batch 1 d_model"]]:
        """Return the vectors of times and of classes, the same for all patches of an image."""
        if times is None or classes is None:
            times, classes = self.config.told(batch, times, classes, self.classes)
        waves = sinusoids(times * TIME_SCALE, self.config.d_time, "halves").to(self.classes.dtype)
        return self.time(F.silu(self.of_time(waves)))[:, None], F.embedding(classes, self.classes)[:, None]


class VelocityHead(nn.Module):
    """From the stream at the end to the velocity of each patch's pixels."""

    at = "velocity"

    def __init__(self, patches: Patches, d_model: int) -> None:
        super().__init__()
        self.patches = patches
        self.map = LinearMap(d_model, patches.n_pixels, bias=True)

    def forward(self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None) -> Float[Tensor, "batch pos pixel"]:
        return site(tape, self.at, self.map(x))

    def loss(
        self, x: Float[Tensor, "batch pos d_model"], velocity: Float[Tensor, "batch channel row column"]
    ) -> Float[Tensor, ""]:
        """Return the mean squared error over all pixels."""
        return F.mse_loss(self.map(x), patchify(velocity, self.patches.size))

    def sites(self) -> Iterator[Site]:
        yield from declare("", {self.at: "batch pos pixel"}, {"pixel": self.patches.n_pixels})
