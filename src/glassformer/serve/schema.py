"""`schema.json`: what requests and answers are made of, as JSON Schema, written from the dataclasses of `api`.

python -m glassformer.serve web/schema.json
"""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from glassformer.arguments import LARGEST, Within
from glassformer.config import Config
from glassformer.files import json_text
from glassformer.serve.api import ANSWERS, REQUESTS, VERSION, ExportView
from glassformer.serve.questions import QUESTIONS, Of

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ARRAYS: dict[str, Any] = {
    "Answer": {
        "description": "The answer to a question: labelled arrays, further facts, and the code that gives the same.",
        "type": "object",
        "required": ["question", "arrays", "facts", "python"],
        "properties": {
            "question": {"type": "string"},
            "arrays": {"type": "object", "additionalProperties": {"$ref": "#/$defs/Array"}},
            "facts": {"type": "object"},
            "python": {"type": "string"},
        },
    },
    "Array": {
        "description": "Numbers with named axes; null is no number. Of a frame, values are in the file, `encoding`, "
        "`packing`, `shape`, `scale` and `low` say how to read them.",
        "type": "object",
        "required": ["axes", "coords"],
        "properties": {
            "axes": {"type": "array", "items": {"type": "string"}},
            "coords": {"type": "object", "additionalProperties": {"type": "array"}},
            "values": {},
        },
    },
}

# what is asked in words of the address, or said in a body, is one of the definitions; so is what is answered
_CALLS: dict[str, dict[str, str]] = {
    "GET models": {"answer": "ModelCard", "about": "The models that may be asked about, in a list"},
    "POST models/load": {"body": "LoadSpec", "answer": "ModelCard", "about": "Load a model, if it is not"},
    "POST tokenize": {"body": "TokenizeSpec", "answer": "TokenCard", "about": "Cut a text into tokens, a list of them"},
    "POST runs": {"body": "RunSpec", "answer": "RunCard", "about": "Make a run, or find the one that there is"},
    "GET runs/{run}": {"answer": "RunCard", "about": "A run that is kept"},
    "GET runs/{run}/export": {"query": "ExportView", "about": "A file of a run"},
    "POST sweeps": {"body": "SweepSpec", "about": "Many changes, one at a time: a line of JSON for each"},
    "POST generate": {"body": "GenerateSpec", "about": "Go on with a text: a line of JSON for each token"},
    "GET schema.json": {"about": "All of this as JSON Schema"},
}
_ADDRESSES: dict[Of, str] = {
    "run": "runs/{run}/NAME",
    "head": "runs/{run}/NAME/{head}",
    "row": "runs/{run}/NAME/{head}/{index}",
    "model": "models/{model}/NAME",
    "head of a model": "models/{model}/NAME/{head}",
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the API: a definition for each request and answer, the calls, and the questions."""
    found: dict[str, Any] = {}
    views = {question.view.__name__: question.view for question in QUESTIONS.values()}
    for kind in (*REQUESTS.values(), *ANSWERS.values(), *views.values(), ExportView):
        _define(kind, found)
    asked = {
        name: {"of": question.of, "view": {"$ref": f"#/$defs/{question.view.__name__}"}, "about": question.about}
        for name, question in QUESTIONS.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"glassformer serve, API {VERSION}",
        "$defs": found | _ARRAYS,
        "calls": _calls(),
        "questions": asked,
    }


def _calls() -> dict[str, Any]:
    """Return every method and address, behind `/api/v1/`, with what it takes and answers."""
    asked = {
        f"GET {_ADDRESSES[question.of].replace('NAME', name)}": {
            "query": question.view.__name__, "answer": "Answer", "about": question.about,
        }
        for name, question in QUESTIONS.items()
    }  # fmt: skip
    return {
        call: {key: words if key == "about" else {"$ref": f"#/$defs/{words}"} for key, words in told.items()}
        for call, told in (_CALLS | asked).items()
    }


def _define(kind: type[Any], found: dict[str, Any]) -> None:
    """Add the definition of a dataclass, and of those within it."""
    if kind.__name__ in found:
        return
    found[kind.__name__] = {}
    hints, told = typing.get_type_hints(kind, include_extras=True), _told(kind)
    fields = dataclasses.fields(kind)
    properties = {f.name: _of(hints[f.name], found) | _said(told.get(f.name, "")) for f in fields}
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    for field in fields:
        if field.default is not dataclasses.MISSING:
            properties[field.name]["default"] = list(field.default) if field.default == () else field.default
    found[kind.__name__] = {
        "description": (inspect.getdoc(kind) or "").partition("\n")[0],
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _of(hint: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an annotation."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        bounds = next((one for one in inner[1:] if isinstance(one, Within)), None)
        return _of(inner[0], found) | ({} if bounds is None else _bounds(bounds))
    if origin in (typing.Union, types.UnionType):
        options = [_of(one, found) for one in inner if one is not type(None)]
        if type(None) in inner:
            options.append({"type": "null"})
        return {"anyOf": options}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin is tuple and inner[1:] == (Ellipsis,):
        return {"type": "array", "items": _of(inner[0], found)}
    if origin is tuple:
        return {"type": "array", "prefixItems": [_of(one, found) for one in inner], "items": False}
    if origin is Mapping:
        return {"type": "object"}
    if isinstance(hint, type) and issubclass(hint, Config):
        _define(hint, found)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": _PLAIN[hint]}


def _bounds(bounds: Within) -> dict[str, Any]:
    low = {"exclusiveMinimum" if bounds.above else "minimum": bounds.low}
    return low | ({} if bounds.high >= LARGEST else {"maximum": bounds.high})


def _said(words: str) -> dict[str, str]:
    return {"description": words} if words else {}


def _told(kind: type[Any]) -> dict[str, str]:
    """Return what docstrings say of the fields of a class and of those it comes from."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        text = inspect.cleandoc(one.__doc__ or "") if dataclasses.is_dataclass(one) else ""
        _, _, listed = text.partition("Args:\n")
        for name, words in re.findall(r"^    (\w+): (.+?)(?=^    \w+: |\Z)", listed, re.MULTILINE | re.DOTALL):
            found[name] = " ".join(words.split())
    return found


def text() -> str:
    """Return the schema as it is kept in a file."""
    return json_text(schema(), indent=1, ascii_only=False) + "\n"
