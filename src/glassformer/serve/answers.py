"""Answers: labelled arrays, further facts, and the Python that gives the same; sent as JSON or as a frame.

An answer is whole, or less that of another run.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from glassformer.errors import ShapeMismatch
from glassformer.files import json_text
from glassformer.labelled import Labelled, Result
from glassformer.numerics.precision import wide
from glassformer.serve import api
from glassformer.serve.frames import encoded, frame
from glassformer.serve.runs import Limits


@dataclass(frozen=True, eq=False)
class Answer:
    """What a question is answered with.

    Args:
        question: Its name.
        arrays: Numbers with their axes.
        facts: What else was found, as JSON data.
        python: Code that ends in `found`, which has each array by its name.
    """

    question: str
    arrays: Mapping[str, Labelled]
    facts: Mapping[str, Any]
    python: str

    def less(self, other: "Answer") -> "Answer":
        """Return the difference to the answer of another run, array by array; ids, and what has ranks, are left out."""
        arrays: dict[str, Labelled] = {}
        for name, value in self.arrays.items():
            theirs = other.arrays.get(name)
            # the first of one list has no difference to the first of another
            if theirs is None or not value.values.is_floating_point() or "k" in value.axes:
                continue
            if value.shape != theirs.shape:
                sizes = " and ".join("x".join(map(str, one.shape)) for one in (value, theirs))
                raise ShapeMismatch(
                    f'the difference of two runs: "{name}" is {sizes}.\n    '
                    "Give texts of as many tokens, or look at each."
                )
            arrays[name] = dataclasses.replace(value, values=wide(value.values) - wide(theirs.values))
        facts = {**self.facts, "minus": dict(other.facts)}
        return dataclasses.replace(self, arrays=arrays, facts=facts, python=_difference(self, other, list(arrays)))

    def sent(self, view: api.View, limits: Limits) -> tuple[bytes, str]:
        """Return the bytes of the answer, and their media type."""
        facts = {"question": self.question, "facts": self.facts, "python": self.python}
        # a number is about so many characters of JSON
        each = 20 if view.form == "json" else 4
        limits.require("answer", sum(each * one.values.numel() for one in self.arrays.values()), "bytes of the answer")
        if view.form == "json":
            told = {name: value.to_dict() for name, value in self.arrays.items()}
            return json_text(facts | {"arrays": told}, ascii_only=False).encode(), "application/json"
        labels, sent = dict[str, Any](), {}
        for name, value in self.arrays.items():
            values, axes = value.values, list(value.axes)
            if values.is_complex():
                values, axes = torch.view_as_real(values.resolve_conj()), [*axes, "part"]
            square = view.packing == "tril" and values.ndim >= 2 and values.shape[-1] == values.shape[-2]
            encoding = view.encoding if values.is_floating_point() else "f32"
            sent[name] = encoded(values, encoding, "tril" if square else "full")
            labels[name] = {"axes": axes, "coords": {axis: list(of) for axis, of in value.coords.items()}}
        return frame(sent, facts | {"arrays": labels}), "application/vnd.safetensors"


def _difference(one: Answer, other: Answer, names: Sequence[str]) -> str:
    """Return the code of what one answer has beyond another: `found` is a dict whatever theirs were."""
    lines = [
        "pairs = {",
        "    name: [one[name] if isinstance(one, dict) else getattr(one, name) for one in (found, theirs)]",
        f"    for name in {list(names)}",
        "}",
        "found = {name: gf.Labelled(one.values - other.values, one.axes) for name, (one, other) in pairs.items()}",
    ]
    return "\n".join([other.python, "theirs = found", "", one.python, *lines])


def taken_apart(found: Result) -> tuple[dict[str, Labelled], dict[str, Any]]:
    """Return the arrays of a result, and all else it says, as JSON data."""
    told = found.to_dict()
    arrays = {
        field.name: value
        for field in dataclasses.fields(found)  # type: ignore[arg-type]
        if isinstance(value := getattr(found, field.name), Labelled)
    }
    return arrays, {name: value for name, value in told.items() if name not in arrays}
