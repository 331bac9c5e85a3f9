"""Encoders of images as configs: one that says a class, and one that makes images of a class out of noise."""

from collections.abc import Sequence
from typing import Any

from glassformer.data.images.noise import NoiseSchedule, Straight
from glassformer.models.block import BlockConfig
from glassformer.models.denoiser import Denoises
from glassformer.models.embedding import PositionEmbedding
from glassformer.models.encoder import EncoderConfig
from glassformer.models.patches import Patches


def image_encoder(
    patches: Patches,
    d_model: int,
    layers: Sequence[BlockConfig],
    n_classes: int | None,
    positions: PositionEmbedding | None = None,
    **settings: Any,
) -> EncoderConfig:
    """Return an encoder that says which of some classes an image is of, with what follows from its patches filled in.

    The class is read off the class token if there is one, else it is the mean of what all patches say.

    Args:
        patches: How images are cut.
        d_model: Width of the stream.
        layers: Its blocks; they are told the grid.
        n_classes: How many classes there are; None for a model that ends in the stream.
        positions: Positions added to the stream.
        settings: Other fields of `EncoderConfig`.

    Source: Dosovitskiy et al. 2020, "An Image Is Worth 16x16 Words"; the mean in place of a class token, appendix D.3.
    """
    head: dict[str, Any] = {"predicts": False}
    if n_classes is not None:
        head = {"output_vocab_size": n_classes, "classifies": "text" if patches.class_token else "mean"}
    said: dict[str, Any] = {"unembed_bias": n_classes is not None, "tied": False} | head | settings
    return EncoderConfig(
        0, d_model, tuple(layers), max_len=patches.n_tokens, positions=positions, patches=patches, **said
    )


def image_generator(
    patches: Patches,
    d_model: int,
    layers: Sequence[BlockConfig],
    n_classes: int,
    schedule: NoiseSchedule | None = None,
    positions: PositionEmbedding | None = None,
    **settings: Any,
) -> EncoderConfig:
    """Return an encoder that says where pixels move as noise leaves an image: `sample_images` makes images with it.

    Args:
        patches: How images are cut, without a class token.
        d_model: Width of the stream.
        layers: Its blocks; they are told the grid.
        n_classes: How many classes it is told of.
        schedule: How much noise there is at each time; `Straight()` by default.
        positions: Positions added to the stream.
        settings: Other fields of `EncoderConfig`.

    Source: Peebles and Xie 2022, "Scalable Diffusion Models with Transformers" (2212.09748), section 3.2, with time and
    class added to the stream.
    """
    denoises = Denoises(n_classes, schedule or Straight())
    said: dict[str, Any] = {"predicts": False, "tied": False} | settings
    return EncoderConfig(
        0, d_model, tuple(layers), max_len=patches.n_tokens, positions=positions, patches=patches, denoises=denoises,
        **said,
    )  # fmt: skip
