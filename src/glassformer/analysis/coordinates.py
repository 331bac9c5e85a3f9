"""Labels along the axes of what a run read: positions by index and token, heads by their names; and padding."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from glassformer.analysis.prepare import Inputs
from glassformer.data import Batch
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Coordinate, Labelled, RowLabels
from glassformer.numerics.indices import entries, is_mask
from glassformer.trace import At, Site, Tape, head_label, key_head_label

if TYPE_CHECKING:
    from glassformer.analysis._run import Run


class PositionLabels:
    """Names of positions, row by row: index and token, None at padding; made once for all sites of a pass."""

    def __init__(self, given: "Inputs | Run") -> None:
        self._sides = {
            False: (given.ids, given.token_rows, given.start),
            True: (given.source_ids, given.source_rows, None),
        }
        self._known: dict[bool, list[list[Coordinate | None]]] = {}

    def of(self, source: bool) -> list[list[Coordinate | None]]:
        """Return those of the encoder's rows, or of the rows that end in the logits."""
        if source not in self._known:
            ids, rows, start = self._sides[source]
            width = 0 if ids is None else ids.shape[1]
            first = [0] * len(rows) if start is None else start.tolist()
            self._known[source] = [
                [
                    *[None] * before,
                    *(f"{i}:{token}" for i, token in enumerate(row)),
                    *[None] * (width - before - len(row)),
                ]
                for before, row in zip(first, rows)
            ]
        return self._known[source]


def refuse_padding(inputs: Any, given: Inputs, asked: Iterable[tuple[Site, At]]) -> None:
    """Raise `ShapeMismatch` where single positions are read or edited, and some row has padding there.

    Who lays rows out as a `Batch` counts its columns, and is let.
    """
    if isinstance(inputs, Batch):
        return
    labels = PositionLabels(given)
    for site, at in asked:
        for axis, where in at.where.items():
            if axis not in ("pos", "query", "key") or isinstance(where, slice) or is_mask(where):
                continue
            by_row = labels.of(site.reads_source(axis))
            rows = range(len(by_row)) if "batch" not in at.where else entries(at.where["batch"], len(by_row), "batch")
            for row in (row for row in rows if None in by_row[row]):
                if any(by_row[row][i] is None for i in entries(where, len(by_row[row]), axis)):
                    raise ShapeMismatch(_is_padding(site.name, axis, where, row))


def _is_padding(site: str, axis: str, where: Any, row: int) -> str:
    return (
        f'At({axis}={where}) at "{site}" counts along the padded batch, and row {row} has padding there.\n'
        f"    Each row's own: read the whole site, then run[…].select({axis}=…); or address rows one by one: "
        f"At(batch={row}, {axis}=…)."
    )


def with_coordinates(value: Labelled, tape: Tape, name: str, labels: PositionLabels, names: Sequence[str]) -> Labelled:
    """Name positions, heads and, where they have names, coordinates of the stream along the axes of a site.

    Positions of several rows, or of one that is padded, are named row by row.
    """
    request = tape.requests.get(name)
    site = None if request is None else tape.table[request.read.site]
    if request is None or site is None or not site.axes or request.read.reduce is not None:
        return value
    coords: dict[str, Sequence[Coordinate]] = {}
    rows: dict[str, RowLabels] = {}
    at = request.read.at.where
    for axis in value.axes:
        if axis in ("pos", "query", "key"):
            by_row = labels.of(site.reads_source(axis))
            if "batch" in at:
                by_row = [by_row[i] for i in entries(at["batch"], len(by_row), "batch")]
            if axis in at:
                by_row = [[row[i] for i in entries(at[axis], len(row), axis)] for row in by_row]
            name_positions(value, axis, by_row, coords, rows)
            continue
        found: list[Coordinate] = list(names) if axis == "d_model" else []
        if axis in ("head", "kv_head") and site.layer is not None:
            found = _head_labels(site, axis, tape.table)
        if axis in at and found:
            found = [found[i] for i in entries(at[axis], len(found), axis)]
        if found and len(found) == value.size(axis):
            coords[axis] = found
    return dataclasses.replace(value, coords=coords, rows=rows)


def name_positions(
    value: Labelled, axis: str, by_row: RowLabels, coords: dict[str, Sequence[Coordinate]], rows: dict[str, RowLabels]
) -> None:
    """Add the labels of an axis of positions: to those of all rows if there is one, whole; else to those by row."""
    # a pattern may have more keys than there are tokens (sinks, persistent memory): those stay numbers
    if not by_row or len(by_row[0]) != value.size(axis):
        return
    whole = [label for label in by_row[0] if label is not None]
    if len(by_row) == 1 and len(whole) == value.size(axis):
        coords[axis] = whole
    elif "batch" in value.axes and len(by_row) == value.size("batch"):
        rows[axis] = by_row


def _head_labels(site: Site, axis: str, table: Mapping[str, Site]) -> list[Coordinate]:
    """Return what heads are called along an axis; key heads by all heads that read them."""
    assert site.layer is not None
    if axis == "head":
        return [head_label(site.stack, site.part, site.layer, h) for h in range(site.sizes["head"])]
    inside = [s for s in table.values() if (s.stack, s.layer, s.part) == (site.stack, site.layer, site.part)]
    heads = next((s.sizes["head"] for s in inside if "head" in s.sizes), None)
    groups = site.sizes.get(axis)
    if heads is None or groups is None:
        return []
    shared = heads // groups
    first = site.stack, site.part, site.layer
    return [key_head_label(*first, range(g * shared, (g + 1) * shared)) for g in range(groups)]
