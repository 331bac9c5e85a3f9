"""A matrix as text: numbers where they fit, shades where they do not."""

import math

import torch
from rich.cells import cell_len
from rich.console import RenderableType
from rich.text import Text

from glassformer.labelled import Labelled
from glassformer.render.terminal.tables import NEGATIVE, POSITIVE, QUIET, STRONG, label_of, table
from glassformer.words import spoken

WIDTH, ROWS, FEW, NUMBERS, SHADED = 80, 16, 8, 20, 56
SHADES = " ░▒▓█"


def matrix(
    found: Labelled, corner: str = "", *, rows: int = ROWS, scale: float | None = None, error: Labelled | None = None
) -> list[RenderableType]:
    """Return a table of two axes, the first one down, and a note on rows that were left out.

    Rows without a number are left out; where there are many, so are those with nothing large in them. What is not
    defined stays empty.

    Args:
        found: Two axes.
        corner: What stands above the labels of rows.
        rows: How many are shown.
        scale: What is as strong as can be; the largest entry by default.
        error: Standard errors: what is below two of its own is shown faintly.
    """
    values = found.values.detach().double()
    sizes = values.abs().nan_to_num(-1.0).amax(1)
    defined = int((sizes >= 0).sum())
    # of many rows, those that would show as zeros are noise
    telling = int((sizes >= sizes.max() / 100).sum()) if defined > FEW else defined
    chosen = sorted(sizes.topk(min(rows, telling)).indices.tolist())
    down, across = found.labels(found.axes[0]), found.labels(found.axes[1])
    most = float(sizes.max()) if defined else 0.0
    largest = most if scale is None else scale
    faint = torch.zeros_like(values, dtype=torch.bool) if error is None else values.abs() < 2 * error.values
    names = [label_of(found.axes[0], down[i]) for i in chosen]
    cells = (
        [[_number(x, largest, off) for x, off in zip(values[i].tolist(), faint[i].tolist())] for i in chosen]
        if len(across) <= NUMBERS
        else []
    )
    heads = [label_of(found.axes[1], label, 8) for label in across]
    columns = zip(heads, *([cell.plain for cell in row] for row in cells))
    room = WIDTH - max(map(cell_len, [corner, *names])) - 2 * len(across)
    numbers = len(across) <= NUMBERS and sum(max(map(cell_len, column)) for column in columns) <= room
    grid = table(corner, *(heads if numbers else [_ruler(len(across))]), left=(0,) if numbers else (0, 1))
    for i, name, row in zip(chosen, names, cells if numbers else chosen):
        grid.add_row(
            name, *(row if isinstance(row, list) else [_shaded(values[i].masked_fill(faint[i], 0.0), largest)])
        )
    notes: list[RenderableType] = []
    if not numbers and most > 0:
        signs = spoken("; {colour}: negative", colour=spoken(NEGATIVE)) if bool((values < 0).any()) else ""
        notes.append(Text(spoken("shades: █ {n:.3g} and down in quarters{signs}", n=largest, signs=signs), style=QUIET))
    if defined > len(chosen):
        rest = max(float(sizes[i]) for i in range(len(sizes)) if i not in chosen)
        fate = spoken("nowhere above {n:.1g} in size", n=rest) if rest > 0 else spoken("all zero")
        notes.append(Text(spoken("{n} more rows, {fate}", n=defined - len(chosen), fate=fate), style=QUIET))
    return [grid, *notes]


def short(x: float, digits: int = 2) -> str:
    """Return a number of few characters: `.83`, `-1.20`, `12.3`."""
    if math.isnan(x):
        return "-"
    shown = f"{x:.{digits}f}" if abs(x) < 10 else f"{x:.1f}" if abs(x) < 1000 else f"{x:.0e}"
    shown = shown.lstrip("-") if float(shown) == 0 else shown
    return shown.replace("0.", ".", 1) if abs(x) < 1 and shown.startswith(("0.", "-0.")) else shown


def _number(x: float, largest: float, faint: bool) -> Text:
    if math.isnan(x):
        return Text("")
    if faint:
        return Text(short(x, 3 if largest < 0.1 else 2), style=QUIET)
    strength = STRONG if abs(x) >= largest / 2 else QUIET if abs(x) < largest / 20 else ""
    return Text(short(x, 3 if largest < 0.1 else 2), style=f"{strength} {POSITIVE if x >= 0 else NEGATIVE}".strip())


def _shaded(row: torch.Tensor, largest: float) -> Text:
    # several neighbours share a sign if they are too many: the one of largest size stands for them
    step = -(-len(row) // SHADED)
    shown = Text()
    for part in row.nan_to_num(0.0).split(step):
        x = float(part[part.abs().argmax()])
        level = 0 if largest <= 0 else math.ceil(4 * abs(x) / largest - 0.5)
        shown.append(SHADES[min(max(level, 0), 4)], style=POSITIVE if x >= 0 else NEGATIVE)
    return shown


def _ruler(n: int) -> str:
    """Return numbers above the columns they stand for."""
    step = -(-n // SHADED)
    ruler = ""
    for first in range(0, n, 10 * step):
        ruler = ruler.ljust(first // step) + str(first)
    return ruler
