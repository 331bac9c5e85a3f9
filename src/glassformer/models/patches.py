"""Patches: from an image to the stream, a token for each square of pixels.

    x_i = flat(patch_i) W + b        i counts patches row by row;   flat goes through channels, then rows, then columns

The same is a convolution whose kernel is as wide as its step. With a class token, a learned vector stands before the
patches, at position 0 and outside their grid.
Source: Dosovitskiy et al. 2020, "An Image Is Worth 16x16 Words", section 3.1.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count
from glassformer.attention import LinearMap
from glassformer.config import UNSAID, Config, require
from glassformer.errors import ShapeMismatch

CLASS_TOKEN = "class"


@dataclass(frozen=True)
class Patches(Config):
    """Images as what a model reads.

    Args:
        image: Rows and columns of pixels.
        size: Pixels along a side of a patch; it divides both.
        channels: Numbers per pixel.
        class_token: A learned vector stands before the patches, at position 0 and outside their grid.
    """

    image: tuple[Count, Count] = (16, 16)
    size: Count = 4
    channels: Count = 1
    class_token: bool = field(default=False, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        rows, columns = self.image
        require(
            rows % self.size == 0 and columns % self.size == 0,
            f"patches: an image of {rows} x {columns} pixels is not cut into squares of {self.size}; size must divide "
            "both.",
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image[0] // self.size, self.image[1] // self.size

    @property
    def outside(self) -> int:
        """How many positions stand before the grid."""
        return int(self.class_token)

    @property
    def n_tokens(self) -> int:
        """Positions of an image, the class token's included."""
        return self.outside + self.grid[0] * self.grid[1]

    @property
    def n_pixels(self) -> int:
        """Numbers in a patch."""
        return self.channels * self.size**2

    @property
    def shape(self) -> tuple[int, int, int]:
        """Axes of one image: channels, rows and columns of pixels."""
        return self.channels, *self.image

    @property
    def names(self) -> list[str]:
        """What positions are called: row and column of each patch, counted from 1."""
        rows, columns = self.grid
        places = [f"{row + 1},{column + 1}" for row in range(rows) for column in range(columns)]
        return [CLASS_TOKEN] * self.outside + places

    def images(self, given: Any, like: Tensor) -> Float[Tensor, "batch channel row column"]:
        """Return images as such a model takes them, on the device and in the dtype of `like`.

        Args:
            given: Numbers `batch channel row column`; without `channel` where there is one, without `batch` for one
                image.
            like: A parameter of the model.

        Raises:
            ShapeMismatch: They are no images of this size, or hold numbers that are not finite.
        """
        try:
            found = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise self._wanted(f"a {type(given).__name__}") from error
        lead, pixels = tuple(found.shape[:-2]), tuple(found.shape[-2:])
        known = lead[-1:] == (self.channels,) and len(lead) <= 2
        if pixels != self.image or not (known or (self.channels == 1 and len(lead) <= 1)) or not found.numel():
            raise self.refused(found)
        if not bool(found.isfinite().all()):
            n = int((~found.isfinite()).sum())
            raise ShapeMismatch(f"{n:,} numbers of these images are NaN or infinite; give finite ones.")
        return found.reshape(-1, *self.shape).to(like.device, like.dtype)

    def refused(self, found: Tensor, *, one: bool = False) -> ShapeMismatch:
        """Return the error for images of another size, or for several where `one` is read."""
        return self._wanted(" x ".join(map(str, found.shape)) or "a single number", one)

    def _wanted(self, found: str, one: bool = False) -> ShapeMismatch:
        wanted = " x ".join(map(str, self.shape))
        many = "one of them" if one else "one or a batch of them"
        return ShapeMismatch(
            f"this model reads images of {wanted} numbers (channel, row, column), {many}; found {found}."
        )


class PatchVectors(nn.Module):
    """From images to one vector per position, the class token's first if there is one."""

    def __init__(self, config: Patches, d_model: int) -> None:
        super().__init__()
        self.config = config
        self.map = LinearMap(config.n_pixels, d_model, bias=True)
        self.first = nn.Parameter(torch.zeros(d_model)) if config.class_token else None

    def forward(self, images: Float[Tensor, "batch channel row column"]) -> Float[Tensor, "batch pos d_model"]:
        if images.shape[1:] != self.config.shape:
            raise self.config.refused(images)
        x = self.map(patchify(images, self.config.size))
        return x if self.first is None else torch.cat((self.first.expand(len(x), 1, -1), x), 1)


def patchify(images: Float[Tensor, "batch channel row column"], size: int) -> Float[Tensor, "batch patch pixel"]:
    """Return the patches of images, row by row, each flat: channels, then rows, then columns."""
    by_row = images.unflatten(2, (-1, size)).unflatten(4, (-1, size))  # batch channel patch_row row patch_column column
    return by_row.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(
    patches: Float[Tensor, "batch patch pixel"], config: Patches
) -> Float[Tensor, "batch channel row column"]:
    """Return the images that patches were cut from: the inverse of `patchify`."""
    apart = patches.unflatten(2, (config.channels, config.size, config.size)).unflatten(1, config.grid)
    return apart.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
