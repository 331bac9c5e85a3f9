"""Noised images: what a generator learns from. Each is an image, noise, a time and a class.

A batch holds x_t in place of token ids, v in place of targets (see `noise`), times and classes. Images of numbers from
0 to 1 are stretched to -1 to 1 before: noise has mean zero and unit variance.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.config import require
from glassformer.data.batch import Batch, DataConfig, Split, check_split, generator
from glassformer.data.images.digits import Digits
from glassformer.data.images.image_data import ImageConfig
from glassformer.data.images.noise import NoiseSchedule, Straight
from glassformer.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Noised(DataConfig, kind="noised"):
    """Images with noise in them, at times drawn evenly from 0 to 1.

    Args:
        images: Which, how many per batch, and the seed of all that is drawn.
        schedule: How much noise there is at each time; the model's too.
    """

    images: DataConfig = field(default_factory=Digits)
    schedule: NoiseSchedule = field(default_factory=Straight)

    # an image has one time
    length = 1

    def __post_init__(self) -> None:
        require(
            isinstance(self.images, ImageConfig),
            f"noised: images are data of images, as Digits() or Shapes(); found {self.images.kind}.",
        )

    @property
    def of(self) -> ImageConfig:
        """The data that images come from."""
        assert isinstance(self.images, ImageConfig), "checked when it was made"
        return self.images

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        return self.of.batch_size

    @property
    def seed(self) -> int:  # type: ignore[override]
        return self.of.seed

    def check_sizes(self) -> None:
        self.images.check_sizes()

    def check(self) -> None:
        self.of.check()

    def build(self, tokenizer: Tokenizer | None = None) -> "NoisedData":
        return NoisedData(self)


class NoisedData:
    """Noised images of a config, drawn afresh for every step."""

    tokenizer: Tokenizer | None = None
    vocab_size = 0

    def __init__(self, config: Noised) -> None:
        self.config = config

    def batch(self, step: int, split: Split = "train") -> Batch:
        check_split(split)
        images, seed = self.config.of, self.config.seed
        found = images.drawn(split, generator(seed, split, step))
        random = generator(seed, "noise", split, step)
        times = torch.rand(len(found.images), generator=random)
        return noise_images(stretched(found.images), found.classes, times, self.config.schedule, random)

    def documents(self, split: Split) -> Iterator[list[int]]:
        check_split(split)
        yield from ()

    def describe(self) -> dict[str, Any]:
        return {"noised": self.config.to_dict(), "classes": list(self.config.of.classes())}


def noise_images(
    images: Float[Tensor, "batch channel row column"],
    classes: Int[Tensor, " batch"],
    times: Float[Tensor, " batch"],
    schedule: NoiseSchedule | None = None,
    random: torch.Generator | None = None,
) -> Batch:
    """Return images with noise in them as a batch for a generator, with the velocities as targets.

    Args:
        images: Numbers from -1 to 1, see `stretched`.
        classes: What each is of.
        times: How much noise each has, from 0 to 1.
        schedule: Of the model; `Straight()` by default.
        random: Of the noise; torch's own by default.
    """
    schedule = schedule or Straight()
    noise = torch.randn(images.shape, generator=random, dtype=images.dtype)
    noised, velocity = (make(images, noise, times) for make in (schedule.noised, schedule.velocity))
    weight = torch.ones(len(images), 1, dtype=torch.bool)
    return Batch(noised, velocity, weight, times=times, classes=classes)


def stretched(images: Float[Tensor, "*batch row column"]) -> Float[Tensor, "*batch row column"]:
    """Return images of numbers from 0 to 1 as numbers from -1 to 1."""
    return 2 * images - 1
