"""Coordinates that reads and edits ask for: single positions, which rows of unequal length do not all have."""

from collections.abc import Iterable
from typing import Any

from glassformer.errors import ShapeMismatch
from glassformer.models.readable import PositionLabels
from glassformer.models.reading import Inputs
from glassformer.numerics.indices import entries, is_mask
from glassformer.trace import At, Site


def refuse_padding(inputs: Inputs, labels: PositionLabels, asked: Iterable[tuple[Site, At]]) -> None:
    """Raise `ShapeMismatch` where single positions are read or edited, and some row has padding there.

    Who lays rows out as a `Batch` counts its columns, and is let.
    """
    if inputs.in_columns:
        return
    for site, at in asked:
        for axis, where in at.where.items():
            if axis not in ("pos", "query", "key") or isinstance(where, slice) or is_mask(where):
                continue
            # none of a module that reads no ids
            if not (by_row := labels.of(site.reads_source(axis))):
                continue
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
