"""What a page of results is drawn from: the results' documents, with their numbers packed and their words beside them.

Whatever a result states in its docstring, its page states too: the summary above the pictures, what each field means
beside it. Properties that return labelled tensors or numbers are drawn like fields.
"""

import base64
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from glassformer.errors import ConfigError
from glassformer.labelled import Labelled, Result

FORMAT, VERSION = "glassformer.results", 1


def results_document(payload: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document that a page of results carries.

    Args:
        payload: A result's `to_dict()`, several of them, or a document that has them under `results` beside `model`,
            `command` and `given`.

    Returns:
        The document in which every labelled tensor has a `shape` and its numbers as base64 of little-endian float32,
        row by row, NaN where there is no number; every result has `derived`, its properties; and `about` tells for
        each class of result what it and its fields mean.

    Raises:
        ConfigError: There is no result in it.
    """
    document = dict(_document(payload))
    found = list(document.get("results", ()))
    if not found or not all(isinstance(entry, Mapping) and "result" in entry for entry in found):
        raise ConfigError(
            f'a page of results needs at least one result\'s to_dict(), with its class under "result"; got '
            f"{[_brief(entry) for entry in found] or 'none'}."
        )
    # a document may come from a file: its classes are known once their modules are
    import glassformer.analysis  # noqa: F401  # pyright: ignore[reportUnusedImport]

    classes = {kind.__name__: kind for kind in _subclasses(Result)}
    names: dict[str, None] = {}
    document |= {"format": FORMAT, "version": document.get("version", VERSION)}
    document["results"] = [_prepared(entry, classes, names) for entry in found]
    return document | {"about": {name: _about(classes[name]) for name in names if name in classes}}


def _document(payload: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    if not isinstance(payload, Mapping):
        return {"results": payload}
    return {"results": [payload]} if "result" in payload else payload


def _brief(entry: Any) -> str:
    return f"a mapping with {', '.join(map(str, entry))}" if isinstance(entry, Mapping) else type(entry).__name__


def _subclasses(kind: type) -> Iterator[type]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def _prepared(value: Any, classes: Mapping[str, type], names: dict[str, None]) -> Any:
    """Return a value with tensors packed, and results in it, at any depth, with what derives from them."""
    if isinstance(value, Mapping):
        if "axes" in value and "values" in value:
            return _packed(_tensor(value))
        if "result" not in value:
            return {str(k): _prepared(v, classes, names) for k, v in value.items()}
        names[value["result"]] = None
        kind = classes.get(value["result"])
        derived = {} if kind is None else _derived(kind, value)
        return {k: _prepared(v, classes, names) for k, v in value.items()} | {"derived": derived}
    if isinstance(value, (list, tuple)):
        return [_prepared(v, classes, names) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tensor(entry: Mapping[str, Any]) -> Labelled:
    found = Labelled.from_dict(entry)
    if not found.values.is_complex():
        return found
    parts = torch.view_as_real(found.values)
    return Labelled(parts, (*found.axes, "part"), {**found.coords, "part": ["real", "imaginary"]})


def _packed(found: Labelled) -> dict[str, Any]:
    values = found.values.detach().to("cpu", torch.float32)
    values = values.masked_fill(~values.isfinite(), torch.nan).contiguous()
    data = base64.b64encode(values.numpy().astype("<f4").tobytes()).decode("ascii")
    coords = {axis: list(labels) for axis, labels in found.coords.items()}
    return {"axes": list(found.axes), "coords": coords, "shape": list(values.shape), "float32": data}


def _derived(kind: type, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the properties of a result say that promise a labelled tensor or a number."""
    promised = [name for name, made in _properties(kind) if made in ("Labelled", "float")]
    if not promised:
        return {}
    fields = {k: v for k, v in entry.items() if k != "result"}
    # no constructor: a document has lists and mappings where the class promises tuples and objects
    whole: Any = object.__new__(kind)
    whole.__dict__.update({k: _tensor(v) if isinstance(v, Mapping) and "axes" in v else v for k, v in fields.items()})
    found = {name: getattr(whole, name) for name in promised}
    number = {k: v if math.isfinite(v) else None for k, v in found.items() if not isinstance(v, Labelled)}
    return {k: _packed(v) if isinstance(v, Labelled) else number[k] for k, v in found.items()}


def _properties(kind: type) -> list[tuple[str, str]]:
    """Return the names of public properties and of what they return."""
    found: list[tuple[str, str]] = []
    for name, member in inspect.getmembers(kind, lambda m: isinstance(m, property)):
        if not name.startswith("_") and member.fget is not None:
            made = member.fget.__annotations__.get("return", "")
            found.append((name, made if isinstance(made, str) else getattr(made, "__name__", "")))
    return found


def _about(kind: type) -> dict[str, Any]:
    """Return a docstring as a summary and the meaning of each field and property."""
    parts = re.split(r"^(\w+):$", inspect.getdoc(kind) or "", flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2]))
    fields: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w+: )", sections.get("Args", "")):
        name, colon, words = entry.strip().partition(": ")
        if colon:
            fields[name] = " ".join(words.split())
    for name, _ in _properties(kind):
        fields.setdefault(name, " ".join((inspect.getdoc(getattr(kind, name)) or "").split()))
    return {"summary": " ".join(parts[0].split()), "fields": fields}
