"""What a model read, as people read it: tokens as text, and names along the axes of what was recorded."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from glassformer.labelled import Coordinate, Labelled, RowLabels
from glassformer.models.model import Model, ModuleLike
from glassformer.models.padding import WHOLE, Padding
from glassformer.models.reading import Inputs, Side, token_names, tokenizer_of
from glassformer.numerics.indices import entries
from glassformer.trace import Request, Site, SiteTable, head_label, key_head_label


def readable(model: ModuleLike, ids: Tensor, padding: Padding = WHOLE, stack: str | None = None) -> list[list[str]]:
    """Return each row's real tokens as text, or as numbers if the model has no tokenizer.

    They are tokens that a stack reads, by default the one that ends in the logits.
    """
    of_source = stack is not None and stack == getattr(model, "source", None)
    return token_names(tokenizer_of(model, of_source), ids, padding)


def readable_outputs(model: ModuleLike, ids: Tensor) -> list[list[str]]:
    """Return each row's tokens as text, or as numbers, where they are tokens that logits are of."""
    return token_names(model.output_tokenizer if isinstance(model, Model) else tokenizer_of(model), ids)


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of ids; those that a model has beyond its tokenizer's tokens appear as `<id>`."""
    known, parts = tokenizer.vocab_size, []
    for beyond, some in itertools.groupby(ids, lambda id: id >= known):
        run = list(some)
        parts += [f"<{id}>" for id in run] if beyond else [tokenizer.decode(run)]
    return "".join(parts)


class PositionLabels:
    """Names of positions, row by row: index and token, None at padding; made once for all sites of a pass."""

    def __init__(self, inputs: Inputs) -> None:
        self._sides = inputs.sides
        self._known: dict[bool, list[list[Coordinate | None]]] = {}

    def of(self, source: bool) -> list[list[Coordinate | None]]:
        """Return those of the encoder's rows, or of the rows that end in the logits."""
        if source not in self._known:
            side = self._sides.get(source, Side())
            ids, rows, start = side.ids, side.tokens, side.padding.start
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

    def along(self, site: Site, axis: str) -> list[list[Coordinate | None]]:
        """Return those along an axis of positions of a site."""
        return self.of(site.reads_source(axis))


def with_coordinates(
    value: Labelled, request: Request | None, table: SiteTable, labels: PositionLabels, names: Sequence[str]
) -> Labelled:
    """Name positions, heads and, where they have names, coordinates of the stream along the axes of a site.

    Positions of several rows, or of one that is padded, are named row by row.
    """
    site = None if request is None else table[request.read.site]
    if request is None or site is None or not site.axes or request.read.reduce is not None:
        return value
    coords: dict[str, Sequence[Coordinate]] = {}
    rows: dict[str, RowLabels] = {}
    at = request.read.at.where
    for axis in value.axes:
        if axis in ("pos", "query", "key"):
            by_row = labels.along(site, axis)
            if "batch" in at and by_row:
                by_row = [by_row[i] for i in entries(at["batch"], len(by_row), "batch")]
            if axis in at:
                by_row = [[row[i] for i in entries(at[axis], len(row), axis)] for row in by_row]
            name_positions(value, axis, by_row, coords, rows)
            continue
        found: list[Coordinate] = list(names) if axis == "d_model" else []
        if axis in ("head", "kv_head") and site.layer is not None:
            found = _head_labels(site, axis, table)
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
