"""What a page of results is drawn from: the results as they pack themselves, and their words beside them.

Whatever a result states in its docstring, its page states too: the summary above the pictures, what each field means
beside it. Properties that return labelled tensors or numbers are drawn like fields.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glassformer.errors import ConfigError
from glassformer.labelled import Result

FORMAT, VERSION = "glassformer.results", 1


def results_document(results: Result | Sequence[Any], head: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The document that a page of results carries.

    Args:
        results: One, or several.
        head: What the page says of them all: `model`, `command`, `given` and `reading`, as far as known.

    Returns:
        The head, `notes` and `provenance` of all, under `results` each result as `to_dict(packed=True)` gives it, and
        under `about`, for each class of result at any depth, what it and its fields mean and which of them are drawn
        first.

    Raises:
        ConfigError: There is no result, or something else among them.
    """
    found = [results] if isinstance(results, Result) else list(results)
    if not found or not all(isinstance(result, Result) for result in found):
        raise ConfigError(
            "a page of results needs at least one result of an analysis, as the analysis returned it; got "
            f"{[type(entry).__name__ for entry in found] or 'none'}."
        )
    entries = [result.to_dict(packed=True) for result in found]
    kinds = {type(inner).__name__: type(inner) for result in found for inner in _within(result)}
    return {
        "format": FORMAT,
        "version": VERSION,
        **(head or {}),
        **shared(head or {}, entries),
        "results": entries,
        "about": {name: about(kind) for name, kind in kinds.items()},
    }


def shared(head: Mapping[str, Any], entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Take out of the documents of results what belongs to all of them, and return it.

    Args:
        head: What is said of them already: `model`, `given`, `reading`, `notes`.
        entries: As the results export themselves; what is taken out is said once, above them.

    Returns:
        Under `notes` each note once, and under `provenance` what is the same in all results and not in the head.
    """
    notes = list(head.get("notes", []))
    for entry in entries:
        notes += [note for note in entry.pop("notes", []) if note not in notes]
    # what denies that anything was found is read first
    notes.sort(key=lambda note: not note.get("denies", False))
    found: dict[str, Any] = {"notes": notes} if notes else {}
    told = {"model", "trained_length"} if "model" in head else set[str]()
    told |= ({"input"} if "reading" in head else set()) | {name for name in ("seed",) if name in head.get("given", {})}
    if any(entry.get("provenance") is None for entry in entries):
        return found
    said: list[dict[str, Any]] = [entry["provenance"] for entry in entries]
    common = {name: value for name, value in said[0].items() if all(one[name] == value for one in said)}
    for entry in entries:
        own = {name: value for name, value in entry.pop("provenance").items() if name not in {*common, *told}}
        entry |= {"provenance": own} if own else {}
    return found | {"provenance": {name: value for name, value in common.items() if name not in told}}


def _within(value: Any) -> Iterator[Result]:
    """Yield a result and those in its fields, at any depth."""
    if isinstance(value, Result):
        yield value
    if isinstance(value, Mapping):
        held = list(value.values())
    elif isinstance(value, (list, tuple)):
        held = list(value)
    else:
        held = [getattr(value, f.name) for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    for inner in held:
        yield from _within(inner)


def about(kind: type[Result]) -> dict[str, Any]:
    """Return a docstring as a summary and the meaning of each field and derived property, and what is drawn first."""
    parts = re.split(r"^(\w+):$", inspect.getdoc(kind) or "", flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2]))
    fields: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w+: )", sections.get("Args", "")):
        name, colon, words = entry.strip().partition(": ")
        if colon:
            fields[name] = " ".join(words.split())
    for name in kind.derived_names():
        fields.setdefault(name, " ".join((inspect.getdoc(getattr(kind, name)) or "").split()))
    return {"summary": " ".join(parts[0].split()), "fields": fields, "headline": list(kind.headline_names())}
