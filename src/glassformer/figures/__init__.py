"""Pictures of labelled numbers: how they are drawn, in which colours, and who shows a result.

Names are imported when first used: `import glassformer` asks for viewers alone.
"""

from typing import TYPE_CHECKING

from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.figures.drawing import Panel, colour_map, columns_for, draw, draw_on, new_figure
    from glassformer.figures.images import draw_images

__all__ = ["Panel", "colour_map", "columns_for", "draw", "draw_images", "draw_on", "new_figure"]

_DRAWING = [name for name in __all__ if name != "draw_images"]
__getattr__, __dir__ = lazily(__name__, {"drawing": _DRAWING, "images": ["draw_images"]})
