"""Pictures of labelled numbers: how they are drawn, in which colours, and who shows a result.

Names are imported when first used: `import glassformer` asks for viewers alone.
"""

from typing import TYPE_CHECKING

from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.figures.drawing import Panel, colour_map, columns_for, draw, draw_on, new_figure

__all__ = ["Panel", "colour_map", "columns_for", "draw", "draw_on", "new_figure"]

__getattr__, __dir__ = lazily(__name__, {"drawing": __all__})
