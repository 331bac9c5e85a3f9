"""Coordinates that reads and edits ask for: single positions, which rows of unequal length have elsewhere or not."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from glassformer.errors import ShapeMismatch
from glassformer.labelled import Coordinate
from glassformer.models.readable import PositionLabels
from glassformer.models.reading import Inputs
from glassformer.numerics.indices import Where, entries
from glassformer.trace import At, Edit, Site

ByRow = list[list[Coordinate | None]]


def in_own_rows(inputs: Inputs, labels: PositionLabels, site: Site, edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Return edits at a site with the single positions they ask for counted in each row as it has them alone.

    Who lays rows out as a `Batch` counts its columns; slices and masks go by columns too.

    Raises:
        ShapeMismatch: A row that is edited has no such position.
    """
    if inputs.in_columns:
        return tuple(edits)
    found: list[Edit] = []
    for edit in edits:
        at = edit.at.in_own_rows({axis: rows for axis, rows, _ in _single(labels, site, edit.at)}, site)
        found.append(dataclasses.replace(edit, at=at) if at.by_row else edit)
    return tuple(found)


def refuse_padding(inputs: Inputs, labels: PositionLabels, asked: Iterable[tuple[Site, At]]) -> None:
    """Raise `ShapeMismatch` where single positions are read, and some row has padding there.

    Who lays rows out as a `Batch` counts its columns, and is let.
    """
    if inputs.in_columns:
        return
    for site, at in asked:
        for axis, by_row, where in _single(labels, site, at):
            for row in (row for row in _rows(at, len(by_row)) if None in by_row[row]):
                if any(by_row[row][i] is None for i in entries(where, len(by_row[row]), axis)):
                    raise ShapeMismatch(_is_padding(site.name, axis, where, row))


def _single(labels: PositionLabels, site: Site, at: At) -> Iterable[tuple[str, ByRow, Where]]:
    """Yield the axes along which single positions are asked for: their labels row by row, and what is asked."""
    for axis, where in at.single.items():
        # none of a module that reads no ids
        if by_row := labels.of(site.reads_source(axis)):
            yield axis, by_row, where


def _rows(at: At, batch: int) -> Iterable[int]:
    return range(batch) if "batch" not in at.where else entries(at.where["batch"], batch, "batch")


def _is_padding(site: str, axis: str, where: Any, row: int) -> str:
    return (
        f'At({axis}={where}) at "{site}" counts along the padded batch, and row {row} has padding there.\n'
        f"    Each row's own: read the whole site, then run[…].select({axis}=…); or address rows one by one: "
        f"At(batch={row}, {axis}=…). Edits count in each row by itself."
    )
