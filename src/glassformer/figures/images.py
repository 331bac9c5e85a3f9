"""Figures of images beside each other. Needs matplotlib."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from glassformer.errors import ShapeMismatch
from glassformer.figures.drawing import SMALL, new_figure

MOST_IMAGES = 120
# inches of an image and the words above it
CELL = 0.95


def draw_images(
    images: Float[Tensor, "batch channel row column"], labels: Sequence[str] = (), *, columns: int = 10
) -> Any:
    """A figure of images of numbers from -1 to 1; what lies outside is drawn as if it lay at the end.

    Args:
        images: Of one channel, in grey, or of three, red, green and blue.
        labels: What stands above each.
        columns: How many stand beside each other.

    Raises:
        MissingExtra: matplotlib is not installed.
        ShapeMismatch: There is none, or more than anyone would look at, or their channels are no colours.
    """
    if not 0 < len(images) <= MOST_IMAGES or images.shape[1] not in (1, 3):
        found = " x ".join(map(str, images.shape))
        raise ShapeMismatch(f"draw_images: 1 to {MOST_IMAGES} images of one or three channels; found {found}.")
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    figure = new_figure(CELL * columns, CELL * rows + 0.2)
    shown = ((images.detach().cpu().float() + 1) / 2).clamp(0, 1).movedim(1, -1).numpy()
    for i, image in enumerate(shown):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)
        axes.set_axis_off()
        if i < len(labels):
            axes.set_title(labels[i], fontsize=SMALL, pad=2, parse_math=False)
    return figure
