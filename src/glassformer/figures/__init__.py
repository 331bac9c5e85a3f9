"""Pictures of labelled numbers: how they are drawn, in which colours, and who shows a result."""

from glassformer.figures.drawing import Panel, colour_map, columns_for, draw, draw_on, new_figure

__all__ = ["Panel", "colour_map", "columns_for", "draw", "draw_on", "new_figure"]
