"""Images with a class each: what their configs say, and the batches made of them.

A batch holds the images in place of token ids, `batch channel row column`, and one target for each, `batch 1`. There is
no vocabulary that is read; `output_tokenizer` names the classes.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Count, fits
from glassformer.config import require
from glassformer.data.batch import MOST_TOKENS, Batch, DataConfig, Split, check_split, generator
from glassformer.data.tokenizer import Tokenizer, label_tokenizer


class ImagesOfClasses(NamedTuple):
    """Images, and the index of each one's class."""

    images: Float[Tensor, "batch channel row column"]
    classes: Int[Tensor, " batch"]


class ImageConfig(DataConfig):
    """Images of one size, each of one of some classes."""

    # a row has one target
    length = 1

    def check_sizes(self) -> None:
        super().check_sizes()
        rows, columns = self.image()
        require(
            not fits(rows, Count) or self.batch_size * rows * columns <= MOST_TOKENS,
            f"{self.kind}: a batch of batch_size={self.batch_size:,} images of {rows:,} x {columns:,} pixels has more "
            f"than {MOST_TOKENS:,}, the most there may be.",
        )

    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes, in the order of their targets."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its classes are")

    def image(self) -> tuple[int, int]:
        """Return the rows and columns of an image."""
        raise NotImplementedError(f"{type(self).__name__} does not say how large an image is")

    def drawn(self, split: Split, random: torch.Generator) -> ImagesOfClasses:
        """Return `batch_size` images of a split."""
        raise NotImplementedError(f"{type(self).__name__} does not say how an image is drawn")

    def build(self, tokenizer: Tokenizer | None = None) -> "ImageData":
        return ImageData(self)


class ImageData:
    """Images of a config, drawn afresh for every step."""

    tokenizer: Tokenizer | None = None
    vocab_size = 0

    def __init__(self, config: ImageConfig) -> None:
        self.config = config
        self.output_tokenizer = label_tokenizer(config.classes())

    def batch(self, step: int, split: Split = "train") -> Batch:
        check_split(split)
        found = self.config.drawn(split, generator(self.config.seed, split, step))
        targets = found.classes[:, None]
        return Batch(found.images, targets, torch.ones_like(targets, dtype=torch.bool))

    def documents(self, split: Split) -> Iterator[list[int]]:
        check_split(split)
        yield from ()

    def describe(self) -> dict[str, Any]:
        return {"images": self.config.to_dict(), "classes": list(self.config.classes())}
