"""Labelled tensors and the base of every result.

`Labelled` is values + axis names + coordinates. It selects, ranks and exports; it does no algebra: use `.values`, or
`float` of one entry.
"""
# torch does not type `tolist`, JSON has no static type, and pandas ships no stubs
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

import base64
import copy
import dataclasses
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from glassformer import figures, files, viewers
from glassformer.errors import MissingExtra, ShapeMismatch, UnknownAxis, nearest
from glassformer.indices import asked, entries, located
from glassformer.json_text import json_text
from glassformer.notes import Note, distinct
from glassformer.provenance import Bound, Provenance

Coordinate = str | int | float

# numbers that say how far others can be trusted, or what they are compared with
_ASIDE = re.compile("spread|error|gap|unexplained|clean|corrupt|undefined|baseline")


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
        if len(self.axes) != self.values.ndim:
            raise ShapeMismatch(f"{len(self.axes)} axis names {self.axes} for a tensor of shape {self.shape}.")
        for axis, labels in self.coords.items():
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
        found = {"axes": list(self.axes), "coords": coords, "values": _numbers(self.values)}
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


class Result:
    """Base of what an analysis returns: a frozen dataclass of labelled tensors, numbers and strings.

    A result exports itself (`to_dict`, `to_json`, `to_frame`, `save`), prints as a short summary, and can be looked at:
    `plot` draws it, `show` displays it, `html` writes its page. A class says what is drawn first and which of its
    numbers have a sign:

    - `HEADLINE`: Names of the fields and properties that say what the result says; without any, all labelled fields but
      spreads.
    - `SIGNED`: Names of those whose colours have zero in the middle, whatever the data happen to be.
    """

    HEADLINE: ClassVar[tuple[str, ...]] = ()
    SIGNED: ClassVar[tuple[str, ...]] = ()
    _notes: tuple[Note, ...] = ()
    _bound: Bound | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # the decorator would write a longer one, with every number and every string
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Result.__repr__

    @property
    def notes(self) -> tuple[Note, ...]:
        """What must be known to read the numbers right."""
        return self._notes

    @property
    def provenance(self) -> Provenance | None:
        """What it is of: model and digest, input, precision, seed, versions; None for what no analysis returned."""
        return None if self._bound is None else self._bound.said()

    def noted(self, *notes: Note) -> Self:
        """Return the result with further notes behind its own."""
        found = copy.copy(self)
        # fields are what was computed; what is said of them stands beside, and passes a frozen class
        object.__setattr__(found, "_notes", distinct(self._notes, notes))
        return found

    def bound(self, bound: Bound | None) -> Self:
        """Return the result with what it is of."""
        found = copy.copy(self)
        object.__setattr__(found, "_bound", bound)
        return found

    def _said(self) -> dict[str, Any]:
        """Return what stands beside the fields: notes and provenance, as far as there are any."""
        notes, of = [note.to_dict() for note in self.notes], self.provenance
        return ({"notes": notes} if notes else {}) | ({} if of is None else {"provenance": of.to_dict()})

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        """Return JSON data: the class under `result`, and its fields; labelled tensors without axes are plain numbers.

        `notes` and `provenance` come last, if there are any.

        Args:
            packed: As a page carries it: labelled tensors packed, at any depth, and under `derived` the properties that
                `derived_names` lists.
        """
        found = {"result": type(self).__name__} | {f.name: _plain(getattr(self, f.name), packed) for f in _fields(self)}
        if not packed:
            return found | self._said()
        derived = {name: _plain(getattr(self, name), packed) for name in self.derived_names()}
        for name in self.SIGNED:
            if isinstance(value := (found | derived)[name], dict):
                value["signed"] = True
        return found | {"derived": derived} | self._said()

    @classmethod
    def derived_names(cls) -> list[str]:
        """Return the public properties that promise a labelled tensor or a number: what follows from the fields."""
        found: list[str] = []
        for name, member in inspect.getmembers(cls, lambda m: isinstance(m, property)):
            made = member.fget.__annotations__.get("return", "")
            # a union has no name
            promised = made if isinstance(made, str) else getattr(made, "__name__", "")
            if not name.startswith("_") and promised in ("Labelled", "float"):
                found.append(name)
        return found

    @classmethod
    def headline_names(cls) -> tuple[str, ...]:
        """Return `HEADLINE`, or what stands in for it: the fields that promise a labelled tensor, but for spreads."""
        made = {f.name: str(f.type) for f in _fields(cls) if not _ASIDE.search(f.name)}
        return cls.HEADLINE or tuple(name for name, words in made.items() if "Labelled" in words)

    def to_json(self, indent: int | None = None) -> str:
        return json_text(self.to_dict(), indent=indent, ascii_only=False)

    def to_frame(self) -> Any:
        """Return the first labelled field as a long-form DataFrame; `attrs` hold notes and provenance."""
        for field in _fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Labelled):
                frame = value.to_frame()
                frame.attrs |= self._said()
                return frame
        raise ShapeMismatch(f"{type(self).__name__} holds no labelled tensor.")

    def plot(self, *names: str) -> Any:
        """Return a matplotlib figure of some labelled fields or properties; without names, of what the class says.

        The latter averages over prompts and samples, and draws results within a result where it has no numbers itself.

        Raises:
            MissingExtra: matplotlib is not installed.
            ShapeMismatch: There is nothing to draw, or too much for one figure.
            UnknownAxis: There is no labelled field or property of a name.
        """
        return figures.draw(self.panels(*names), self._title(), overview=not names)

    def panels(self, *names: str) -> list[figures.Panel]:
        """Return what `plot` draws, tensor by tensor; numbers without axes stand together."""
        found = {name: getattr(self, name) for name in self._names(names)}
        panels = [figures.Panel(n, v, n in self.SIGNED) for n, v in found.items() if isinstance(v, Labelled) and v.axes]
        nested = [] if panels or names else _panels_within(self)
        numbers = {n: float(v) for n, v in found.items() if not (isinstance(v, Labelled) and v.axes)}
        if not (panels or nested or numbers):
            numbers = {f.name: v for f in _fields(self) if isinstance(v := getattr(self, f.name), float)}
        if numbers:
            values = Labelled(torch.tensor(list(numbers.values())), ("number",), {"number": list(numbers)})
            panels.append(figures.Panel("numbers" if panels else "", values))
        return panels + nested

    def show(self) -> None:
        """Display the result: its page in a notebook, elsewhere tables on the terminal, as the command line prints."""
        viewers.viewer().show(self)

    def html(self, path: str | Path) -> Path:
        """Write the result as a page that opens in any browser and loads nothing, whole or not at all.

        Raises:
            SaveError: The file cannot be written.
        """
        return files.write(path, viewers.viewer().page(self))

    def _repr_html_(self) -> str:
        return viewers.viewer().summary(self)

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON, whole or not at all; raises `SaveError`."""
        return files.write(path, self.to_json(indent=1))

    def replace(self, **changes: Any) -> Self:
        found = dataclasses.replace(self, **changes)  # type: ignore[type-var]
        return found.noted(*self.notes).bound(self._bound)

    def _title(self) -> str:
        """Return what stands above a figure of the result."""
        return spaced(type(self).__name__)

    def _names(self, asked: Sequence[str]) -> list[str]:
        """Return the names to draw: those asked for, or those of the headline that this result has."""
        fields = [f.name for f in _fields(self) if isinstance(getattr(self, f.name), Labelled)]
        known = fields + self.derived_names()
        for name in asked:
            if name not in known:
                raise UnknownAxis(
                    f'plot: no labelled field "{name}".{nearest(name, known)} Fields: {", ".join(known)}.'
                )
        present = [name for name in self.headline_names() if getattr(self, name) is not None]
        return list(asked) or present or fields

    def __repr__(self) -> str:
        parts = [f"{f.name}={_brief(getattr(self, f.name))}" for f in _fields(self)]
        return f"{type(self).__name__}({', '.join(parts)})"


def spaced(name: str) -> str:
    """Return the name of a class as words: `CausalTrace` as `Causal trace`."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: f" {match[1].lower()}", name)


def results_within(result: Result) -> list[tuple[str, Result]]:
    """Return the results among a result's fields, and in their lists and mappings, each under a name."""
    found: list[tuple[str, Result]] = []
    for name, value in ((f.name, getattr(result, f.name)) for f in _fields(result)):
        entries = {name: value}
        if isinstance(value, Mapping):
            entries = {str(key): entry for key, entry in value.items()}
        elif isinstance(value, (list, tuple)):
            entries = {f"{name} {i + 1}": entry for i, entry in enumerate(value)}
        found += [(words, entry) for words, entry in entries.items() if isinstance(entry, Result)]
    return found


def _panels_within(result: Result) -> list[figures.Panel]:
    return [
        panel._replace(name=f"{name}, {panel.name}" if panel.name else name)
        for name, inner in results_within(result)
        for panel in inner.panels()
    ]


def _wide(values: Tensor) -> Tensor:
    """Return values as array libraries take them: no half precision."""
    values = values.detach().cpu()
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _number(value: Tensor) -> str:
    number = value.item()
    return f"{number:g}" if isinstance(number, float) else str(number)


def _numbers(values: Tensor) -> Any:
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


def _fields(result: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(result)


def _plain(value: Any, packed: bool = False) -> Any:
    if isinstance(value, Labelled) and not value.axes:
        return _numbers(value.values)
    if isinstance(value, (Labelled, Result)):
        return value.to_dict(packed)
    if isinstance(value, Tensor):
        return _numbers(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, packed) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, packed) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), packed) for f in dataclasses.fields(value)}
    return value


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
