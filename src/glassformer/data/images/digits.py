"""Handwritten digits: 1,797 images of 8 x 8 pixels, each of one of ten classes.

They ship with scikit-learn. The first 500 come with this package, so that tests need nothing else: `digits.gz` beside
this file holds an image after the other, 64 numbers from 0 to 16 row by row and the digit, a byte each.

Source: Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, test
part (https://doi.org/10.24432/C50P49), licensed CC BY 4.0.
"""

import gzip
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files as resources

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.arguments import Count
from glassformer.data.batch import Split, is_heldout
from glassformer.data.images.image_data import ImageConfig, ImagesOfClasses
from glassformer.errors import MissingExtra

SIDE = 8
# what a pixel may be
BRIGHTEST = 16
# of all images
HELDOUT = 0.2


@dataclass(frozen=True)
class Digits(ImageConfig, kind="digits"):
    """Handwritten digits, one channel of numbers from 0 to 1.

    A fifth of the images is held out, always the same ones.

    Args:
        batch_size: Images per batch, drawn with replacement.
        packaged: Read the 500 that come with this package, and not all 1,797, for which scikit-learn has to be
            installed.
        seed: Of what is drawn.
    """

    batch_size: Count = 64
    packaged: bool = False
    seed: int = 0

    def classes(self) -> tuple[str, ...]:
        return tuple("0123456789")

    def image(self) -> tuple[int, int]:
        return SIDE, SIDE

    def check(self) -> None:
        if not self.packaged:
            _whole()

    def drawn(self, split: Split, random: torch.Generator) -> ImagesOfClasses:
        every = self.every(split)
        chosen = torch.randint(len(every.images), (self.batch_size,), generator=random)
        return ImagesOfClasses(every.images[chosen], every.classes[chosen])

    def every(self, split: Split) -> ImagesOfClasses:
        """Return all images of a split.

        Raises:
            MissingExtra: They are not all here without scikit-learn.
        """
        return _of_split(self.packaged, split)


@lru_cache
def _of_split(packaged: bool, split: Split) -> ImagesOfClasses:
    images, classes = _packaged() if packaged else _whole()
    out = torch.tensor([is_heldout(HELDOUT, "digit", *image.flatten().tolist()) for image in images])
    part = out if split == "heldout" else ~out
    return ImagesOfClasses(images[part, None].float() / BRIGHTEST, classes[part])


def _packaged() -> tuple[Int[Tensor, "image row column"], Int[Tensor, " image"]]:
    """Return pixels and digits of those that come with the package."""
    content = gzip.decompress((resources("glassformer.data.images") / "digits.gz").read_bytes())
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).long().view(-1, SIDE**2 + 1)
    return rows[:, :-1].unflatten(1, (SIDE, SIDE)), rows[:, -1]


def _whole() -> tuple[Int[Tensor, "image row column"], Int[Tensor, " image"]]:
    """Return pixels and digits of all that scikit-learn brings."""
    try:
        from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra(
            "all 1,797 digits come with scikit-learn: pip install 'glassformer[learn]'. "
            "Digits(packaged=True) reads the 500 that come with this package."
        ) from error
    found = load_digits()
    return torch.from_numpy(found.images).long(), torch.from_numpy(found.target).long()
