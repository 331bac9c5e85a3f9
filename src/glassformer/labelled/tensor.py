"""Labelled tensors: values, axis names, coordinates.

A `Labelled` selects, ranks and exports, and behaves as an array: `pattern[0, -1]`, `2 * pattern`, `pattern > 0.5`.
"""
# torch does not type `tolist`, JSON has no static type, and pandas ships no stubs
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import base64
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer import figures
from glassformer.arguments import check
from glassformer.errors import MissingExtra, ShapeMismatch, UnknownAxis, nearest
from glassformer.labelled._algebra import LabelledAlgebra, wide
from glassformer.numerics.indices import asked, entries, is_mask, located

Coordinate = str | int | float
# labels of an axis, one list for each row of the batch; None where an entry is padding
RowLabels = Sequence[Sequence[Coordinate | None]]


@dataclasses.dataclass(frozen=True, eq=False)
class Labelled(LabelledAlgebra):
    """A tensor whose axes have names and, where it helps, coordinates.

    Prompts of unequal length share an axis `batch`, and each fills a part of the axes `pos`, `query` and `key`; `rows`
    says which. `select(batch=1)` then leaves that prompt's own positions, `select(pos=-1)` the last of each prompt, and
    padding is neither ranked, drawn nor exported.

    It behaves as an array: it is indexed along its axes in their order, `pattern[0, :, -1]`, goes along the first, and
    is calculated with and compared entry by entry, with numbers, tensors, and labelled tensors whose axes it has by
    name. Labels stay as far as operands agree on them. Functions of torch that leave entries where they are return a
    labelled tensor, `torch.softmax(scores, scores.dim("key"))`; others, and numpy's, are of the bare numbers, NaN at
    padding. Several indices on two axes combine as a grid, as in xarray.

    Args:
        values: The numbers.
        axes: One name per dimension.
        coords: Labels along an axis (token strings, `L3H5`, …); axes without labels count from 0.
        of: The head the values are of, where they are of one; of a shared key head, all heads that read it.
        rows: Labels along axes that differ from row to row of `batch`, which stand before those of all rows; None for
            entries that are padding.
    """

    values: Tensor
    axes: tuple[str, ...]
    coords: Mapping[str, Sequence[Coordinate]] = dataclasses.field(default_factory=dict)
    of: str = ""
    rows: Mapping[str, RowLabels] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        values: Any = self.values
        axes: Any = self.axes
        coords: Any = self.coords
        rows: Any = self.rows
        # one is made for each site that is read: looked at closely only where it must be refused
        known = isinstance(values, Tensor) and isinstance(axes, tuple) and isinstance(coords, Mapping)
        if not (known and isinstance(rows, Mapping)):
            check(Labelled, (values, axes, coords, self.of, rows), {})
        if len(self.axes) != self.values.ndim:
            raise ShapeMismatch(f"{len(self.axes)} axis names {self.axes} for a tensor of shape {self.shape}.")
        for axis, labels in coords.items():
            if not isinstance(labels, Sequence):
                raise ShapeMismatch(f'axis "{axis}" needs a list of coordinates, found {labels!r}.')
            if len(labels) != self.size(axis):
                raise ShapeMismatch(f'axis "{axis}" has {self.size(axis)} entries but {len(labels)} coordinates.')
        for axis, by_row in self.rows.items():
            size = self.size("batch"), self.size(axis)
            if len(by_row) != size[0] or any(len(labels) != size[1] for labels in by_row):
                raise ShapeMismatch(f'rows: one list for each of {size[0]} rows, of {size[1]} labels along "{axis}".')

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def size(self, axis: str) -> int:
        return self.shape[self.dim(axis)]

    def dim(self, axis: str) -> int:
        """The dimension an axis name stands for; raises `UnknownAxis`."""
        if axis not in self.axes:
            raise UnknownAxis(f'no axis "{axis}".{nearest(axis, self.axes)} Axes: {" ".join(self.axes)}.')
        return self.axes.index(axis)

    def labels(self, axis: str) -> list[Coordinate]:
        return list(self.coords.get(axis, range(self.size(axis))))

    def select(self, **at: Any) -> "Labelled":
        """Pick along named axes: an index or a coordinate drops the axis, a slice, several or a mask keep it.

        One row of a batch brings its own positions, without padding. Of several rows that differ, a position is each
        row's own: `pos=-1` is the last real one of each.

        Args:
            at: For each axis an index, a coordinate, a slice, several indices or coordinates, or a mask: one truth for
                each entry of the axis.

        Raises:
            UnknownAxis: There is no such axis or coordinate.
            ShapeMismatch: An index is out of range, or a mask is not as long as the axis.
        """
        found = self
        # rows first: what is left of the other axes may hang on them
        for axis, where in sorted(at.items(), key=lambda asked: asked[0] != "batch"):
            found = found._selected(axis, where)
        return found

    def is_real(self) -> Tensor | None:
        """Mask of values that are no padding, in a shape that broadcasts with them; None if all of them are."""
        found = None
        for axis, by_row in self.rows.items():
            if self._is_padded(axis):
                here = torch.tensor([[label is not None for label in labels] for labels in by_row])
                here = self._by_row(here.to(self.values.device), axis)
                found = here if found is None else found & here
        return found

    def blanked(self) -> "Labelled":
        """Copy with NaN at padding, where numbers are no integers."""
        real = self.is_real()
        if real is None or not self.values.dtype.is_floating_point:
            return self
        return dataclasses.replace(self, values=self.values.masked_fill(~real, torch.nan))

    def top(
        self, k: int = 10, *, largest: bool = True, by_size: bool = False
    ) -> list[tuple[tuple[Coordinate, ...], float]]:
        """The k largest (smallest, or largest in absolute value) entries as (coordinates, value)."""
        flat, real = self.values.detach().flatten(), self.is_real()
        there = None if real is None else real.expand(self.shape).flatten().nonzero()[:, 0]
        flat = flat if there is None else flat[there]
        order = (flat.abs() if by_size else flat).topk(min(k, flat.numel()), largest=largest).indices
        found = []
        for i in order.tolist():
            place = torch.unravel_index(torch.tensor(i) if there is None else there[i].cpu(), self.shape)
            found.append((self._names([int(p) for p in place]), float(flat[i])))
        return found

    def to_frame(self) -> Any:
        """A long-form pandas DataFrame with one column per axis and one called `value`; padding is left out."""
        import pandas as pd

        labels = [self.labels(axis) for axis in self.axes]
        index = pd.MultiIndex.from_product(labels, names=self.axes) if self.axes else None
        values = wide(self.values)
        if self.rows:
            real = self.is_real()
            there = (values == values if real is None else real.expand(self.shape)).flatten().nonzero()[:, 0].cpu()
            places = zip(*(places.tolist() for places in torch.unravel_index(there, self.shape)))
            index = pd.MultiIndex.from_tuples([self._names(place) for place in places], names=self.axes)
            values = values.flatten()[there]
        return pd.DataFrame({"value": values.flatten().numpy()}, index=index).reset_index()

    def to_xarray(self) -> Any:
        try:
            import xarray  # type: ignore[import-not-found]  # an extra, absent from most environments
        except ImportError as error:
            raise MissingExtra("to_xarray needs xarray: pip install 'glassformer[xarray]'.") from error
        coords = {axis: list(labels) for axis, labels in self.coords.items()}
        return xarray.DataArray(wide(self.blanked().values).numpy(), coords=coords, dims=self.axes)

    def plot(self, title: str = "") -> Any:
        """A matplotlib figure: bars or a line for one axis, a map for two, several maps for more.

        Raises:
            MissingExtra: matplotlib is not installed.
            ShapeMismatch: There would be more maps than fit; `select` some.
        """
        return figures.draw([figures.Panel("", self)], title)

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        """JSON data: axes, coordinates and nested lists of values.

        What is not finite becomes null, and so does padding; complex values become pairs, and `complex` says so. `rows`
        holds the labels of axes that differ by row, if there are any.

        Args:
            packed: Instead of `values`, write `shape`, and as `float32` the base64 of little-endian single precision,
                row by row, NaN for what is not finite; complex values get a last axis `part`.
        """
        coords = {axis: list(labels) for axis, labels in self.coords.items()}
        rows = {axis: [list(labels) for labels in by_row] for axis, by_row in self.rows.items()}
        values = self.blanked().values
        if packed:
            return _packed(values, list(self.axes), coords) | ({"rows": rows} if rows else {})
        found = {"axes": list(self.axes), "coords": coords, "values": numbers(values)}
        found |= {"of": self.of} if self.of else {}
        found |= {"rows": rows} if rows else {}
        return found | {"complex": True} if self.values.is_complex() else found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Labelled":
        values = torch.tensor(_with_nan(data["values"]))
        values = torch.view_as_complex(values) if data.get("complex") else values
        return cls(values, tuple(data["axes"]), data["coords"], data.get("of", ""), data.get("rows", {}))

    def __float__(self) -> float:
        """Return the one entry of values without axes; raises `ShapeMismatch` for others."""
        return float(self._entry())

    def __int__(self) -> int:
        """Return the one entry of values without axes; raises `ShapeMismatch` for others."""
        return int(self._entry())

    def __repr__(self) -> str:
        sizes = " ".join(f"{a}={n}" for a, n in zip(self.axes, self.shape)) or _number(self.values)
        of = f", of {self.of}" if self.of else ""
        return f"Labelled({sizes}, {str(self.values.dtype).removeprefix('torch.')}{of})"

    def _selected(self, axis: str, where: Any) -> "Labelled":
        """Return what is picked along one axis."""
        if self._is_padded(axis):
            return self._of_each_row(axis, where)
        chosen, d = self._chosen(axis, where), self.axes.index(axis)
        first = chosen % max(1, self.size(axis)) if isinstance(chosen, int) else 0
        picked = slice(first, first + 1) if isinstance(chosen, int) else chosen
        coords, rows = dict(self.coords), dict(self.rows)
        if axis in coords:
            coords[axis] = _picked(coords[axis], picked)
        if axis in rows:
            rows[axis] = [_picked(labels, picked) for labels in rows[axis]]
        values = self.values[(slice(None),) * d + (picked,)]
        if axis == "batch" and rows:
            rows = {name: _picked(by_row, picked) for name, by_row in rows.items()}
            found = Labelled(values, self.axes, coords, self.of, rows)._trimmed()
        else:
            found = Labelled(values, self.axes, coords, self.of, rows)
        return found._without(axis) if isinstance(chosen, int) else found

    def _trimmed(self) -> "Labelled":
        """Return the same without entries that are padding in all rows; labels of a single row become those of all."""
        values, coords, rows = self.values, dict(self.coords), dict[str, RowLabels]()
        for axis, by_row in self.rows.items():
            there = [i for i, labels in enumerate(zip(*by_row)) if any(label is not None for label in labels)]
            together = len(there) > 0 and there[-1] - there[0] + 1 == len(there)
            kept = slice(there[0], there[-1] + 1) if together else there
            values = values[(slice(None),) * self.axes.index(axis) + (kept,)]
            left = [_picked(labels, kept) for labels in by_row]
            if axis in coords:
                coords[axis] = _picked(coords[axis], kept)
            if len(left) == 1:
                coords[axis] = left[0]
            else:
                rows[axis] = left
        return Labelled(values, self.axes, coords, self.of, rows)

    def _without(self, axis: str) -> "Labelled":
        """Return the same without an axis of one entry."""
        d = self.axes.index(axis)
        coords = {name: labels for name, labels in self.coords.items() if name != axis}
        rows = {name: by_row for name, by_row in self.rows.items() if name != axis}
        return Labelled(self.values.select(d, 0), (*self.axes[:d], *self.axes[d + 1 :]), coords, self.of, rows)

    def _of_each_row(self, axis: str, where: Any) -> "Labelled":
        """Return what is picked of each row's own entries along a padded axis; fewer of a row leave padding behind."""
        places: list[list[int]] = []
        chosen = where if isinstance(where, str) else asked(where, axis)
        for row, labels in enumerate(self.rows[axis]):
            real = [i for i, label in enumerate(labels) if label is not None]
            if isinstance(chosen, str):
                if chosen not in labels:
                    raise UnknownAxis(f'row {row} of the batch has no "{chosen}" along "{axis}".')
                places.append([list(labels).index(chosen)])
            elif is_mask(chosen):
                places.append([i for i in entries(chosen, len(labels), axis) if labels[i] is not None])
            else:
                places.append([real[i] for i in entries(chosen, len(real), f"row {row} of the batch, {axis}")])
        longest = max(len(of_row) for of_row in places)
        rows = [
            [*(labels[i] for i in of_row), *[None] * (longest - len(of_row))]
            for labels, of_row in zip(self.rows[axis], places)
        ]
        filled = torch.tensor([of_row + [0] * (longest - len(of_row)) for of_row in places], device=self.values.device)
        shape = list(self.shape)
        shape[d := self.axes.index(axis)] = longest
        values = self.values.gather(d, self._by_row(filled, axis).expand(shape))
        coords = {name: labels for name, labels in self.coords.items() if name != axis}
        found = Labelled(values, self.axes, coords, self.of, {**self.rows, axis: rows})
        return found._without(axis) if isinstance(chosen, str | int) else found

    def _is_padded(self, axis: str) -> bool:
        return axis in self.rows and any(None in labels for labels in self.rows[axis])

    def _by_row(self, values: Tensor, axis: str) -> Tensor:
        """Return `batch entry` in a shape that broadcasts with the values."""
        batch, d = self.axes.index("batch"), self.axes.index(axis)
        shape = [1] * self.values.ndim
        shape[batch], shape[d] = values.shape
        return (values if batch < d else values.mT).reshape(shape)

    def _names(self, place: Sequence[int]) -> tuple[Coordinate, ...]:
        """Return the labels of one entry."""
        at = dict(zip(self.axes, place))
        names = list[Coordinate]()
        for axis, i in at.items():
            own = self.rows[axis][at["batch"]][i] if axis in self.rows else None
            names.append(self.labels(axis)[i] if own is None else own)
        return tuple(names)

    def _chosen(self, axis: str, where: Any) -> int | slice | list[int]:
        """Return what is picked along an axis; a step backwards as the indices it comes by."""
        size = self.shape[self.dim(axis)]
        if isinstance(where, str):
            return self._position(axis, where)
        if isinstance(where, Sequence):
            where = [self._position(axis, one) if isinstance(one, str) else one for one in where]
        found = located(asked(where, axis), size, axis)
        return found if isinstance(found, int | slice) else entries(found, size, axis)

    def _position(self, axis: str, label: str) -> int:
        labels = self.labels(axis)
        if label not in labels:
            raise UnknownAxis(f'axis "{axis}" has no "{label}".{nearest(label, map(str, labels))}')
        return labels.index(label)


def _picked(labels: Sequence[Any], chosen: slice | list[int]) -> list[Any]:
    return list(labels[chosen]) if isinstance(chosen, slice) else [labels[i] for i in chosen]


def _number(value: Tensor) -> str:
    number = value.item()
    return f"{number:g}" if isinstance(number, float) else str(number)


def numbers(values: Tensor) -> Any:
    """Return values as nested lists of JSON numbers: null for what is not finite, pairs for complex ones."""
    values = wide(values)
    values = torch.view_as_real(values) if values.is_complex() else values
    nested = values.tolist()
    return nested if bool(values.isfinite().all()) else _without_nan(nested)


def _packed(values: Tensor, axes: list[str], coords: dict[str, list[Coordinate]]) -> dict[str, Any]:
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
        axes, coords = [*axes, "part"], {**coords, "part": ["real", "imaginary"]}
    values = values.detach().to("cpu", torch.float32)
    values = values.masked_fill(~values.isfinite(), torch.nan).contiguous()
    data = base64.b64encode(values.numpy().astype("<f4").tobytes()).decode("ascii")
    return {"axes": axes, "coords": coords, "shape": list(values.shape), "float32": data}


def _without_nan(nested: Any) -> Any:
    if isinstance(nested, list):
        return [_without_nan(inner) for inner in nested]
    return nested if math.isfinite(nested) else None


def _with_nan(nested: Any) -> Any:
    if isinstance(nested, list):
        return [_with_nan(inner) for inner in nested]
    return math.nan if nested is None else nested
