"""Pages as widgets: what a cell of a notebook shows, drawn by the script that draws the page. Needs anywidget."""

from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import traitlets

from glassformer.files import json_text
from glassformer.render.page import cell_module
from glassformer.words import language


class PageWidget(anywidget.AnyWidget):
    """A page in a cell of a notebook, in the language that is spoken where it is made.

    Args:
        kind: Of page.
        payload: The document that it draws.
        height: In pixels.
        title: What it is, in a line: for terminals.
        static: Makes what is shown where widgets are not, as HTML without scripts.
        more: Further traits.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    kind = traitlets.Unicode().tag(sync=True)
    lang = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int().tag(sync=True)
    document = traitlets.Unicode().tag(sync=True)

    def __init__(
        self, kind: str, payload: Mapping[str, Any] | None = None, *, height: int, title: str,
        static: Callable[[], str], **more: Any,
    ) -> None:  # fmt: skip
        self.title, self.static = title, static
        document = json_text(payload or {}, tight=True, finite=True)
        script = cell_module(kind, payload)
        super().__init__(kind=kind, document=document, height=height, lang=language(), _esm=script, **more)

    def __repr__(self) -> str:
        return f"<{self.title}>"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return what a notebook keeps of it: the widget, and what stands in its place where there are none."""
        found = super()._repr_mimebundle_(**kwargs)
        # None once it is closed
        return found and ({**found[0], "text/html": self.static(), "text/plain": repr(self)}, found[1])
