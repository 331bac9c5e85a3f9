"""The explorer in a notebook: the page that `glassformer serve` opens, in a cell, of a model that is in memory.

    gf.explorer.widget(model, "def f(")

Names are imported when first used: the widget needs the extra `notebook`.
"""

from typing import TYPE_CHECKING

from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.explorer.notebook import widget as widget

_HOMES = {"notebook": ("widget",)}

__all__ = ["widget"]

__getattr__, __dir__ = lazily(__name__, _HOMES)
