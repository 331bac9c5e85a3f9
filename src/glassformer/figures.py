"""Figures of labelled numbers: bars, lines, maps, small multiples, points in the complex plane. Needs matplotlib.

Colours are told apart by all kinds of colour vision; signed values get a map that diverges from white at zero.
"""

import math
from collections.abc import Sequence
from typing import Any

from glassformer.errors import MissingExtra, ShapeMismatch

# Okabe-Ito
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
UNSIGNED, SIGNED = "viridis", "RdBu_r"
MOST_PANELS, MOST_LABELS, MOST_BARS = 24, 40, 40


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, sizes in inches; raises `MissingExtra` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'glassformer[plot]'.") from error
    return Figure(figsize=(width, height), layout="constrained")


def draw(fields: Sequence[tuple[str, Any]], title: str = "") -> Any:
    """Return a figure with one panel per labelled tensor, several for tensors of more than two axes.

    Args:
        fields: Pairs of a name and a `Labelled`.
        title: Written above all panels.

    Raises:
        MissingExtra: matplotlib is not installed.
        ShapeMismatch: Nothing to draw, or more panels than anyone would look at.
    """
    panels = [panel for name, value in fields for panel in _panels(name, value)]
    if not panels:
        raise ShapeMismatch("plot: there is no labelled tensor to draw.")
    if len(panels) > MOST_PANELS:
        axis = next((value.axes[0] for _, value in fields if value.values.ndim > 2), "…")
        raise ShapeMismatch(
            f"plot: {len(panels)} maps are more than the {MOST_PANELS} that fit one figure. Pick some: "
            f".select({axis}=…).plot()."
        )
    columns = min(len(panels), 4 if len(panels) > 6 else 3)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(4.6 * columns, 3.6 * rows)
    figure.suptitle(title)
    for i, (name, value) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.set_title(name, fontsize=10)
        draw_on(axes, value)
    return figure


def draw_on(axes: Any, value: Any) -> None:
    """Draw a labelled tensor of one or two axes on matplotlib axes."""
    numbers = value.values.detach().cpu()
    if numbers.is_complex():
        return _plane(axes, value, numbers.numpy())
    numbers = numbers.double().numpy()
    if value.values.ndim == 1:
        return _line(axes, value, numbers)
    return _map(axes, value, numbers)


def _panels(name: str, value: Any) -> list[tuple[str, Any]]:
    if value.values.numel() == 0 or value.values.ndim == 0:
        return []
    if value.values.ndim <= 2:
        return [(name, value)]
    first = value.axes[0]
    labels = value.labels(first)
    return [
        panel
        for i, label in enumerate(labels)
        for panel in _panels(f"{name}, {first} {label}" if name else f"{first} {label}", value.select(**{first: i}))
    ]


def _line(axes: Any, value: Any, numbers: Any) -> None:
    labels = value.labels(value.axes[0])
    if any(isinstance(label, str) for label in labels) and len(labels) <= MOST_BARS:
        places = range(len(labels))
        axes.barh(places, numbers, color=[COLOURS[0] if x >= 0 else COLOURS[1] for x in numbers.tolist()])
        axes.set_yticks(places, labels, fontsize=8)
        axes.invert_yaxis()
        axes.axvline(0, color="0.4", lw=0.8)
        axes.set_ylabel(value.axes[0])
        return
    numeric = all(isinstance(label, int | float) for label in labels)
    axes.plot(labels if numeric else range(len(labels)), numbers, color=COLOURS[0], lw=1.6)
    axes.set_xlabel(value.axes[0])
    axes.grid(alpha=0.25)


def _map(axes: Any, value: Any, numbers: Any) -> None:
    finite = value.values.detach()[value.values.detach().isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 1.0
    signed = bool((finite < 0).any())
    limits = {"vmin": -largest, "vmax": largest} if signed else {"vmin": 0.0, "vmax": largest}
    image = axes.imshow(numbers, cmap=SIGNED if signed else UNSIGNED, aspect="auto", interpolation="nearest", **limits)
    for axis, name, set_ticks in (
        (1, value.axes[1], axes.set_xticks),
        (0, value.axes[0], axes.set_yticks),
    ):
        labels = value.labels(name)
        if len(labels) <= MOST_LABELS and name in value.coords:
            set_ticks(range(len(labels)), labels, fontsize=7, **({"rotation": 90} if axis == 1 else {}))
    axes.set_xlabel(value.axes[1])
    axes.set_ylabel(value.axes[0])
    axes.figure.colorbar(image, ax=axes)


def _plane(axes: Any, value: Any, numbers: Any) -> None:
    rows = numbers[None] if numbers.ndim == 1 else numbers
    labels = [""] if numbers.ndim == 1 else value.labels(value.axes[0])
    for i, (label, row) in enumerate(zip(labels, rows)):
        marker = "os^Dv"[i // len(COLOURS) % 5]
        axes.scatter(row.real, row.imag, s=9, label=label, color=COLOURS[i % len(COLOURS)], marker=marker, alpha=0.7)
    largest = float(abs(rows).max()) or 1.0
    # linear near zero, logarithmic beyond: eigenvalues of one head span several orders of magnitude
    for scale in (axes.set_xscale, axes.set_yscale):
        scale("symlog", linthresh=largest * 1e-2)
    axes.axhline(0, color="0.6", lw=0.6)
    axes.axvline(0, color="0.6", lw=0.6)
    axes.set_xlabel("real")
    axes.set_ylabel("imaginary")
    if 1 < len(labels) <= 16:
        axes.legend(fontsize=7, ncols=2)
