"""Training curves of a run, as a matplotlib figure: losses, in-context learning, best heads, loss by position."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.errors import RunFolderError, SaveError
from glassformer.figures import colour_map, columns_for, new_figure
from glassformer.figures.colours import SERIES


def curves(metrics: Sequence[dict[str, Any]], title: str, trained_on: str = "") -> Any:
    """Return a figure of what the metrics hold; panels without data are left out.

    Args:
        metrics: As `training.read_metrics` returns them.
        title: Above the figure.
        trained_on: What of a training batch is no text: the loss in training is that of the mixture.

    Raises:
        MissingExtra: matplotlib is not installed.
        RunFolderError: The metrics hold nothing that can be drawn.
    """
    panels = [p for p in (_losses, _context, _heads, _positions) if p(metrics, None)]
    if not panels:
        raise RunFolderError("these metrics hold nothing to draw yet; let the run go on for a few steps.")
    columns = columns_for(len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(4.8 * columns, 3.6 * rows)
    figure.suptitle(title, parse_math=False)
    for i, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.grid(alpha=0.25)
        panel(metrics, axes)
        if panel is _losses and trained_on:
            axes.set_title(trained_on, fontsize="small", wrap=True, parse_math=False)
    return figure


def compared(runs: Mapping[str, Sequence[dict[str, Any]]]) -> Any:
    """Return a chart of the losses of several runs over tokens: held out where each was measured, else in training.

    Args:
        runs: Metrics by the name that stands beside a curve.

    Raises:
        MissingExtra: matplotlib is not installed.
        RunFolderError: The metrics of a run hold no loss, or there are more runs than colours.
    """
    known = [name for name in ("heldout_loss", "loss") if all(_series(metrics, name)[0] for metrics in runs.values())]
    if not known:
        raise RunFolderError("the metrics of one of these runs hold no loss yet; let it go on for a few steps.")
    if len(runs) > len(SERIES):
        raise RunFolderError(f"{len(runs)} runs: a chart tells {len(SERIES)} curves apart; compare fewer at a time.")
    figure = new_figure(7.2, 4.8)
    axes = figure.add_subplot()
    axes.grid(alpha=0.25)
    for (name, metrics), colour in zip(runs.items(), SERIES):
        axes.plot(*_series(metrics, known[0]), label=name, color=colour, lw=1.6)
    axes.set_ylabel(f"{'held-out' if known[0] == 'heldout_loss' else 'training'} loss (nats per token)")
    _count_tokens(axes)
    for text in axes.legend(frameon=False).get_texts():
        text.set_parse_math(False)
    return figure


def save(figure: Any, path: Path) -> None:
    """Write a figure whole or not at all; the ending decides the format."""
    from glassformer import files

    files.write(path, encoded(figure, path))


def encoded(figure: Any, path: Path) -> bytes:
    """Return a figure as the content of a file of this name; raises `SaveError` for an ending that is no format."""
    import io

    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, format=path.suffix.removeprefix(".") or "png", dpi=150)
    except ValueError as error:
        raise SaveError(f'cannot draw "{path}": {error}. Use .png, .svg or .pdf.') from error
    return buffer.getvalue()


def _series(metrics: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[Any]]:
    lines = [line for line in metrics if name in line]
    return [line["tokens"] for line in lines], [line[name] for line in lines]


def _lines(metrics: Sequence[dict[str, Any]], axes: Any, names: dict[str, str], unit: str) -> bool:
    found = [name for name in names if _series(metrics, name)[0]]
    if axes is not None:
        for name, colour in zip(found, SERIES):
            axes.plot(*_series(metrics, name), label=names[name], color=colour, lw=1.6)
        _count_tokens(axes)
        axes.set_ylabel(unit)
        axes.legend(frameon=False)
    return bool(found)


def _count_tokens(axes: Any) -> None:
    """Write tokens along the x axis as `2 M`, where matplotlib would put a power of ten in a corner."""
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_xlabel("tokens seen")


def _losses(metrics: Sequence[dict[str, Any]], axes: Any) -> bool:
    return _lines(metrics, axes, {"loss": "training", "heldout_loss": "held out"}, "loss (nats per token)")


def _context(metrics: Sequence[dict[str, Any]], axes: Any) -> bool:
    return _lines(metrics, axes, {"icl_score": "late minus early loss"}, "in-context learning (nats)")


def _heads(metrics: Sequence[dict[str, Any]], axes: Any) -> bool:
    names = {
        "prefix_matching": "prefix matching",
        "previous_token": "previous token",
        "duplicate_token": "duplicate token",
    }
    if axes is not None:
        axes.set_ylim(0, 1)
    return _lines(metrics, axes, names, "best head's score")


def _positions(metrics: Sequence[dict[str, Any]], axes: Any) -> bool:
    _, losses = _series(metrics, "loss_by_position")
    if axes is not None:
        # the palest colours of the ramp would be lost on the paper
        shades = colour_map("sequential")
        for i, values in enumerate(losses):
            shade = shades(0.25 + 0.75 * i / max(len(losses) - 1, 1))
            axes.plot(range(1, len(values) + 1), values, color=shade, lw=0.9)
        axes.set_xscale("log")
        axes.set_xlabel("position in context (pale: early, dark: late in training)")
        axes.set_ylabel("held-out loss (nats per token)")
    return bool(losses)
