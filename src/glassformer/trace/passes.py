"""Edits of a text that grows while it is read: positions are those of the whole text, whichever pass comes to them.

    edit = settled(Add(site, v, at=At(pos=slice(5, None))), table[site], batch=2)
    in_pass(edit, table[site], Columns(first=7, last=8, padding=(0, 3)))      # what it is in the pass over column 7

Rows that are padded on the left have their own positions: column 7 of a row that begins at column 3 is its position 4.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.errors import ShapeMismatch
from glassformer.labelled import Labelled
from glassformer.numerics.indices import Where, entries, is_mask
from glassformer.trace.directed_edits import AddWhere, Interchange
from glassformer.trace.edits import Add, Apply, At, Edit, Project, Scale, Set, Take
from glassformer.trace.sites import Site

# the field that holds what an edit puts in
_VALUE: dict[type[Edit], str] = {
    Set: "value", Add: "value", Scale: "factor", Interchange: "value", AddWhere: "value",
}  # fmt: skip


class Columns(NamedTuple):
    """The columns of a batch that a pass reads, `first` to before `last`; `padding` of them are none of each row's."""

    first: int
    last: int
    padding: tuple[int, ...]


def growing_axes(site: Site) -> tuple[str, ...]:
    """The axes of a site that count tokens of the text that grows; an encoder's text does not."""
    return tuple(axis for axis in site.axes if axis in ("pos", "query", "key") and not site.reads_source(axis))


def by_position(edit: Edit, site: Site) -> bool:
    """Whether an edit does at each position what it would do there in any pass that comes by.

    A function may look along positions, and at a site with queries and keys an edit may open what the mask hides: keys
    that are behind a query, of which its pass knows nothing.
    """
    return type(edit) in (*_VALUE, Project) and not {"query", "key"} <= {*growing_axes(site)}


def of_single_rows(edit: Edit, site: Site) -> bool:
    """Whether a settled edit tells rows of a batch from each other; of a function nobody knows."""
    value: Any = getattr(edit, _VALUE.get(type(edit), ""), None)
    found = _extents(value, edit.at.remaining(site.axes)) if isinstance(value, Tensor) else {}
    return isinstance(edit, Take) or "batch" in edit.at.where or found.get("batch", 1) != 1


def settled(edit: Edit, site: Site, batch: int) -> Edit:
    """An edit, placed at a site, with all that it takes from a run looked up.

    Args:
        edit: Of a text that grows.
        site: The site.
        batch: How many rows the text has.

    Raises:
        ShapeMismatch: Positions are counted from the end, or by a mask; a value has a fixed number of positions, and
            as many are not named; it fits nothing there; or there is no such head, coordinate or row.
    """
    growing = growing_axes(site)
    for axis, where in edit.at.where.items():
        if axis in growing and not _is_counted_from_start(where):
            raise ShapeMismatch(
                f'{type(edit).__name__} at "{site.name}": At({axis}={where!r}) is no place in a text that grows with '
                "every token.\n"
                f"    Count from its start: At({axis}=n) is one position, At({axis}=slice(n, None)) that one and all "
                "behind it."
            )
    require_there(edit.at, site, batch)
    if type(edit) in _VALUE:
        edit = dataclasses.replace(edit, **{_VALUE[type(edit)]: _looked_up(edit, site)})
    _require_fit(edit, site, batch)
    return edit


def require_there(at: At, site: Site, batch: int) -> None:
    """Raise `ShapeMismatch` for entries that a site lacks, along axes whose length is known before a pass."""
    sizes = {**site.sizes, "batch": batch}
    for axis, where in at.where.items():
        if axis in sizes:
            entries(where, sizes[axis], f'At at "{site.name}": {axis}')


def in_pass(edit: Edit, site: Site, columns: Columns) -> list[Edit]:
    """Edit of a settled one in one pass: nothing, if the positions it is of are none that the pass reads.

    Rows that begin at different columns have an edit each.
    """
    axes = [axis for axis in growing_axes(site) if axis in edit.at.where]
    if not axes:
        return [edit]
    groups: dict[int, list[int]] = {}
    for row, before in enumerate(columns.padding):
        groups.setdefault(before, []).append(row)
    found: list[Edit] = []
    for before, rows in groups.items():
        shift, size = before - columns.first, columns.last - columns.first
        # of the positions that are named: which of them, and where they are in this pass
        here = {
            axis: [
                (i, position + shift)
                for i, position in enumerate(_positions(edit.at.where[axis], end=columns.last - before))
                if 0 <= position + shift < size
            ]
            for axis in axes
        }
        own = None if len(groups) == 1 else _own_rows(edit.at.where.get("batch"), rows, len(columns.padding))
        if all(here.values()) and own != []:
            found.append(_placed(edit, site, here, own))
    return found


def _placed(edit: Edit, site: Site, here: dict[str, list[tuple[int, int]]], own: list[tuple[int, int]] | None) -> Edit:
    """Return an edit at some of its positions and, if any are named, rows: each is (which it is of all, where)."""
    kept = here if own is None else {**here, "batch": own}
    where: dict[str, Any] = dict(edit.at.where)
    for axis, places in kept.items():
        if not isinstance(where.get(axis), int):
            where[axis] = _joined([place for _, place in places])
        else:
            where[axis] = places[0][1]
    changed: dict[str, Any] = {"at": At(**where)}
    if type(edit) in _VALUE:
        value: Any = getattr(edit, _VALUE[type(edit)])
        axes = edit.at.remaining(site.axes)
        for axis, size in (_extents(value, axes) if isinstance(value, Tensor) else {}).items():
            if size != 1 and axis in kept:
                dim = axes.index(axis) - len(axes)
                index = torch.tensor([i for i, _ in kept[axis]], device=value.device)
                value = value.index_select(dim, index)
        changed[_VALUE[type(edit)]] = value
    return dataclasses.replace(edit, **changed)


def _own_rows(where: Where | None, rows: list[int], batch: int) -> list[tuple[int, int]]:
    """Return which of the rows that are named are among these."""
    named = entries(slice(None) if where is None else where, batch, "At: batch")
    return [(i, row) for i, row in enumerate(named) if row in rows]


def _positions(where: Where, end: int | None = None) -> Sequence[int]:
    """Return the positions that are named; of a slice, those of a text that ends there."""
    if isinstance(where, int):
        return [where]
    if isinstance(where, slice):
        stop = min(one for one in (where.stop, end) if one is not None)
        return range(where.start or 0, stop, where.step or 1)
    return [int(i) for i in (where.reshape(-1).tolist() if isinstance(where, Tensor) else where)]


def _joined(places: list[int]) -> slice | list[int]:
    """Return neighbouring places as a slice, which copies nothing."""
    first, n = places[0], len(places)
    return slice(first, first + n) if places == [*range(first, first + n)] else places


def _is_counted_from_start(where: Where) -> bool:
    if isinstance(where, slice):
        return (where.start or 0) >= 0 and (where.stop or 0) >= 0 and (where.step or 1) > 0
    return not is_mask(where) and min(_positions(where), default=0) >= 0


def _looked_up(edit: Edit, site: Site) -> Tensor | int | float:
    """Return the value of an edit by itself; raises `ShapeMismatch` unless it has one for each position named."""
    value: Any = getattr(edit, _VALUE[type(edit)])
    growing = growing_axes(site)
    if isinstance(held := _mapping(value), Mapping):
        _require_bounded(edit, site, [axis for axis in growing if axis in edit.at.remaining(site.axes)], "a run")
        return _borrowed(edit, held, site)
    if isinstance(value, int | float):
        return value
    value = value.values if isinstance(value, Labelled) else value
    value = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    found = _extents(value, edit.at.remaining(site.axes))
    long = [axis for axis in growing if found.get(axis, 1) != 1]
    _require_bounded(edit, site, long, "its value")
    for axis in long:
        if found[axis] != (named := len(_positions(edit.at.where[axis]))):
            raise ShapeMismatch(
                f'{type(edit).__name__} at "{site.name}": its value has {axis}={found[axis]}, and '
                f"At({axis}={edit.at.where[axis]!r}) names {named} positions."
            )
    return value


def _mapping(value: Any) -> Any:
    """Return what a run or a tape read, and everything else as it is."""
    read = None if isinstance(value, Tensor) else getattr(value, "values", None)
    return read if isinstance(read, Mapping) else value


def _borrowed(edit: Edit, held: Mapping[str, Any], site: Site) -> Tensor:
    """Return what a run lends: as long as what it replaces, and at positions that its rows have in the same columns."""
    growing = growing_axes(site)
    for axis, by_row in getattr(held.get(site.name), "rows", {}).items():
        where = edit.at.where.get(axis)
        if axis not in growing or where is None:
            continue
        for row in entries(edit.at.where.get("batch", slice(None)), len(by_row), "At: batch"):
            labels = by_row[row]
            if labels[0] is None or any(labels[i] is None for i in entries(where, len(labels), f"At: {axis}")):
                raise ShapeMismatch(
                    f'{type(edit).__name__} at "{site.name}": row {row} of the run it takes the value from is padded '
                    f"there, At({axis}={where!r}).\n    Take it from one prompt: run.prompt({row})."
                )
    value, axes = edit.at.borrow(held, site), edit.at.remaining(site.axes)
    lengths = dict(zip(axes, value.shape))
    for axis in (axis for axis in axes if axis != "batch"):
        if axis in growing:
            lengths[axis] = len(_positions(edit.at.where[axis]))
        elif axis in site.sizes:
            lengths[axis] = len(entries(edit.at.where.get(axis, slice(None)), site.sizes[axis], f"At: {axis}"))
    return edit.fit(held, value.new_empty(list(lengths.values())), site)


def _extents(value: Tensor, axes: list[str]) -> dict[str, int]:
    """Return how long a value is along the axes of the part that it goes into; a vector lies along the last."""
    if value.ndim == len(axes):
        return dict(zip(axes, value.shape))
    return {axes[-1]: value.shape[0]} if value.ndim == 1 and axes else {}


def _require_bounded(edit: Edit, site: Site, axes: list[str], what: str) -> None:
    """Raise `ShapeMismatch` unless the positions along some axes are a fixed number."""
    for axis in axes:
        where = edit.at.where.get(axis)
        if where is None or (isinstance(where, slice) and where.stop is None):
            raise ShapeMismatch(
                f'{type(edit).__name__} at "{site.name}": {what} has a fixed number of positions along "{axis}", and '
                f"the text grows with every token.\n    Say which ones it is for: At({axis}=slice(0, 5)); a number "
                "or one vector goes everywhere."
            )


def _require_fit(edit: Edit, site: Site, batch: int) -> None:
    """Raise `ShapeMismatch` if what an edit is made of fits nothing at a site, as far as sizes are known beforehand."""
    grows = growing_axes(site)
    value: Any = getattr(edit, _VALUE.get(type(edit), ""), None)
    found = _extents(value, edit.at.remaining(site.axes)) if isinstance(value, Tensor) else {}
    sizes = {**site.sizes, "batch": batch} | {axis: found.get(axis, 1) for axis in grows}
    if isinstance(edit, Apply) or any(axis not in sizes for axis in site.axes):
        return
    # where all positions there are are those that are named
    where: dict[str, Any] = dict(edit.at.where)
    for axis in (axis for axis in grows if axis in where):
        where[axis] = 0 if isinstance(where[axis], int) else slice(None)
    like = value if isinstance(value, Tensor) else torch.zeros(())
    dataclasses.replace(edit, at=At(**where))(like.new_zeros([sizes[axis] for axis in site.axes]), site)
