"""Edits as data: what to change at a site, and which part of it.

    Scale("blocks.*.attn.z", 0.0, at=At(head=3))          # switch head 3 off everywhere
    Set("blocks.2.resid_pre", clean, at=At(pos=-1))       # clean: a Run, a tensor or a number

Parts are addressed by axis name. An integer drops its axis, a slice, a list or a mask keeps it; lists on several axes
combine as a grid. Values are never changed in place. An edit may read what the pass made earlier, at sites it names in
`reads`.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from glassformer.arguments import checked, not_dense
from glassformer.errors import ShapeMismatch, SiteNotRead, UnknownAxis, UnknownSite, nearest
from glassformer.labelled import Labelled, RowLabels
from glassformer.numerics import decompositions
from glassformer.numerics.indices import Where, asked, entries, is_empty, is_mask, located
from glassformer.trace.sites import Site

# values of earlier sites of the pass, by name
Earlier = Mapping[str, Tensor]
_NOTHING: Earlier = MappingProxyType({})


class At:
    """A part of a site, by axis name: `At(head=3, pos=-1)`, `At(pos=slice(2, 5))`, `At(batch=[0, 2])`.

    Args:
        where: For each axis an index, a slice, several indices, or a mask: one truth for each entry of the axis.

    Raises:
        UnknownAxis: A place comes without the name of its axis.
        ShapeMismatch: A place is none of these.
    """

    def __init__(self, *unnamed: Any, **where: Any) -> None:
        if unnamed:
            raise UnknownAxis(f"At takes places by the names of their axes, At(pos=-1, head=3); found {unnamed[0]!r}.")
        self.where: dict[str, Where] = {axis: asked(place, f"At: {axis}") for axis, place in where.items()}
        # of rows that are padded: where in each row of the batch the places of an axis are
        self.by_row: dict[str, list[list[int]]] = {}

    def within(self, **where: Any) -> "At":
        """The same part, but for some axes."""
        found = At(**(self.where | where))
        found.by_row = {axis: places for axis, places in self.by_row.items() if axis not in where}
        return found

    def in_rows(self, by_row: Mapping[str, list[list[int]]]) -> "At":
        """The same part where places of some axes are others in each row of the batch: as many columns of every row."""
        found = self.within()
        found.by_row = dict(by_row)
        return found

    @property
    def single(self) -> dict[str, Where]:
        """Single positions that are asked for, by axis: they are counted in rows; slices and masks go by columns."""
        return {
            axis: place
            for axis, place in self.where.items()
            if axis in ("pos", "query", "key") and not isinstance(place, slice) and not is_mask(place)
        }

    def in_own_rows(self, labels: Mapping[str, RowLabels], site: Site) -> "At":
        """The same part with single positions counted in each row as it has them alone.

        Args:
            labels: Names of positions by axis, row by row; None at padding.
            site: What is addressed, for errors.

        Raises:
            ShapeMismatch: A row that is addressed has no such position.
        """
        padded = {axis: rows for axis, rows in labels.items() if any(None in row for row in rows)}
        return self.in_rows({axis: self._columns(padded[axis], axis, site) for axis in self.single if axis in padded})

    def _columns(self, labels: RowLabels, axis: str, site: Site) -> list[list[int]]:
        """Return the columns that single positions are in, row by row; of rows that are not addressed, any."""
        addressed, found = self.entries("batch", len(labels)), list[list[int]]()
        for row, own in enumerate(labels):
            real = [i for i, label in enumerate(own) if label is not None]
            size = len(real) if row in addressed else len(own)
            places = entries(self.where[axis], size, f'At at "{site.name}": row {row} of the batch, {axis}')
            found.append([real[i] for i in places] if row in addressed else places)
        return found

    def __bool__(self) -> bool:
        return bool(self.where)

    def __repr__(self) -> str:
        return "At(" + ", ".join(f"{axis}={where!r}" for axis, where in self.where.items()) + ")"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, At) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(tuple(self.where))

    def _compared(self) -> list[Any]:
        """Return what makes two parts equal: a tensor's entries, all of them, which its text would leave out."""
        return [*((axis, w.tolist() if isinstance(w, Tensor) else w) for axis, w in self.where.items()), self.by_row]

    def check(self, site: Site) -> None:
        """Raise `UnknownAxis` for an axis the site does not have (when its axes are known beforehand)."""
        for axis in self.where if site.axes else ():
            if axis not in site.axes:
                raise UnknownAxis(
                    f'site "{site.name}" has no axis "{axis}".{nearest(axis, site.axes)} Axes: {" ".join(site.axes)}.'
                )

    def remaining(self, axes: Sequence[str]) -> list[str]:
        return [axis for axis in axes if not isinstance(self.where.get(axis), int)]

    def entries(self, axis: str, size: int) -> list[int]:
        """Addressed entries of an axis of some length, in order."""
        return sorted(set(entries(self.where.get(axis, slice(None)), size, f"At: {axis}")))

    def take(self, value: Tensor, site: Site) -> Tensor:
        """The addressed part."""
        if not self.where:
            return value
        if self.by_row:
            found = value[self._grid(value, site)]
            return found.squeeze(tuple(d for d, where in self._by_dimension(value, site) if isinstance(where, int)))
        for dim, where in reversed(self._by_dimension(value, site)):
            if isinstance(where, int):
                value = value.select(dim, where)
            elif isinstance(where, slice):
                value = value[(slice(None),) * dim + (where,)]
            else:
                value = value.index_select(dim, _index(where, value, dim))
        return value

    def borrow(self, run: Mapping[str, Tensor | Labelled], site: Site) -> Tensor:
        """The addressed part of what a run read at this site; raises `SiteNotRead` or `ShapeMismatch`."""
        _whole(run, site)
        return self.of(_lent(run, site.name), site)

    def of(self, value: Tensor | Labelled, site: Site) -> Tensor:
        """The addressed part of a value that was read, its single positions counted in the rows that it has."""
        if isinstance(value, Labelled):
            return At(**self.where).in_own_rows(value.rows, site).take(value.values, site)
        # rows that are said to be elsewhere are those of the batch that is edited
        rows = {len(of) for of in self.by_row.values()}
        return (At(**self.where) if rows and rows != {value.shape[0]} else self).take(value, site)

    def put(self, value: Tensor, part: Tensor, site: Site) -> Tensor:
        """A copy of `value` with the addressed part replaced."""
        if not self.where:
            return part.expand_as(value).to(value.dtype)
        copy = value.clone()
        self.write(copy, part, site)
        return copy

    def write(self, value: Tensor, part: Tensor, site: Site) -> None:
        """Replace the addressed part in place."""
        places = self._by_dimension(value, site)
        part = part.to(value.dtype).expand(self.take(value, site).shape)
        if not self.by_row and not any(isinstance(where, (list, Tensor)) for _, where in places):
            index: list[int | slice] = [slice(None)] * value.ndim
            for dim, where in places:
                index[dim] = where  # type: ignore[assignment]
            value[tuple(index)] = part
            return
        for dim, where in places:
            if isinstance(where, int):
                part = part.unsqueeze(dim)
        value.index_put_(self._grid(value, site), part)

    def _grid(self, value: Tensor, site: Site) -> tuple[Tensor, ...]:
        """Return the entries along every axis, in shapes that broadcast: lists on several axes form a grid."""
        places = dict(self._by_dimension(value, site))
        rows = [torch.arange(n, device=value.device) for n in value.shape]
        for dim, where in places.items():
            rows[dim] = rows[dim][where].reshape(-1) if isinstance(where, (int, slice)) else _index(where, value, dim)
        grid = [row.view([-1 if d == i else 1 for d in range(value.ndim)]) for i, row in enumerate(rows)]
        for axis, by_row in self.by_row.items():
            batch, dim = site.axes.index("batch"), site.axes.index(axis)
            own = torch.tensor(by_row, device=value.device)[rows[batch]]
            shape = [own.shape[0] if d == batch else own.shape[1] if d == dim else 1 for d in range(value.ndim)]
            grid[dim] = (own if batch < dim else own.mT).reshape(shape)
        return tuple(grid)

    def _by_dimension(self, value: Tensor, site: Site) -> list[tuple[int, Where]]:
        axes = site.axes or [f"axis{i}" for i in range(value.ndim)]
        places: list[tuple[int, Where]] = []
        for axis, where in self.where.items():
            if axis not in axes:
                raise UnknownAxis(f'site "{site.name}" has no axis "{axis}". Axes: {" ".join(axes)}.')
            dim = list(axes).index(axis)
            # what is another column in each row was looked at when it was found
            place = where if axis in self.by_row else located(where, value.shape[dim], f'At at "{site.name}": {axis}')
            places.append((dim, place))
        return sorted(places, key=lambda place: place[0])


@dataclass(frozen=True, eq=False)
class Edit(ABC):
    """Base of the edits; each says how the addressed part changes."""

    site: str
    at: At = field(default_factory=At, kw_only=True)

    def __post_init__(self) -> None:
        kind = type(self).__name__
        # whatever the annotations say, callers give other things
        site: Any = self.site
        at: Any = self.at
        if not isinstance(site, str):
            raise UnknownSite(f"{kind}: the first argument is the name of a site, found {_shown(site)}.")
        if not isinstance(at, At):
            raise UnknownAxis(f'{kind} at "{self.site}": at= takes a part, At(pos=-1); found {_shown(self.at)}.')

    def require_entries(self) -> None:
        """Raise `ShapeMismatch` if it addresses a part of no entries: it would change nothing."""
        for axis, where in self.at.where.items():
            if is_empty(where):
                raise ShapeMismatch(
                    f'{type(self).__name__} at "{self.site}": {axis}={_shown(where)} chooses no entry, and the edit '
                    "would change nothing.\n    Choose one entry or more, or leave the edit out."
                )

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of earlier sites whose values in this pass `change` is handed."""
        return ()

    def __call__(self, value: Tensor, site: Site, earlier: Earlier = _NOTHING) -> Tensor:
        self._require_within(value, site)
        return self.at.put(value, self.change(self.at.take(value, site), value, site, earlier), site)

    def _require_within(self, value: Tensor, site: Site) -> None:
        """Raise `ShapeMismatch` if a slice lies beyond its axis; an index and those of a list are refused elsewhere."""
        for dim, axis in enumerate(site.axes):
            where, size = self.at.where.get(axis), value.shape[dim]
            if isinstance(where, slice) and not range(size)[where]:
                raise ShapeMismatch(
                    f'{type(self).__name__} at "{site.name}": {axis}={_shown(where)} chooses no entry of {size}, and '
                    f"the edit would change nothing.\n    Choose one of 0 to {size - 1} or more, or leave the edit out."
                )

    def does_as(self, other: "Edit") -> bool:
        """Whether it does what another edit does: the same change of the same part, by the same values.

        Numbers and tensors are compared by what they hold, runs and functions by which they are.
        """
        names = [one.name for one in fields(self)]
        return type(self) is type(other) and all(_equal(getattr(self, name), getattr(other, name)) for name in names)

    def check(self, site: Site) -> None:
        """Raise `UnknownAxis` if the edit needs an axis the site does not have."""
        self.at.check(site)

    def lent_by(self, name: str, site: Site) -> "Edit":
        """The edit with what a run read of one head in place of the run, if it did not read the whole site."""
        run = getattr(self, "value", None)
        read = getattr(run, "values", None)
        run = read if isinstance(read, Mapping) else run
        if not isinstance(run, Mapping) or site.name in run or name not in run:
            return self
        value, whole = _lent(run, name), [axis for axis in site.axes if axis not in ("head", "kv_head")]
        if value.ndim != len(whole):
            return self
        return replace(self, value=self.at.of(value, replace(site, axes=tuple(whole))))  # type: ignore[call-arg]

    def entries(self, axis: str, size: int) -> list[int]:
        """Entries of an axis of some length that the edit may change, in order."""
        return self.at.entries(axis, size)

    @abstractmethod
    def change(self, part: Tensor, whole: Tensor, site: Site, earlier: Earlier) -> Tensor:
        """Value that the addressed part becomes.

        Args:
            part: The part.
            whole: The site's full value.
            site: The site.
            earlier: Values of the sites that the edit `reads`, by name.
        """

    def fit(self, value: Any, part: Tensor, site: Site) -> Tensor:
        """A number, tensor, labelled tensor, or what a run or tape read at this site, in the shape of `part`.

        A number and a vector along the last axis go everywhere, and so does a tensor along those of its axes that have
        one entry. What a run read has to be as long as the part along all axes but the batch.
        """
        # a tensor has a `values` of its own, which a compiler cannot look at
        if not isinstance(value, Tensor) and isinstance(getattr(value, "values", None), Mapping):
            value = value.values
        lent = isinstance(value, Mapping)
        if lent:
            value = self.at.borrow(value, site)
        value = _values(value)
        if isinstance(value, Tensor):
            _require_dense(value, part, f'edit at "{site.name}": its value is a tensor')
        value = torch.as_tensor(value, dtype=part.dtype, device=part.device)
        axes = self.at.remaining(site.axes) or [f"axis{i}" for i in range(part.ndim)]
        vector = not lent and value.ndim == 1 and part.ndim > 0 and value.shape[0] == part.shape[-1]
        spread = [not lent or axis == "batch" for axis in axes]
        same = value.ndim == part.ndim and all(
            a == b or (a == 1 and free) for a, b, free in zip(value.shape, part.shape, spread)
        )
        if value.ndim == 0 or vector or same:
            return value
        raise ShapeMismatch(_mismatch(site.name, value, part, axes, lent))


def _values(value: Any) -> Any:
    return value.values if isinstance(value, Labelled) else value


def _equal(value: Any, other: Any) -> bool:
    value, other = _values(value), _values(other)
    if isinstance(value, Tensor) or isinstance(other, Tensor):
        return isinstance(value, Tensor) and isinstance(other, Tensor) and torch.equal(value, other)
    return value is other or (isinstance(value, At | str | float | int | tuple) and bool(value == other))


def _lent(run: Mapping[str, Tensor | Labelled], name: str) -> Tensor | Labelled:
    """Return what a run lends of a site: without names of positions if its rows were laid out in columns."""
    return _values(run[name]) if getattr(run, "in_columns", False) else run[name]


def _whole(run: Mapping[str, Tensor | Labelled], site: Site) -> Tensor:
    if site.name not in run:
        raise SiteNotRead(
            f'edit at "{site.name}": the run it takes the value from did not read that site; add it to read=[...].'
        )
    value = _values(run[site.name])
    if site.axes and value.ndim != len(site.axes):
        raise ShapeMismatch(
            f'edit at "{site.name}": the run it takes the value from kept {value.ndim} axes of {len(site.axes)} '
            f"({' '.join(site.axes)}).\n    Read the whole site there, or give the edit a tensor."
        )
    return value


@checked
@dataclass(frozen=True, eq=False)
class Set(Edit):
    """Replace the part by a value: a number, a tensor, or a run that read the same site."""

    value: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        require_value(self.value, self)

    def change(self, part: Tensor, whole: Tensor, site: Site, earlier: Earlier) -> Tensor:
        return self.fit(self.value, part, site).expand_as(part)


@checked
@dataclass(frozen=True, eq=False)
class Add(Edit):
    """Add a value to the part."""

    value: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        require_value(self.value, self)

    def change(self, part: Tensor, whole: Tensor, site: Site, earlier: Earlier) -> Tensor:
        return part + self.fit(self.value, part, site)


@checked
@dataclass(frozen=True, eq=False)
class Scale(Edit):
    """Multiply the part by a factor; 0 switches it off."""

    factor: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        require_value(self.factor, self)

    def change(self, part: Tensor, whole: Tensor, site: Site, earlier: Earlier) -> Tensor:
        return part * self.fit(self.factor, part, site)


@checked
@dataclass(frozen=True, eq=False)
class Project(Edit):
    """Remove the span of some directions of the last axis, or keep nothing else.

    Args:
        directions: One direction, or one per row; they need not be orthogonal.
        keep: Keep the span and remove the rest.
    """

    directions: Tensor | Labelled
    keep: bool = False

    def change(self, part: Tensor, whole: Tensor, site: Site, earlier: Earlier) -> Tensor:
        # in float32 at least: factorisations know no bfloat16
        wide = torch.promote_types(part.dtype, torch.float32)
        directions = torch.atleast_2d(_values(self.directions)).to(part.device, wide)
        if directions.ndim != 2 or directions.shape[1] != part.shape[-1]:
            shape = "x".join(map(str, directions.shape))
            raise ShapeMismatch(
                f'Project at "{site.name}": directions are {shape}; the last axis has {part.shape[-1]}.'
            )
        _, size, basis = decompositions.svd(directions)
        # directions that depend on each other span less: the rest of the basis is arbitrary and must not count
        counts = size > size.max() * torch.finfo(wide).eps * max(directions.shape)
        basis = basis * counts[:, None]
        inside = ((part.to(wide) @ basis.mT) @ basis).to(part.dtype)
        return inside if self.keep else part - inside


@checked
@dataclass(frozen=True, eq=False)
class Take(Edit):
    """Copy the part from another row of the same batch: counterfactual worlds side by side in one pass."""

    row: int

    def check(self, site: Site) -> None:
        self.at.within(batch=self.row).check(site)

    def change(self, part: Tensor, whole: Tensor, site: Site, earlier: Earlier) -> Tensor:
        donor = self.at.within(batch=self.row).take(whole, site)
        if not isinstance(self.at.where.get("batch"), int):
            donor = donor.unsqueeze(list(site.axes).index("batch"))
        return donor.expand_as(part)


@checked
@dataclass(frozen=True, eq=False)
class Apply(Edit):
    """Change the part by a function that keeps its shape.

    Args:
        function: Of the part, and of the values of the sites in `reads`, in that order.
        reads: Names of sites that the pass comes by earlier; their whole values are handed on.
    """

    function: Callable[..., Tensor]
    reads: tuple[str, ...] = ()  # type: ignore[assignment]

    def change(self, part: Tensor, whole: Tensor, site: Site, earlier: Earlier) -> Tensor:
        found: Any = self.function(part, *(earlier[name] for name in self.reads))
        if isinstance(found, int | float):
            return torch.full_like(part, found)
        if not isinstance(found, Tensor):
            raise ShapeMismatch(
                f'Apply at "{site.name}": the function returned {_shown(found)}; it returns the part changed, a tensor '
                "of its shape, or a number."
            )
        _require_dense(found, part, f'Apply at "{site.name}": the function returned a tensor')
        if found.shape != part.shape:
            axes = self.at.remaining(site.axes) or [f"axis{i}" for i in range(part.ndim)]
            named = [" ".join(f"{axis}={size}" for axis, size in zip(axes, u.shape)) for u in (found, part)]
            returned = named[0] if found.ndim == part.ndim else "x".join(map(str, found.shape)) or "one number"
            raise ShapeMismatch(
                f'Apply at "{site.name}": the function returned a tensor of {returned}, and the part is {named[1]}.'
                "\n    It keeps the shape. If one value is meant for all entries, say so: value.expand_as(part)."
            )
        return found.to(part.device, part.dtype)


def require_value(value: Any, edit: Edit) -> None:
    """Raise `ShapeMismatch` for what holds no numbers."""
    lent = isinstance(value, Mapping) or isinstance(getattr(value, "values", None), Mapping)
    if lent or isinstance(value, Tensor | Labelled | float):
        return
    try:
        torch.as_tensor(value, dtype=torch.float64) if isinstance(value, int) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ShapeMismatch(
            f'{type(edit).__name__} at "{edit.site}" takes a number, a tensor, or a run that read the site; found '
            f"{_shown(value)}."
        ) from None


def _require_dense(value: Tensor, part: Tensor, what: str) -> None:
    """Raise `ShapeMismatch` for a tensor that cannot become a part: entries of another kind, or none to look at."""
    # a model without numbers is edited without numbers
    kind = "" if part.is_meta else not_dense(value)
    if kind or (value.is_complex() and not part.is_complex()):
        raise ShapeMismatch(
            f"{what} that is {kind or 'complex'}, and the part is a dense one of "
            f"{str(part.dtype).removeprefix('torch.')}.\n    Give a dense tensor of real numbers."
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _index(where: Any, value: Tensor, dim: int) -> Tensor:
    index = torch.as_tensor(where, dtype=torch.long, device=value.device).reshape(-1)
    return torch.where(index < 0, index + value.shape[dim], index)


def _mismatch(name: str, value: Tensor, part: Tensor, axes: Sequence[str], lent: bool = False) -> str:
    carried = " ".join(f"{a}={n}" for a, n in zip(axes, part.shape))
    if value.ndim < part.ndim:
        # guess which axes were meant: match sizes from the left, in order
        named, left = [], list(zip(axes, part.shape))
        for size in value.shape:
            while left and size not in (1, left[0][1]) and len(left) > 1:
                left.pop(0)
            named.append(left.pop(0)[0] if left else "?")
        given = " ".join(f"{a}={n}" for a, n in zip(named, value.shape))
        missing = [a for a in axes if a not in named]
        advice = f"Missing axis: {', '.join(missing)}. Use At({missing[0]}=...) to address a part." if missing else ""
    else:
        given = (
            " ".join(f"{a}={n}" for a, n in zip(axes, value.shape))
            if value.ndim == part.ndim
            else str(tuple(value.shape))
        )
        advice = "Sizes must be equal or 1; a number and a vector along the last axis also fit."
        if lent:
            advice = "What a run lends is as long as what it replaces; a batch of one goes into every row."
    return f'edit at "{name}" has {given}; the site carries {carried}.\n    {advice}'
