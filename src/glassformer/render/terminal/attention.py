"""Attention on the terminal: of each head the keys it looks at most, on the whole and from the last query."""

from rich.console import Group, RenderableType

from glassformer.analysis.reports.attention import Attention
from glassformer.render.terminal.tables import noted, table, visible
from glassformer.words import spoken

N_KEYS = 2


def most_seen(found: Attention) -> RenderableType:
    """Return a table of where each head looks most, and what has no picture."""
    rows = table(spoken("head"), spoken("mean of all queries"), spoken("last query"), left=(0, 1, 2))
    for pattern in found.patterns:
        keys = found.texts[pattern.key]
        cells: list[str] = []
        for row in (pattern.weights.mean(0), pattern.weights[-1]):
            order = row.abs().topk(min(N_KEYS, len(row))).indices.tolist()
            cells.append(", ".join(f"{k} {visible(keys[k])} {float(row[k]):.3f}" for k in map(int, order)))
        rows.add_row(pattern.label, *cells)
    return Group(rows, *noted(found.notes))
