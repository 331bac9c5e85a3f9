"""Labelled tensors: values, axis names, coordinates.

A `Labelled` selects, ranks and exports; it does no algebra: use `.values`, or `float` of one entry.
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
from glassformer.numerics.indices import asked, entries, located

Coordinate = str | int | float


@dataclasses.dataclass(frozen=True, eq=False)
class Labelled:
    """A tensor whose axes have names and, where it helps, coordinates.

    Args:
        values: The numbers.
        axes: One name per dimension.
        coords: Labels along an axis (token strings, `L3H5`, …); axes without labels count from 0.
        of: The head the values are of, where they are of one; of a shared key head, all heads that read it.
    """

    values: Tensor
    axes: tuple[str, ...]
    coords: Mapping[str, Sequence[Coordinate]] = dataclasses.field(default_factory=dict)
    of: str = ""

    def __post_init__(self) -> None:
        values: Any = self.values
        axes: Any = self.axes
        coords: Any = self.coords
        # one is made for each site that is read: looked at closely only where it must be refused
        if not (isinstance(values, Tensor) and isinstance(axes, tuple) and isinstance(coords, Mapping)):
            check(Labelled, (values, axes, coords, self.of), {})
        if len(self.axes) != self.values.ndim:
            raise ShapeMismatch(f"{len(self.axes)} axis names {self.axes} for a tensor of shape {self.shape}.")
        for axis, labels in coords.items():
            if not isinstance(labels, Sequence):
                raise ShapeMismatch(f'axis "{axis}" needs a list of coordinates, found {labels!r}.')
            if len(labels) != self.size(axis):
                raise ShapeMismatch(f'axis "{axis}" has {self.size(axis)} entries but {len(labels)} coordinates.')

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def size(self, axis: str) -> int:
        return self.shape[self.dim(axis)]

    def dim(self, axis: str) -> int:
        """Return the dimension an axis name stands for; raises `UnknownAxis`."""
        if axis not in self.axes:
            raise UnknownAxis(f'no axis "{axis}".{nearest(axis, self.axes)} Axes: {" ".join(self.axes)}.')
        return self.axes.index(axis)

    def labels(self, axis: str) -> list[Coordinate]:
        return list(self.coords.get(axis, range(self.size(axis))))

    def select(self, **at: Any) -> "Labelled":
        """Pick along named axes: an index or a coordinate drops the axis, a slice, several or a mask keep it.

        Args:
            at: For each axis an index, a coordinate, a slice, several indices or coordinates, or a mask: one truth for
                each entry of the axis.

        Raises:
            UnknownAxis: There is no such axis or coordinate.
            ShapeMismatch: An index is out of range, or a mask is not as long as the axis.
        """
        values, axes, coords = self.values, self.axes, dict(self.coords)
        for axis, where in at.items():
            chosen, d = self._chosen(axis, where), axes.index(axis)
            if isinstance(chosen, int):
                values, axes = values.select(d, chosen), (*axes[:d], *axes[d + 1 :])
                coords.pop(axis, None)
                continue
            values = values[(slice(None),) * d + (chosen,)]
            if axis in coords:
                numbers = range(self.size(axis))[chosen] if isinstance(chosen, slice) else chosen
                coords[axis] = [coords[axis][i] for i in numbers]
        return Labelled(values, axes, coords, self.of)

    def top(
        self, k: int = 10, *, largest: bool = True, by_size: bool = False
    ) -> list[tuple[tuple[Coordinate, ...], float]]:
        """Return the k largest (smallest, or largest in absolute value) entries as (coordinates, value)."""
        flat = self.values.detach().flatten()
        order = (flat.abs() if by_size else flat).topk(min(k, flat.numel()), largest=largest).indices
        labels = [self.labels(axis) for axis in self.axes]
        rows = []
        for i in order.tolist():
            position = torch.unravel_index(torch.tensor(i), self.shape)
            rows.append((tuple(names[int(p)] for names, p in zip(labels, position)), float(flat[i])))
        return rows

    def to_frame(self) -> Any:
        """Return a long-form pandas DataFrame with one column per axis and one called `value`."""
        import pandas as pd

        labels = [self.labels(axis) for axis in self.axes]
        index = pd.MultiIndex.from_product(labels, names=self.axes) if self.axes else None
        return pd.DataFrame({"value": _wide(self.values).flatten().numpy()}, index=index).reset_index()

    def to_xarray(self) -> Any:
        try:
            import xarray  # type: ignore[import-not-found]  # an extra, absent from most environments
        except ImportError as error:
            raise MissingExtra("to_xarray needs xarray: pip install 'glassformer[xarray]'.") from error
        coords = {axis: list(labels) for axis, labels in self.coords.items()}
        return xarray.DataArray(_wide(self.values).numpy(), coords=coords, dims=self.axes)

    def plot(self, title: str = "") -> Any:
        """Return a matplotlib figure: bars or a line for one axis, a map for two, several maps for more.

        Raises:
            MissingExtra: matplotlib is not installed.
            ShapeMismatch: There would be more maps than fit; `select` some.
        """
        return figures.draw([figures.Panel("", self)], title)

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        """Return JSON data: axes, coordinates and nested lists of values.

        What is not finite becomes null; complex values become pairs, and `complex` says so.

        Args:
            packed: Instead of `values`, write `shape`, and as `float32` the base64 of little-endian single precision,
                row by row, NaN for what is not finite; complex values get a last axis `part`.
        """
        coords = {axis: list(labels) for axis, labels in self.coords.items()}
        if packed:
            return _packed(self.values, list(self.axes), coords)
        found = {"axes": list(self.axes), "coords": coords, "values": numbers(self.values)}
        found |= {"of": self.of} if self.of else {}
        return found | {"complex": True} if self.values.is_complex() else found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Labelled":
        values = torch.tensor(_with_nan(data["values"]))
        values = torch.view_as_complex(values) if data.get("complex") else values
        return cls(values, tuple(data["axes"]), data["coords"], data.get("of", ""))

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

    def _entry(self) -> Tensor:
        if self.axes:
            raise ShapeMismatch(
                f"{self!r} is no single number: it has axes {' '.join(self.axes)}; select one entry, "
                f".select({', '.join(f'{axis}=…' for axis in self.axes)})."
            )
        return self.values

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


def _wide(values: Tensor) -> Tensor:
    """Return values as array libraries take them: no half precision."""
    values = values.detach().cpu()
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _number(value: Tensor) -> str:
    number = value.item()
    return f"{number:g}" if isinstance(number, float) else str(number)


def numbers(values: Tensor) -> Any:
    """Return values as nested lists of JSON numbers: null for what is not finite, pairs for complex ones."""
    values = _wide(values)
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
