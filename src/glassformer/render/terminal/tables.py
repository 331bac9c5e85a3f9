"""What tables on the terminal are made of, and the function that finds a result's view."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassformer.analysis.reports.model_facts import ModelFacts
from glassformer.data import UNMARKED, Marks
from glassformer.figures.colours import TERMINAL
from glassformer.labelled import Coordinate, Labelled, Result, spaced
from glassformer.provenance import Note, distinct
from glassformer.words import sentence, spoken, spoken_each

BAR, MOST, MOST_TOKENS, WIDE = 16, 8, 120, 6
POSITIVE, NEGATIVE, QUIET, STRONG = TERMINAL["positive"], TERMINAL["negative"], "dim", "bold"

# whether norms and MLPs keep what they did
HELD = {"frozen": sentence("frozen"), "live": sentence("live"), "recomputed": sentence("recomputed")}


def _unless_denied(view: Any) -> Any:
    """Let a view show what can be called found, and of a result in which nothing can, numbers without a rank."""

    @functools.wraps(view)
    def shown(result: Any, *top: int) -> RenderableType:
        return unranked(result) if getattr(result, "denied", False) else view(result, *top)

    return shown


@singledispatch
def unranked(result: Result) -> RenderableType:
    """Return what is printed of a result in which nothing can be called found."""
    grid = table(*spoken_each("number", ""))
    for name in result.headline_names():
        value = getattr(result, name)
        if isinstance(value, Labelled):
            numbers = value.values.detach().double()
            numbers = numbers[numbers.isfinite()]
            ends = [f"{float(end):+.3g}" for end in (numbers.min(), numbers.max())] if numbers.numel() else []
            grid.add_row(_name_of(name), spoken(" to ").join(ends))
    nothing = Text(spoken("Nothing in it is called found. Its numbers: --json, --html."), style=QUIET)
    return section(spoken(spaced(type(result).__name__)), grid, nothing)


@_unless_denied
@singledispatch
def tables(result: Result) -> RenderableType:
    """Return what `show` prints, for any rich console: a result's own view, or the largest of its main entries."""
    view: Any = largest.dispatch(type(result))
    return any_result(result, MOST) if view is largest.dispatch(object) else view(result)


# axes of places in a text; tokens of the vocabulary stand behind their ids, whatever the axis
TOKENS, SOURCE = ("pos", "query", "key"), "source "
_BEHIND_ID = re.compile(r"\d+:")
# axes whose labels are words of ours, and neither heads nor what users name
OURS = ("condition", "intervention", "variant", "weights", "component")
_WITHOUT = re.compile(r"without (L\d+ \w+)")
# axes along which numbers are in units of their own, so that there is no largest among them, or are parts of one whole
UNLIKE = ("measure", "outcome", "factor")


@_unless_denied
@singledispatch
def largest(result: Result, top: int) -> RenderableType:
    """A result's view with so many of its largest entries; of a view that ranks nothing, the view.

    A view registered here serves `tables` too, with its own default of `top`.
    """
    return tables(result)


def any_result(result: Result, top: int) -> RenderableType:
    """Return the largest entries of what a class of results says first."""
    parts = [_entries(panel.name, panel.value, top) for panel in result.panels()]
    return Group(section(spoken(spaced(type(result).__name__))), *parts)


def _entries(name: str, value: Labelled, top: int) -> RenderableType:
    if value.values.is_complex():
        return Text(spoken("{name}: {value}", name=_name_of(name), value=repr(value)), style=QUIET)
    if len(value.axes) == 2 and value.axes[1] in UNLIKE:
        return _columns(name, value, top)
    numbers = dataclasses.replace(value, values=value.values.detach().double().nan_to_num(0.0, 0.0, 0.0))
    found = numbers.top(top, by_size=True)
    grid = table(_name_of(name), "  ".join(map(_name_of, value.axes)), "", left=(0, 2))
    for places, number in found:
        grid.add_row(labels_of(value.axes, places), _brief(number), bar(number, abs(found[0][1])))
    rest = value.values.numel() - len(found)
    return Group(grid, *([Text(spoken("{n:,} more", n=rest), style=QUIET)] if rest else []))


def _brief(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _name_of(name: str) -> str:
    return spoken(name.replace("_", " "))


def _columns(name: str, value: Labelled, top: int) -> RenderableType:
    """Return a table with a column for each measure: every row, or those with most of the first."""
    values, rows = value.values.detach().double(), value.labels(value.axes[0])
    order = range(len(rows))
    if len(rows) > top:
        order = values[:, 0].nan_to_num(-math.inf).argsort(descending=True)[:top].tolist()
    # a word a line: names of measures are longer than their numbers
    heads = [_name_of(str(one)).replace(" ", "\n") for one in value.labels(value.axes[1])]
    grids = []
    for first in range(0, len(heads), WIDE):
        grid = table(_name_of(name), *heads[first : first + WIDE])
        for i in order:
            numbers = values[i, first : first + WIDE].tolist()
            grid.add_row(label_of(value.axes[0], rows[i], 24), *("" if math.isnan(x) else _brief(x) for x in numbers))
        grids.append(grid)
    rest = len(rows) - len(order)
    return Group(*grids, *([Text(spoken("{n:,} more", n=rest), style=QUIET)] if rest else []))


def show(result: Result, console: Console | None = None) -> None:
    """Print a result as tables, and below them what must be known to read them right."""
    denied = refusals([result])
    # what is printed at once stands on one line
    (console or Console()).print(Group(*denied, tables(result), *noted(n for n in result.notes if not n.denies)))


def context_of(model: ModelFacts) -> str:
    """Return how many tokens a model takes, and how many its training gave it at once."""
    if model.trained_length is None:
        return spoken("context of {n:,} tokens", n=model.max_len)
    return spoken("context of {n:,} tokens, trained on {trained:,}", n=model.max_len, trained=model.trained_length)


def refusals(results: Iterable[Any]) -> list[Text]:
    """Return why nothing in some results can be called found, as lines that come before all others."""
    notes = distinct(*(getattr(result, "notes", ()) for result in results))
    return [Text(spoken("Nothing found: {note}", note=note), style=STRONG) for note in notes if note.denies]


def noted(notes: Iterable[Note]) -> list[Text]:
    """Return notes as lines."""
    return [Text(spoken("Note: {note}", note=note), style=QUIET) for note in notes]


def lines(result: Result, width: int = 100) -> Iterator[str]:
    """Plain lines of what `show` prints, for logs and tests."""
    console = Console(width=width, color_system=None, record=False, file=None)
    with console.capture() as capture:
        show(result, console)
    yield from capture.get().splitlines()


def label_of(axis: str, label: Coordinate, width: int = 18) -> str:
    """Return a coordinate as it is shown in a table: a token's spaces as signs, names as they are."""
    text = _called(str(label)) if axis in OURS else str(label)
    if axis not in TOKENS and not _BEHIND_ID.match(text):
        return visible(text, width, space=" ")
    # a space of ours, and not of the token
    ours = SOURCE if text.startswith(SOURCE) else ""
    return ours + visible(text.removeprefix(SOURCE), width)


def _called(label: str) -> str:
    """Return the name that an analysis of ours gave, in the language that is spoken."""
    part = _WITHOUT.fullmatch(label)
    return spoken("without {part}", part=part[1]) if part else spoken(label)


def labels_of(axes: Sequence[str], places: Sequence[Coordinate]) -> str:
    """Return the coordinates of an entry beside each other, further apart than the words of a name."""
    return "  ".join(label_of(axis, place, 24) for axis, place in zip(axes, places))


def visible(text: str, width: int = 16, *, space: str = "·") -> str:
    """Return a token as it can be shown in a table: spaces and line breaks as signs, nothing that moves the cursor."""
    signs = {" ": space, "\n": "⏎", "\t": "⇥", "\r": "␍"}
    shown = "".join(signs.get(c, c if c.isprintable() else f"\\u{ord(c):04x}") for c in text)
    return shown if cell_len(shown) <= width else set_cell_size(shown, width - 1).rstrip() + "…"


def numbered(name: str, tokens: Sequence[str], marks: Marks | None = None) -> Text:
    """Return tokens as a line, each behind its index: unknown ones marked, those of one character as the character."""
    line, odd = Text.assemble((name, QUIET), " "), marks or UNMARKED
    spelled = {one.first: one for one in odd.spelled if one.end <= len(tokens)}
    i = 0
    while i < len(tokens):
        if i >= MOST_TOKENS // 2 and (left_out := len(tokens) - MOST_TOKENS // 2 - i) > 0 and len(tokens) > MOST_TOKENS:
            line.append(spoken(" … {n} more …", n=left_out), style=QUIET)
            i += left_out
            while any(one.first < i < one.end for one in odd.spelled):
                i += 1
            continue
        if i in spelled:
            one = spelled[i]
            line.append(f" {i}-{one.end - 1}:{visible(one.character)}", style=NEGATIVE)
            i = one.end
            continue
        line.append(f" {i}:{visible(tokens[i])}", style=NEGATIVE if i in odd.unknown else "")
        i += 1
    return line


def bar(value: float, largest: float, width: int = BAR) -> Text:
    """Return a bar for a magnitude, full from `largest` on; negative values in the other colour."""
    eighths = min(8 * width, round(8 * width * abs(value) / largest)) if largest > 0 else 0
    blocks = "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")
    return Text(blocks, style=POSITIVE if value >= 0 else NEGATIVE)


def table(*columns: str, left: tuple[int, ...] = (0,)) -> Table:
    table = Table(box=None, pad_edge=False, header_style=QUIET, show_header=any(columns[1:]))
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i in left else "right", no_wrap=True)
    return table


def section(title: str, *parts: RenderableType) -> RenderableType:
    # a table's own title would be wrapped to the width of the table
    return Group(Text(title, style=STRONG), *parts)
