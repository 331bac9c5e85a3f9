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

from glassformer.arguments import Count
from glassformer.config import require
from glassformer.data.batch import Batch, DataConfig, Split, check_split, generator
from glassformer.data.images.digits import Digits
from glassformer.data.images.image_data import ImageConfig, ImagesOfClasses
from glassformer.data.images.noise import NoiseSchedule, Straight
from glassformer.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Noised(ImageConfig, kind="noised"):
    """Images with noise in them, at times drawn evenly from 0 to 1.

    Args:
        images: Which. Their batch size and seed give way to those beside it.
        batch_size: Images per batch.
        schedule: How much noise there is at each time; the model's too.
        seed: Of what is drawn.
    """

    images: DataConfig = field(default_factory=Digits)
    batch_size: Count = 64
    schedule: NoiseSchedule = field(default_factory=Straight)
    seed: int = 0

    @property
    def of(self) -> ImageConfig:
        """The images, as many as a batch has."""
        require(
            isinstance(self.images, ImageConfig) and not isinstance(self.images, Noised),
            f"noised: images are data of images, as Digits() or Shapes(); found {self.images.kind}.",
        )
        found: Any = self.images
        return found.replace(batch_size=self.batch_size, seed=self.seed)

    def classes(self) -> tuple[str, ...]:
        return self.of.classes()

    def image(self) -> tuple[int, int]:
        return self.of.image()

    def drawn(self, split: Split, random: torch.Generator) -> ImagesOfClasses:
        return self.of.drawn(split, random)

    def check(self) -> None:
        self.of.check()

    def build(self, tokenizer: Tokenizer | None = None) -> "NoisedData":  # type: ignore[override]
        return NoisedData(self)


class NoisedData:
    """Noised images of a config, drawn afresh for every step."""

    tokenizer: Tokenizer | None = None
    vocab_size = 0

    def __init__(self, config: Noised) -> None:
        self.config = config

    def batch(self, step: int, split: Split = "train") -> Batch:
        check_split(split)
        seed = self.config.seed
        found = self.config.drawn(split, generator(seed, split, step))
        random = generator(seed, "noise", split, step)
        times = torch.rand(len(found.images), generator=random)
        return noise_images(stretched(found.images), found.classes, times, self.config.schedule, random)

    def documents(self, split: Split) -> Iterator[list[int]]:
        check_split(split)
        yield from ()

    def describe(self) -> dict[str, Any]:
        return {"noised": self.config.to_dict(), "classes": list(self.config.classes())}


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
    noise = torch.randn(images.shape, generator=random, dtype=images.dtype).to(images.device)
    noised, velocity = (make(images, noise, times) for make in (schedule.noised, schedule.velocity))
    weight = torch.ones(len(images), 1, dtype=torch.bool, device=images.device)
    return Batch(noised, velocity, weight, times=times, classes=classes)


def stretched(images: Float[Tensor, "*batch row column"]) -> Float[Tensor, "*batch row column"]:
    """Return images of numbers from 0 to 1 as numbers from -1 to 1."""
    return 2 * images - 1
