"""How any result is looked at: as a page, on the terminal, in a notebook.

`import glassformer` registers this module with `glassformer.figures.viewers`, where `Result` finds it.
"""

import re
import sys
from collections.abc import Mapping
from functools import singledispatch
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console

from glassformer.analysis import Run
from glassformer.analysis.reports import Circuits, Explanation
from glassformer.analysis.reports.attention import attention_of
from glassformer.errors import MissingExtra
from glassformer.labelled import Labelled, Result, results_within, spaced
from glassformer.render.page import document_page, results_document, title_of
from glassformer.render.page.results import about
from glassformer.render.terminal import show as print_tables
from glassformer.render.terminal.attention import most_seen
from glassformer.render.terminal.tables import labels_of

if TYPE_CHECKING:
    from glassformer.render.widget import PageWidget

# lines of a summary, entries of each tensor in it; height of a page in a notebook, in pixels
MOST_ROWS, MOST_LARGEST, HEIGHT = 24, 3, 720

_LEFT = "text-align:left;vertical-align:top;padding:0.1em 1em 0.1em 0"


@singledispatch
def document(found: Result | Run) -> tuple[str, Mapping[str, Any]]:
    """Return the kind of page that something has, and the document that it draws.

    An explanation and a circuits report have a page of their own, other results one made of their numbers.
    """
    assert isinstance(found, Result), "a run has a page of its own"
    return "results", results_document(found)


@document.register
def _(found: Explanation) -> tuple[str, Mapping[str, Any]]:
    return "explanation", found.to_dict()


@document.register
def _(found: Circuits) -> tuple[str, Mapping[str, Any]]:
    return "circuits", found.to_dict()


@document.register
def _(found: Run) -> tuple[str, Mapping[str, Any]]:
    return "attention", attention_of(found).to_dict()


def page(found: Result | Run) -> str:
    """Return the page of a result or a run, one HTML document."""
    return document_page(*document(found))


def widget(found: Result | Run, height: int) -> Any:
    """Return the page of a result or a run as a widget of a notebook; raises `MissingExtra` without anywidget."""
    kind, payload = document(found)
    return page_widget()(
        kind, payload, height=height, title=title_of(kind, payload), static=lambda: found._repr_html_(),
    )  # fmt: skip


def page_widget() -> "type[PageWidget]":
    """Return the class of widgets that draw pages; raises `MissingExtra` without anywidget."""
    try:
        from glassformer.render.widget import PageWidget
    except ImportError as error:
        raise MissingExtra("widgets need anywidget: pip install 'glassformer[notebook]'.") from error
    return PageWidget


def show(found: Result | Run) -> None:
    """Display the page of a result or a run in a notebook; elsewhere print its tables."""
    if not in_notebook():
        return Console().print(most_seen(attention_of(found))) if isinstance(found, Run) else print_tables(found)
    from IPython.display import HTML, display  # type: ignore[import-not-found]  # where a notebook runs, it is there

    display(HTML(framed(page(found), type(found).__name__)))


def in_notebook() -> bool:
    """Return whether a kernel runs this code, and not a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def framed(document: str, title: str) -> str:
    """Return a page as a frame within another: its script runs, but reaches nothing outside of the frame."""
    return (
        f'<div><iframe sandbox="allow-scripts" title="{escape(title)}" srcdoc="{escape(document)}" '
        f'style="width:100%;height:{HEIGHT}px;border:1px solid #8884;border-radius:6px"></iframe></div>'
    )


def summary(found: Result) -> str:
    """Return what a notebook shows of a result by itself: what it is, and a row for each of its fields.

    It is a table without styles or scripts of the page's, so that it survives every export of a notebook.
    """
    words = about(type(found))
    names = [name for name in vars(found) if not name.startswith("_")]
    said = {name: _said(getattr(found, name)) for name in dict.fromkeys([*found.headline_names(), *names])}
    shown = [(name, text) for name, text in said.items() if text]
    rows = [_row(name, text, words["fields"].get(name, "")) for name, text in shown[:MOST_ROWS]]
    more = f"<p>… and {len(shown) - MOST_ROWS} more</p>" if len(shown) > MOST_ROWS else ""
    return (
        f"<div><p><b>{escape(spaced(type(found).__name__))}</b>: {_in_code(words['summary'])}</p>"
        f"<table>{''.join(rows)}</table>{more}"
        "<p><code>.show()</code> opens the page here, <code>.plot()</code> draws it, "
        "<code>.html(path)</code> writes the page.</p></div>"
    )


def _row(name: str, text: str, words: str) -> str:
    return (
        f'<tr><th style="{_LEFT}" title="{escape(words)}"><code>{escape(name)}</code></th>'
        f'<td style="{_LEFT};white-space:pre-wrap">{escape(text)}</td></tr>'
    )


def _in_code(words: str) -> str:
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(words))


def _said(value: Any) -> str:
    """Return a value in a line or two: of a tensor its axes and largest entries; nothing of what has none."""
    if isinstance(value, Labelled) and value.axes:
        sizes = " × ".join(f"{axis} {size}" for axis, size in zip(value.axes, value.shape))
        return f"{sizes}{_largest(value)}"
    if isinstance(value, Result):
        inner = [name for name, _ in results_within(value)] or value.headline_names()
        return f"{spaced(type(value).__name__)}: {', '.join(inner)}"
    if isinstance(value, (list, tuple, Mapping)):
        entries: list[Any] = list(value)
        plain = all(isinstance(entry, str | int | float) for entry in entries) and not isinstance(value, Mapping)
        return _cut(", ".join(map(str, entries))) if plain else f"{len(entries)} entries" if entries else ""
    if isinstance(value, Labelled):
        return f"{value.values.item():.4g}"
    return _cut(str(value)) if isinstance(value, str | int | float) else ""


def _cut(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _largest(value: Labelled) -> str:
    numbers = value.values
    if numbers.is_complex() or not numbers.numel() or not bool(numbers.isfinite().any()):
        return ""
    finite = Labelled(numbers.double().nan_to_num(0.0, 0.0, 0.0), value.axes, value.coords)
    found = finite.top(MOST_LARGEST, by_size=True)
    entries = (f"{labels_of(value.axes, places)}: {number:.3g}" for places, number in found)
    return "; largest " + ", ".join(entries)
