"""Figures of labelled numbers: bars, lines, maps, masks, small multiples, complex numbers. Needs matplotlib.

Colours come from `figures.colours`, as on pages. Nothing is written smaller than 8 points: where labels would touch,
every second one is left out, and so on.
"""

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from glassformer.errors import MissingExtra, ShapeMismatch
from glassformer.figures.colours import LIGHT, SERIES, Ramp

MOST_PANELS, MOST_BARS, MOST_CURVES = 24, 40, 6
LINE, LETTERS, SMALL, MEDIUM = 0.165, 15, 8, 10  # inches that a line of small text takes; its letters per inch; points
MOST_BESIDE = 30  # characters of a label beside a bar, or above a panel
# what is averaged for an overview; what has numbers of different units; what is drawn as curves; what has an order
AVERAGED = ("batch", "sample", "prompt", "pair")
UNITS = ("metric", "measure", "outcome")
CURVES = ("count", "threshold", "temperature", "amount", "curvature", "weight", "depth", "step", "length", "steps")
POWERS = ("length", "steps")  # along which numbers grow as powers, so that both axes are logarithmic
ORDERED = ("pos", "query", "key", "site", *CURVES)
PLACES = ("pos", "query", "key", "position")  # what is a place in a text
PALE = 0.02  # of its number, what the colour of a cell shows that is no surer than noise


# a token behind its position; the spaces before and behind it
_PLACE, _AROUND = re.compile(r"^(?:\d+:)?"), re.compile(r"^ +| +$")


class Panel(NamedTuple):
    """A labelled tensor of a figure, under its name.

    Args:
        name: Written above it.
        value: The `Labelled`.
        signed: Whether its numbers have a sign, so that zero is the middle of the colours whatever the data are;
            numbers below zero show as such in any case.
        of_a_whole: Whether they are shares of a whole, whose colours end at 1 whatever the largest is.
        trained_length: Tokens of the longest rows in training: a line on maps shows where a text goes beyond them.
        error: Standard errors beside the numbers; what is within two of them is pale.
        band: Lower and upper ends of intervals of the numbers, of the same axes: lines are drawn with them.
    """

    name: str
    value: Any
    signed: bool = False
    of_a_whole: bool = False
    trained_length: int | None = None
    error: Any = None
    band: tuple[Any, Any] | None = None


def new_figure(width: float, height: float) -> Any:
    """An empty figure, sizes in inches; raises `MissingExtra` without matplotlib."""
    return _figures()(figsize=(width, height), layout="constrained")


def _figures() -> Any:
    try:
        from glassformer.figures._shown import Figure
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'glassformer[plot]'.") from error
    return Figure


def columns_for(panels: int) -> int:
    """The number of panels beside each other, so that a page's column shows them at a size to read."""
    return min(panels, 2) if panels <= 8 else 3


def draw(panels: Sequence[Panel], title: str = "", *, overview: bool = False, notes: Sequence[str] = ()) -> Any:
    """A figure of labelled tensors, with several panels for one of more than two axes.

    Args:
        panels: What to draw.
        title: Written above all panels.
        overview: Average over prompts and samples, leave out what is defined nowhere, and if there are more maps than
            fit, draw the first and say so.
        notes: What must be known of the numbers, written below.

    Raises:
        MissingExtra: matplotlib is not installed.
        ShapeMismatch: Nothing to draw, or more panels than anyone would look at.
    """
    # looked for first: panels are laid out by matplotlib's fonts
    _figures()
    defined = [panel for panel in panels if _defined(panel.value)] or panels
    given = [_averaged(panel) for panel in defined] if overview else panels
    shown = [part for panel in given for part in _parts(panel, 1 if overview else 2)]
    if not shown:
        raise ShapeMismatch("plot: there is no labelled tensor to draw.")
    if len(shown) > MOST_PANELS and not overview:
        axis = next((panel.value.axes[0] for panel in panels if panel.value.values.ndim > 2), "…")
        raise ShapeMismatch(
            f"plot: {len(shown)} maps are more than the {MOST_PANELS} that fit one figure. Pick some: "
            f".select({axis}=…).plot()."
        )
    if len(shown) > MOST_PANELS:
        title = f"{title} (the first {MOST_PANELS} of {len(shown)} maps)".strip()
    return _figure(shown[:MOST_PANELS], title, notes)


def draw_on(axes: Any, panel: Panel) -> None:
    """Draw a labelled tensor of one or two axes on matplotlib axes."""
    numbers = panel.value.values.detach().cpu()
    if numbers.is_complex():
        return _plane(axes, panel.value, numbers.numpy())
    if numbers.dtype.is_floating_point or numbers.dtype.is_signed:
        numbers = numbers.double()
    numbers = numbers.numpy()
    if numbers.dtype == bool:
        return _mask(axes, panel.value, numbers)
    if numbers.ndim == 2:
        curved = panel.value.axes[1] in CURVES and len(numbers) <= MOST_CURVES
        return _curves(axes, panel, numbers) if curved else _map(axes, panel, numbers)
    return _one_axis(axes, panel, numbers)


def _figure(panels: list[Panel], title: str, notes: Sequence[str]) -> Any:
    columns = columns_for(len(panels))
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = [max(_height(panel.value) for panel in row) for row in rows]
    width = (6.4, 4.8 * 2, 3.9 * 3)[columns - 1]
    below = [line for note in notes for line in textwrap.wrap(_shown(note, len(note)), int(LETTERS * width))]
    figure = new_figure(width, sum(heights) + LINE * len(below))
    if below:
        words = "\n".join(below)
        figure.supxlabel(words, x=0.01, ha="left", fontsize=SMALL, parse_math=False, fontfamily=_families())
    if title:
        figure.suptitle(title, fontsize=MEDIUM + 2, parse_math=False)
    grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
    for r, row in enumerate(rows):
        for c, panel in enumerate(row):
            axes = figure.add_subplot(grid[r, c])
            _retitle(axes, panel.name.replace("_", " "))
            axes.tick_params(labelsize=SMALL)
            draw_on(axes, panel)
            axes.xaxis.label.set_size(SMALL + 1)
            axes.yaxis.label.set_size(SMALL + 1)
    return figure


def _height(value: Any) -> float:
    """Return inches for a panel: room for a line of text per row that has a label, within limits."""
    named = value.axes[0] in value.coords
    below = 0.9 + (0.07 * _longest(value, 1) if value.values.ndim == 2 else 0)
    return min(8.0, max(3.2, LINE * value.shape[0] + below if named else 0))


def _longest(value: Any, axis: int) -> int:
    return max((len(_shown(label)) for label in value.labels(value.axes[axis])), default=0)


def _defined(value: Any) -> bool:
    numbers = value.values
    return numbers.dtype.is_complex or not numbers.dtype.is_floating_point or bool(numbers.isfinite().any())


# ---- panels out of tensors of any number of axes


def _averaged(panel: Panel) -> Panel:
    """Return a panel with the means over prompts and samples, which its name then says."""
    name, value, error = panel.name, panel.value, None
    averaged = [axis for axis in value.axes if axis in AVERAGED and value.size(axis) > 1]
    for axis in averaged:
        if value.values.ndim > 1 and value.values.dtype.is_floating_point:
            name = f"{name}, mean over {value.size(axis)} of {axis}".removeprefix(", ")
            # over two axes it would not be one number
            error = _standard_error(value, axis) if len(averaged) == 1 else None
            value = _mean(value, axis)
    return panel._replace(name=name, value=value, error=error, band=panel.band if value is panel.value else None)


def _mean(value: Any, axis: str) -> Any:
    return _without(value, axis, value.blanked().values.nanmean(value.dim(axis)))


def _standard_error(value: Any, axis: str) -> Any:
    """Return standard errors of the means over an axis; NaN where fewer than two numbers are defined."""
    numbers, dim = value.blanked().values, value.dim(axis)
    counted = (~numbers.isnan()).sum(dim)
    squares = (numbers - numbers.nanmean(dim, keepdim=True)).square().nansum(dim)
    return _without(value, axis, (squares / (counted - 1) / counted).sqrt().masked_fill(counted < 2, math.nan))


def _without(value: Any, axis: str, values: Any) -> Any:
    coords = {name: labels for name, labels in value.coords.items() if name != axis}
    axes = tuple(name for name in value.axes if name != axis)
    rows = {} if axis == "batch" else value.rows
    return type(value)(values, axes, coords, value.of, rows)


def _parts(panel: Panel, least: int) -> Iterator[Panel]:
    """Yield panels of one or two axes: units apart, and one for each entry of the axes in front.

    Axes of one entry go first, as long as `least` axes are left. Maps of prompts whose tokens differ are of one each.
    """
    name, value, error, band = panel.name, panel.value, panel.error, panel.band
    if value.values.numel() == 0 or value.values.ndim == 0:
        return
    single = [axis for axis in value.axes if value.size(axis) == 1][: max(0, value.values.ndim - least)]
    units = [axis for axis in value.axes if axis in UNITS] if value.values.ndim > 1 else []
    own = ["batch"] if value.rows else []
    split = next(
        iter([*single, *units, *own, *value.axes[:1]] if single or units or value.values.ndim > 2 else []), None
    )
    if split is None:
        yield panel._replace(value=value.blanked())
        return
    for i, label in enumerate(value.labels(split)):
        said = "" if split in single and split not in value.coords else _said(split, label)
        part = panel._replace(
            name=", ".join(filter(None, (name, said))),
            value=value.select(**{split: i}),
            error=None if error is None else error.select(**{split: i}),
            band=None if band is None else (band[0].select(**{split: i}), band[1].select(**{split: i})),
        )
        yield from _parts(part, least)


def _said(axis: str, label: Any) -> str:
    words = _shown(label, MOST_BESIDE)
    return words.replace("_", " ") if axis in UNITS else f"{axis.replace('_', ' ')} {words}"


# ---- one axis


def _one_axis(axes: Any, panel: Panel, numbers: Any) -> None:
    [axis], labels = panel.value.axes, panel.value.labels(panel.value.axes[0])
    named = any(isinstance(label, str) for label in labels)
    if named and (len(labels) <= MOST_BARS or axis not in ORDERED):
        return _bars(axes, panel, numbers)
    numeric = all(isinstance(label, int | float) for label in labels)
    marker = {"marker": "o", "markersize": 3.5} if len(labels) <= MOST_BARS else {}
    places = labels if numeric else range(len(labels))
    axes.plot(places, numbers, color=SERIES[0], lw=1.6, **marker)
    _bands(axes, panel, places)
    axes.set_xlabel(axis.replace("_", " "))
    axes.grid(alpha=0.25)
    if not numeric:
        _ticks(axes, 0, panel.value, axis)


def _bars(axes: Any, panel: Panel, numbers: Any) -> None:
    [axis], labels = panel.value.axes, panel.value.labels(panel.value.axes[0])
    values: list[float] = numbers.tolist()
    chosen = [i for i in range(len(values)) if math.isfinite(values[i])]
    if len(chosen) > MOST_BARS:
        chosen = sorted(chosen, key=lambda i: -abs(values[i]))[:MOST_BARS]
        _retitle(axes, f"{axes.get_title()}: the {MOST_BARS} largest of {len(values):,}")
    signed = panel.signed or any(values[i] < 0 for i in chosen)
    fill = [(LIGHT.positive if values[i] >= 0 else LIGHT.negative) if signed else LIGHT.bar for i in chosen]
    sure = [not pale for pale in _within_noise(panel, panel.value.values)]
    bars = axes.barh(range(len(chosen)), [values[i] for i in chosen], color=fill)
    for bar, i in zip(bars, chosen):
        bar.set_alpha(1.0 if sure[i] else 0.3)
    _say_pale(axes, not all(sure[i] for i in chosen))
    if len(chosen) <= 12:
        axes.bar_label(bars, fmt="%.3g", fontsize=SMALL, padding=3)
        axes.margins(x=0.3 if any(values[i] < 0 for i in chosen) else 0.18)
    axes.set_yticks(range(len(chosen)), [_shown(labels[i], MOST_BESIDE) for i in chosen], **_text())
    axes.set_ylim(max(len(chosen), 4) - 0.5, -0.5)  # a bar alone would fill the panel
    axes.axvline(0, color="0.4", lw=0.8)
    axes.set_ylabel(axis.replace("_", " "))


def _curves(axes: Any, panel: Panel, numbers: Any) -> None:
    value = panel.value
    rows, axis = value.labels(value.axes[0]), value.axes[1]
    labels = value.labels(axis)
    numeric = all(isinstance(label, int | float) for label in labels)
    places = labels if numeric else range(len(labels))
    for row, label, colour in zip(numbers, rows, SERIES):
        axes.plot(places, row, color=colour, lw=1.6, marker="o", markersize=3.5, label=_shown(label))
    _bands(axes, panel, places)
    axes.set_xlabel(axis.replace("_", " "))
    axes.grid(alpha=0.25)
    if axis in POWERS:
        _logarithmic(axes, labels)
    if not numeric:
        _ticks(axes, 0, value, axis)
    _legend(axes, value.axes[0])


def _bands(axes: Any, panel: Panel, places: Sequence[Any]) -> None:
    """Draw the intervals around lines, and say so above them."""
    if panel.band is None or not _defined(panel.band[0]):
        return
    low, high = (end.values.detach().cpu().double().reshape(-1, len(places)).numpy() for end in panel.band)
    for least, most, colour in zip(low, high, SERIES):
        axes.fill_between(places, least, most, color=colour, alpha=0.25, lw=0)
    _retitle(axes, f"{axes.get_title()}\n(band: low to high)".strip())


def _logarithmic(axes: Any, places: Sequence[Any]) -> None:
    """Make both axes logarithmic, with a label for each place along the first."""
    from matplotlib.ticker import NullLocator

    axes.set_yscale("log")
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(places, [f"{place:,}" for place in places], rotation=90 if len(places) > 6 else 0)


# ---- two axes


def _map(axes: Any, panel: Panel, numbers: Any) -> None:
    finite = numbers[abs(numbers) < math.inf]
    largest = 1.0 if panel.of_a_whole else float(abs(finite).max(initial=0.0)) or 1.0
    # what rounding left below zero is no sign
    signed = panel.signed or bool((finite < -1e-6 * largest).any())
    pale = _within_noise(panel, panel.value.values)
    shown = numbers * (1 - (1 - PALE) * pale)
    image = axes.imshow(
        shown, cmap=colour_map("diverging" if signed else "sequential"), aspect="auto", interpolation="nearest",
        vmin=-largest if signed else 0.0, vmax=largest,
    )  # fmt: skip
    _say_pale(axes, bool(pale.any()))
    _map_axes(axes, panel.value)
    _trained(axes, panel)
    axes.figure.colorbar(image, ax=axes).ax.tick_params(labelsize=SMALL)


def _within_noise(panel: Panel, values: Any) -> Any:
    """Return where a mean is nearer to zero than two of its standard errors, as an array of booleans."""
    if panel.error is None:
        return (values != values).cpu().numpy() & False
    return (values.abs() < 2 * panel.error.values).cpu().numpy()


def _say_pale(axes: Any, there: bool) -> None:
    if there:
        _retitle(axes, f"{axes.get_title()}\n(pale: within two standard errors of zero)".strip())


def _trained(axes: Any, panel: Panel) -> None:
    """Draw a line on either axis where the text goes beyond the rows that the model was trained on."""
    if panel.trained_length is None:
        return
    for side, name in enumerate(reversed(panel.value.axes)):
        places = [_place(label) for label in panel.value.labels(name)] if name in PLACES else []
        first = next((i for i, place in enumerate(places) if place is not None and place >= panel.trained_length), 0)
        if first == 0:
            continue
        (axes.axvline, axes.axhline)[side](first - 0.5, color=LIGHT.trained, lw=1.5)
        words = f"{name} (line: trained on {panel.trained_length:,} tokens)"
        (axes.set_xlabel, axes.set_ylabel)[side](words)


def _place(label: Any) -> int | None:
    """Return the position that a label of a token says: 3 of `3:the`."""
    found = re.match(r"\d+", str(label))
    return int(found[0]) if found else None


def _mask(axes: Any, value: Any, numbers: Any) -> None:
    from matplotlib.colors import ListedColormap

    flat = numbers.ndim == 1
    colours = ListedColormap([LIGHT.sequential[0], LIGHT.bar])
    axes.imshow(
        numbers[None] if flat else numbers, cmap=colours, aspect="auto", interpolation="nearest", vmin=0, vmax=1
    )
    _retitle(axes, f"{axes.get_title()} (filled: yes)".strip())
    if flat:
        axes.set_yticks([])
        axes.set_xlabel(value.axes[0].replace("_", " "))
        _ticks(axes, 0, value, value.axes[0])
    else:
        _map_axes(axes, value)


@cache
def colour_map(kind: Ramp) -> Any:
    """A ramp of the colour table for matplotlib; what is not defined is grey."""
    from matplotlib.colors import ListedColormap

    return ListedColormap(LIGHT.ramp(kind)).with_extremes(bad=LIGHT.undefined)


def _map_axes(axes: Any, value: Any) -> None:
    for side, name in enumerate(reversed(value.axes)):
        _ticks(axes, side, value, name)
    axes.set_xlabel(value.axes[1].replace("_", " "))
    axes.set_ylabel(value.axes[0].replace("_", " "))


def _ticks(axes: Any, side: int, value: Any, name: str) -> None:
    """Write labels along the x axis (0) or the y axis (1), as many as fit; bare counts as matplotlib does."""
    from matplotlib.ticker import MaxNLocator

    if name not in value.coords:
        (axes.xaxis, axes.yaxis)[side].set_major_locator(MaxNLocator(integer=True))
        return
    labels = [_shown(label) for label in value.labels(name)]
    width, height = axes.figure.get_size_inches()
    grid = axes.get_subplotspec().get_gridspec()
    ratios = grid.get_height_ratios()
    room = (0.62 * width / grid.ncols, height * ratios[axes.get_subplotspec().rowspan.start] / sum(ratios) - 0.9)[side]
    step = max(1, math.ceil(len(labels) * LINE / room))
    places = range(0, len(labels), step)
    across = side == 0 and max(map(len, labels)) * 0.08 * len(places) > room
    set_ticks = (axes.set_xticks, axes.set_yticks)[side]
    set_ticks(places, labels[::step], **_text(), **({"rotation": 90} if across else {}))


# ---- complex numbers


def _plane(axes: Any, value: Any, numbers: Any) -> None:
    rows = numbers[None] if numbers.ndim == 1 else numbers
    labels = [""] if numbers.ndim == 1 else value.labels(value.axes[0])
    for i, (label, row) in enumerate(zip(labels, rows)):
        marker = "os^Dv"[i // len(SERIES) % 5]
        axes.scatter(
            row.real, row.imag, s=9, label=_shown(label), color=SERIES[i % len(SERIES)], marker=marker, alpha=0.7
        )
    finite = abs(rows)[abs(rows) < math.inf]
    largest = float(finite.max(initial=0.0)) or 1.0
    # linear near zero, logarithmic beyond: eigenvalues of one head span several orders of magnitude
    for scale in (axes.set_xscale, axes.set_yscale):
        scale("symlog", linthresh=largest * 1e-2)
    axes.axhline(0, color="0.6", lw=0.6)
    axes.axvline(0, color="0.6", lw=0.6)
    axes.set_xlabel("real")
    axes.set_ylabel("imaginary")
    if 1 < len(labels) <= 16:
        _legend(axes, "", loc="upper left", bbox_to_anchor=(1.01, 1.0))


# ---- text


def _retitle(axes: Any, words: str) -> None:
    axes.set_title(words, fontsize=MEDIUM, parse_math=False, fontfamily=_families())


def _legend(axes: Any, title: str, **place: Any) -> None:
    title = title.replace("_", " ")
    legend = axes.legend(fontsize=SMALL, title=title or None, title_fontsize=SMALL, frameon=False, **place)
    for text in legend.get_texts():
        text.set(parse_math=False, fontfamily=_families())


def _text() -> dict[str, Any]:
    # a dollar sign in a token is no formula
    return {"fontsize": SMALL, "parse_math": False, "fontfamily": _families()}


def _shown(label: Any, most: int = 20) -> str:
    """Return a label as one short line: spaces around a token, breaks and controls as signs, what no font here can
    write as its number."""
    signs = {"\n": "⏎", "\t": "⇥", "\r": "␍"}
    place = "".join(_PLACE.findall(str(label)))
    token = str(label)[len(place) :]
    words = place + "".join(
        signs.get(c, c) if c in signs or (c.isprintable() and _writable(c)) else f"⟨{ord(c):04x}⟩"
        for c in _AROUND.sub(lambda spaces: "·" * len(spaces[0]), token)
    )
    return words if len(words) <= most else words[: most - 1] + "…"


@cache
def _families() -> list[str]:
    """Return the figure's usual font and, where there is one, a font for Chinese, Japanese and Korean."""
    from matplotlib import font_manager

    there = {font.name for font in font_manager.fontManager.ttflist}
    wide = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "Hiragino Sans GB",
            "PingFang SC", "Microsoft YaHei", "SimHei", "Arial Unicode MS", "Droid Sans Fallback")  # fmt: skip
    return ["DejaVu Sans", *[name for name in wide if name in there][:1]]


@cache
def _fonts() -> list[Any]:
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    return [FT2Font(font_manager.findfont(name)) for name in _families()]


def _writable(character: str) -> bool:
    return any(font.get_char_index(ord(character)) for font in _fonts())
