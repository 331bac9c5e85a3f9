"""Reading a foreign config.json: fields by name and type, with the defaults their library documents."""

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from glassformer.errors import CheckpointError, nearest

_REQUIRED: Any = object()
_COUNTS_PARTS = re.compile(r"(n|(num|encoder|decoder)(_hidden|_encoder|_decoder)?)_layers?|num(_local)?_experts")
_MOST_PARTS, _MOST = 10_000, 2**40
T = TypeVar("T")

# their names of activations, ours
ACTIVATIONS = {
    "relu": "relu",
    "relu2": "relu_squared",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_sigmoid",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


class Fields:
    """A foreign config as typed fields; `asked` are the names that somebody has asked for, there or not.

    Args:
        data: What config.json holds.
        where: The file, for messages.
    """

    def __init__(self, data: Mapping[str, Any], where: str = "config.json") -> None:
        self.data, self.where = data, where
        self.asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        self.asked.add(name)
        return self.data.get(name) is not None

    def says(self, name: str) -> bool:
        """Whether a field is there, be it null."""
        self.asked.add(name)
        return name in self.data

    def filled(self, **defaults: Any) -> "Fields":
        """Return the same config with values for fields that it does not have; null stays null.

        What is asked of either counts as asked of both.
        """
        return self.replaced(**{name: value for name, value in defaults.items() if name not in self.data})

    def replaced(self, **values: Any) -> "Fields":
        """Return the same config with other values; what is asked of either counts as asked of both."""
        found = Fields({**self.data, **values}, self.where)
        found.asked = self.asked
        return found

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """A field as it stands; null counts as absent.

        Raises:
            CheckpointError: It is not there and has no default.
        """
        self.asked.add(name)
        value = self.data.get(name)
        if value is not None:
            return value
        if default is _REQUIRED and name in self.data:
            raise CheckpointError(f'"{self.where}": {name} is null, and what is built needs a value.')
        if default is _REQUIRED:
            raise CheckpointError(f'"{self.where}" lacks "{name}".{nearest(name, self.data)}')
        return default

    def whole(self, name: str, default: Any = _REQUIRED) -> int:
        """A whole number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, value, "a whole number")
        if value > (most := _MOST_PARTS if _COUNTS_PARTS.fullmatch(name) else _MOST):
            # each layer and expert is an object before it is a tensor, and sizes are 64 bits wide
            raise self.wrong(name, value, f"at most {most:,}")
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        """A finite number."""
        value = self.get(name, default)
        try:
            found = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
        except OverflowError:
            found = math.inf
        if not math.isfinite(found):
            raise self.wrong(name, value, "a number")
        return found

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        """Return true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def choice(self, name: str, choices: Mapping[str, T], default: Any = _REQUIRED) -> T:
        """Return what a word stands for."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(name, value, f"one of {', '.join(choices)}")
        return choices[value]

    def activation(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return our name of an activation."""
        return self.choice(name, ACTIVATIONS, default)

    def only(self, name: str, allowed: object, why: str) -> None:
        """Raise unless a field is absent or has the one value that can be represented."""
        self.asked.add(name)
        value = self.data.get(name)
        if value is not None and value != allowed:
            raise CheckpointError(f'"{self.where}": {name}={value!r} cannot be represented: {why}.')

    def wrong(self, name: str, value: object, wanted: str) -> CheckpointError:
        """The error for a field of the wrong kind."""
        found = repr(value) if not isinstance(value, int) or abs(value) < 2**63 else "a number beyond 64 bits"
        return CheckpointError(f'"{self.where}": {name} must be {wanted}, found {found[:80]}.')
