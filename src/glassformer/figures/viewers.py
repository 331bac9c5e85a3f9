"""Who shows a result: packages below ask here, and never import the one above that draws pages and tables."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Viewer(Protocol):
    """Shows any result, and any run, as a page, on the terminal and in a notebook."""

    def page(self, found: Any) -> str:
        """Return a self-contained HTML document."""
        ...

    def show(self, found: Any) -> None:
        """Display the page in a notebook; elsewhere print tables."""
        ...

    def widget(self, found: Any, height: int) -> Any:
        """Return the page as a widget of a notebook, so many pixels high."""
        ...

    def summary(self, found: Any) -> str:
        """Return a few lines of HTML without scripts."""
        ...


_finders: list[Callable[[], Viewer]] = []


def register(find: Callable[[], Viewer]) -> None:
    """Let results be shown by what a function returns; it is called when something is first looked at."""
    _finders[:] = [find]


def viewer() -> Viewer:
    """Return the viewer that was registered last; `import glassformer` registers that of `glassformer.render`."""
    return _finders[0]()
