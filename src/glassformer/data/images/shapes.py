"""Drawn shapes: squares, discs, rings, crosses and bars at random places and in random sizes, with a question.

    kind      one shape: which kind is it?
    side      a square and a bar, side by side or one above the other: where does the square lie, seen from the bar?
    marked    a shape in each quarter, and a line in the upper left corner of one: which kind is the shape there?
    same      two shapes: are they of one kind?
    count     how many of the others are of the kind of the shape in the top left quarter?

Sizes and places are drawn apart from kinds. But for the first question no patch, and no sum over patches, tells the
answer: what is in one place decides what matters in another. Patches that divide a quarter are, of a `side`, the same
ones whatever the answer, each as often: it is where they lie. What is known is known exactly: an image is made of a
scene, `Shapes.scenes`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count
from glassformer.config import require
from glassformer.data.batch import Split, is_heldout
from glassformer.data.images.image_data import ImageConfig, ImagesOfClasses

KINDS = ("square", "disc", "ring", "cross", "bar")
# where the first of two shapes lies, by its quarter less that of the second
SIDES = {"left": -1, "right": 1, "above": -2, "below": 2}
# of all scenes
HELDOUT = 0.1
# drawn for each scene, whether it needs all of them or not
_NUMBERS = 18
# below this, discs are crosses and rings are squares
SMALLEST = 5
# of a line that marks a quarter: pixels along a side of its square, of which the first row is filled
MARK = 3


class Shape(NamedTuple):
    """One shape.

    Args:
        kind: What it is, a name of `KINDS`; or `mark`.
        quarter: Which quarter of the image it lies in: top left, top right, bottom left, bottom right, from 0.
        size: Pixels along a side.
        down: Pixels between the upper edges of the quarter and of the shape,
        right: and between the left ones.
    """

    kind: str
    quarter: int
    size: int
    down: int
    right: int


@dataclass(frozen=True)
class Shapes(ImageConfig, kind="shapes"):
    """Images of drawn shapes, one channel, 1 where a shape is and 0 elsewhere.

    Args:
        batch_size: Images per batch.
        size: Rows and columns of pixels; each quarter holds one shape at most.
        task: What is asked of an image, see the module.
        seed: Of what is drawn.
    """

    batch_size: int = 64
    size: Count = 16
    task: Literal["kind", "side", "marked", "same", "count"] = "marked"
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            self.size % 2 == 0 and self.size >= 2 * SMALLEST,
            f"shapes: size={self.size}; give an even number from {2 * SMALLEST} on, so that a quarter holds a shape.",
        )
        least = 2 * (SMALLEST + MARK - 1)
        require(
            self.task != "marked" or self.size >= least,
            f"shapes: size={self.size} has no room for a mark beside a shape; give {least} or more.",
        )

    def classes(self) -> tuple[str, ...]:
        if self.task in ("kind", "marked"):
            return KINDS
        if self.task == "side":
            return tuple(SIDES)
        return ("different", "same") if self.task == "same" else ("0", "1", "2", "3")

    def image(self) -> tuple[int, int]:
        return self.size, self.size

    def drawn(self, split: Split, random: torch.Generator) -> ImagesOfClasses:
        found = self.scenes(split, random)
        scenes = [next(found) for _ in range(self.batch_size)]
        classes = torch.tensor([self.answer(scene) for scene in scenes])
        return ImagesOfClasses(torch.stack([self.picture(scene) for scene in scenes])[:, None], classes)

    def scenes(self, split: Split, random: torch.Generator) -> Iterator[tuple[Shape, ...]]:
        """Yield scenes of a split without end; what is in one decides whether it is held out, so splits share none."""
        while True:
            for numbers in torch.rand(256, _NUMBERS, generator=random).tolist():
                scene = self._scene(numbers)
                if is_heldout(HELDOUT, self.size, *scene) == (split == "heldout"):
                    yield scene

    def answer(self, scene: tuple[Shape, ...]) -> int:
        """Return the index of a scene's class."""
        first, *others = scene
        if self.task == "kind":
            return KINDS.index(first.kind)
        if self.task == "marked":
            return KINDS.index(next(shape.kind for shape in others if shape.quarter == first.quarter))
        if self.task == "side":
            return list(SIDES.values()).index(first.quarter - others[0].quarter)
        return sum(shape.kind == first.kind for shape in others)

    def picture(self, scene: tuple[Shape, ...]) -> Float[Tensor, "row column"]:
        """Return the image of a scene."""
        found = torch.zeros(self.size, self.size)
        half = self.size // 2
        for shape in scene:
            top, left = shape.quarter // 2 * half + shape.down, shape.quarter % 2 * half + shape.right
            found[top : top + shape.size, left : left + shape.size] = stamp(shape.kind, shape.size)
        return found

    def _scene(self, numbers: list[float]) -> tuple[Shape, ...]:
        if self.task == "kind":
            return (self._shape(KINDS[int(numbers[0] * len(KINDS))], int(numbers[1] * 4), numbers[2:5]),)
        if self.task == "marked":
            mark = Shape("mark", int(numbers[0] * 4), MARK, 0, 0)
            kinds = [KINDS[int(number * len(KINDS))] for number in numbers[1:5]]
            own = [numbers[5 + 3 * i : 8 + 3 * i] for i in range(4)]
            return mark, *(self._shape(kind, i, own[i], MARK - 1) for i, kind in enumerate(kinds))
        if self.task == "side":
            return self._side(numbers)
        return self._same(numbers) if self.task == "same" else self._count(numbers)

    def _side(self, numbers: list[float]) -> tuple[Shape, ...]:
        """Return a square and a bar in two quarters that touch, each side of the bar as often."""
        apart = list(SIDES.values())[int(numbers[0] * len(SIDES))]
        upper_left = int(numbers[1] * 2) * (2 if abs(apart) == 1 else 1)
        square = upper_left + max(apart, 0)
        return self._shape("square", square, numbers[2:5]), self._shape("bar", square - apart, numbers[5:8])

    def _same(self, numbers: list[float]) -> tuple[Shape, ...]:
        """Return two shapes in two quarters, of one kind in half of all scenes."""
        first = int(numbers[0] * 4)
        second = (first + 1 + int(numbers[1] * 3)) % 4
        kinds = _kinds(numbers[2:4], [numbers[4] < 0.5])
        order = sorted(zip((first, second), kinds, (numbers[5:8], numbers[8:11])))
        return tuple(self._shape(kind, quarter, own) for quarter, kind, own in order)

    def _count(self, numbers: list[float]) -> tuple[Shape, ...]:
        """Return a shape in each quarter, of which 0 to 3 are of the first one's kind, each number as often."""
        n = int(numbers[0] * 4)
        # of three others, which are alike: n of them, beginning anywhere
        begin = int(numbers[1] * 3)
        alike = [(i - begin) % 3 < n for i in range(3)]
        kinds = _kinds(numbers[2:6], alike)
        return tuple(self._shape(kind, i, numbers[6 + 3 * i : 9 + 3 * i]) for i, kind in enumerate(kinds))

    def _shape(self, kind: str, quarter: int, numbers: list[float], free: int = 0) -> Shape:
        """Return a shape anywhere in a quarter, of which the first rows and columns may be kept free."""
        room = self.size // 2 - free
        size = SMALLEST + int(numbers[0] * (room - SMALLEST + 1))
        down, right = (free + int(number * (room - size + 1)) for number in numbers[1:3])
        return Shape(kind, quarter, size, down, right)


def _kinds(numbers: list[float], alike: list[bool]) -> list[str]:
    """Return a first kind, and others that are it or any of those it is not."""
    first, *others = numbers
    n = len(KINDS)
    one = int(first * n)
    return [KINDS[one], *(KINDS[one if same else (one + 1 + int(x * (n - 1))) % n] for same, x in zip(alike, others))]


@lru_cache
def stamp(kind: str, size: int) -> Float[Tensor, "row column"]:
    """Return a shape by itself, 1 where it is and 0 elsewhere, `size` pixels along a side."""
    place = torch.arange(size) - (size - 1) / 2
    down, right = place[:, None].expand(size, size), place.expand(size, size)
    distance = (down.square() + right.square()).sqrt()
    thin = size / 6
    found = {
        "square": torch.ones(size, size, dtype=torch.bool),
        "disc": distance <= size / 2,
        "ring": (distance <= size / 2) & (distance > size / 2 - 1.5),
        "cross": (down.abs() <= thin) | (right.abs() <= thin),
        "bar": down.abs() <= thin,
        "mark": down == down.min(),
    }
    return found[kind].float()
