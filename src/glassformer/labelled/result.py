"""The base of every result: it exports, draws and shows itself, and says what it is of."""
# JSON has no static type
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

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

from glassformer import figures, files
from glassformer.errors import ShapeMismatch, UnknownAxis, nearest
from glassformer.figures import viewers
from glassformer.files import json_text
from glassformer.labelled.tensor import Labelled, numbers
from glassformer.labelled.viewed import Viewed
from glassformer.provenance import Bound, Note, Provenance, distinct

# numbers that say how far others can be trusted, or what they are compared with
_ASIDE = re.compile("spread|error|gap|unexplained|clean|corrupt|undefined|baseline")
# fields and properties that are shares of a whole: comparable from picture to picture, whatever the largest is
OF_A_WHOLE = frozenset(("carried", "recovered", "fraction", "share"))


class Result(Viewed):
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
    def denied(self) -> bool:
        """Whether nothing in it can be called found: a note says why, and views rank nothing."""
        return any(note.denies for note in self.notes)

    @property
    def binding(self) -> Bound | None:
        """What it is of, as it was bound: what `provenance` puts into words. None for what no analysis returned."""
        return self._bound

    @property
    def provenance(self) -> Provenance | None:
        """What it is of: model and digest, input, precision, seed, versions; None for what no analysis returned."""
        return None if self._bound is None else self._bound.said()

    def noted(self, *notes: Note) -> Self:
        """The result with further notes behind its own."""
        found = copy.copy(self)
        # fields are what was computed; what is said of them stands beside, and passes a frozen class
        object.__setattr__(found, "_notes", distinct(self._notes, notes))
        return found

    def bound(self, bound: Bound | None) -> Self:
        """The result with what it is of; results within it that do not say it are of the same."""
        found = copy.copy(self)
        object.__setattr__(found, "_bound", bound)
        if bound is not None:
            for field in _fields(self):
                object.__setattr__(found, field.name, _bound_within(getattr(self, field.name), self._notes, bound))
        return found

    def _said(self) -> dict[str, Any]:
        """Return what stands beside the fields: notes and provenance, as far as there are any."""
        notes, of = [note.to_dict() for note in self.notes], self.provenance
        denied = {"denied": True} if self.denied else {}
        return denied | ({"notes": notes} if notes else {}) | ({} if of is None else {"provenance": of.to_dict()})

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        """JSON data: the class under `result`, and its fields; labelled tensors without axes are plain numbers.

        `denied`, where nothing can be called found, `notes` and `provenance` come last, if there are any.

        Args:
            packed: As a page carries it: labelled tensors packed, at any depth, and under `derived` the properties that
                `derived_names` lists.
        """
        fields = {f.name: _plain(getattr(self, f.name), packed, self) for f in _fields(self)}
        found = {"result": type(self).__name__} | fields
        if not packed:
            return found | self._said()
        derived = {name: _plain(getattr(self, name), packed) for name in self._derived()}
        shown = found | derived
        for word, names in {"signed": self.SIGNED, "share": OF_A_WHOLE & shown.keys()}.items():
            for name in names:
                if isinstance(value := shown[name], dict):
                    value[word] = True
        return found | {"derived": derived} | self._said()

    def _derived(self) -> list[str]:
        """Return the names of `derived_names` that its page carries: all, but what would be too large."""
        return self.derived_names()

    @classmethod
    def derived_names(cls) -> list[str]:
        """The public properties that promise a labelled tensor or a number: what follows from the fields."""
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
        """Headline of the class, or what stands in for it: fields that promise a labelled tensor, but for spreads."""
        made = {f.name: str(f.type) for f in _fields(cls) if not _ASIDE.search(f.name)}
        return cls.HEADLINE or tuple(name for name, words in made.items() if "Labelled" in words)

    def to_json(self, indent: int | None = None) -> str:
        return json_text(self.to_dict(), indent=indent, ascii_only=False)

    def to_frame(self) -> Any:
        """The first labelled field as a long-form DataFrame; `attrs` hold notes and provenance."""
        for field in _fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Labelled):
                frame = value.to_frame()
                frame.attrs |= self._said()
                return frame
        raise ShapeMismatch(f"{type(self).__name__} holds no labelled tensor.")

    def plot(self, *names: str) -> Any:
        """A matplotlib figure of some labelled fields or properties; without names, of what the class says.

        The latter averages over prompts and samples, and draws results within a result where it has no numbers itself.

        Raises:
            MissingExtra: matplotlib is not installed.
            ShapeMismatch: There is nothing to draw, or too much for one figure.
            UnknownAxis: There is no labelled field or property of a name.
        """
        trained = None if self._bound is None else self._bound.trained_length
        panels = [panel._replace(trained_length=trained) for panel in self.panels(*names)]
        # what only says how the text was read says nothing of the numbers
        told = [str(note) for note in self.notes if note.meaning]
        return figures.draw(panels, self._title(), overview=not names, notes=told)

    def panels(self, *names: str) -> list[figures.Panel]:
        """Panels that `plot` draws, tensor by tensor; numbers without axes stand together."""
        found = {name: getattr(self, name) for name in self._names(names)}
        panels = [
            figures.Panel(n, v, n in self.SIGNED, n in OF_A_WHOLE, band=self._band(n))
            for n, v in found.items()
            if isinstance(v, Labelled) and v.axes
        ]
        nested = [] if panels or names else _panels_within(self)
        numbers = {n: float(v) for n, v in found.items() if not (isinstance(v, Labelled) and v.axes)}
        if not (panels or nested or numbers):
            numbers = {f.name: v for f in _fields(self) if isinstance(v := getattr(self, f.name), float)}
        if numbers:
            values = Labelled(torch.tensor(list(numbers.values())), ("number",), {"number": list(numbers)})
            panels.append(figures.Panel("numbers" if panels else "", values))
        return panels + nested

    def _repr_html_(self) -> str:
        return viewers.viewer().summary(self)

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON, whole or not at all; raises `SaveError`."""
        return files.write(path, self.to_json(indent=1))

    def prompt(self, row: int) -> Self:
        """Result of one prompt of several: the batch of that one, without padding.

        Raises:
            ShapeMismatch: It says nothing of single prompts, or there is no such row.
        """
        found = _of_prompt(self, row)
        if found is None:
            raise ShapeMismatch(
                f"{type(self).__name__} is of all prompts together: it has no axis `batch`.\n"
                "    Ask the analysis of one prompt: analysis(run.prompt(1)), or give it that prompt alone."
            )
        return found

    def replace(self, **changes: Any) -> Self:
        found = dataclasses.replace(self, **changes)  # type: ignore[type-var]
        return found.noted(*self._notes).bound(self._bound)

    def _band(self, name: str) -> tuple[Labelled, Labelled] | None:
        """Return the ends of the intervals of a field's numbers: its fields `…_low` and `…_high`, if it has them."""
        low, high = (getattr(self, f"{name}_{end}", None) for end in ("low", "high"))
        return (low, high) if isinstance(low, Labelled) and isinstance(high, Labelled) else None

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
    """The name of a class as words: `CausalTrace` as `Causal trace`."""
    return re.sub(r"(?<=[a-z])([A-Z])", lambda match: f" {match[1].lower()}", name)


def results_within(result: Result) -> list[tuple[str, Result]]:
    """The results among a result's fields, and in their lists and mappings, each under a name."""
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


def _fields(result: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(result)


def _of_prompt(value: Any, row: int) -> Any:
    """Return what a field says of one row of the batch; None if it has no such axis."""
    if isinstance(value, Labelled):
        return value.select(batch=[row]) if "batch" in value.axes else None
    if isinstance(value, Result):
        found = _changed({f.name: getattr(value, f.name) for f in _fields(value)}, row)
        return value.replace(**found) if found else None
    if isinstance(value, Mapping):
        found = _changed(value, row)
        return {**value, **found} if found else None
    return None


def _changed(fields: Mapping[Any, Any], row: int) -> dict[Any, Any]:
    found = {name: _of_prompt(value, row) for name, value in fields.items()}
    return {name: value for name, value in found.items() if value is not None}


def _bound_within(value: Any, notes: tuple[Note, ...], bound: Bound) -> Any:
    """Return a field in which results that do not say what they are of say what the whole is of."""
    if isinstance(value, Result):
        return value if value.binding is not None else value.noted(*notes).bound(bound)
    if isinstance(value, Mapping) and any(isinstance(entry, Result) for entry in value.values()):
        return {name: _bound_within(entry, notes, bound) for name, entry in value.items()}
    if isinstance(value, (list, tuple)) and any(isinstance(entry, Result) for entry in value):
        entries = [_bound_within(entry, notes, bound) for entry in value]
        return entries if isinstance(value, list) else tuple(entries)
    return value


def _plain(value: Any, packed: bool = False, within: Result | None = None) -> Any:
    if isinstance(value, Labelled) and not value.axes:
        return numbers(value.values)
    if isinstance(value, Labelled):
        return value.to_dict(packed)
    if isinstance(value, Result):
        return value.to_dict(packed) if within is None else _less(value.to_dict(packed), value, within)
    if isinstance(value, Tensor):
        return numbers(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, packed, within) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, packed, within) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), packed) for f in dataclasses.fields(value)}
    return value


def _less(data: dict[str, Any], inner: Result, within: Result) -> dict[str, Any]:
    """Return the document of a result without what the result around it says of both."""
    notes = [note.to_dict() for note in inner.notes if note not in within.notes]
    left_out = {"notes"} | ({"provenance"} if inner.binding is within.binding else set())
    return {name: value for name, value in data.items() if name not in left_out} | ({"notes": notes} if notes else {})


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
