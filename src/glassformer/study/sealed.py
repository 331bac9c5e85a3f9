"""Files that studies keep: JSON objects with a digest of what they hold.

    {"format": "glassformer.study", …, "sha256": digest of all the rest}

Verdicts are taken from these numbers, so a file that was changed or damaged is refused and not read as far as it goes.
The digest is of the data and not of its bytes: spaces and the order of names may change.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from glassformer.checkpoints import sha256
from glassformer.errors import CheckpointError
from glassformer.files import MOST_JSON, json_text, read_json, reason, write

DIGEST = "sha256"
# in shapes; what JSON has no number for is written as null
NUMBER = (int, float, type(None))
Older = tuple[Mapping[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]


def sealed_text(data: Mapping[str, Any]) -> str:
    """Return what is written into a file: data with its digest."""
    return json_text({**data, DIGEST: _digest(data)}, indent=1, ascii_only=False) + "\n"


def seal(path: Path, data: Mapping[str, Any]) -> None:
    """Write data with its digest, whole or not at all."""
    write(path, sealed_text(data))


def is_there(path: Path) -> bool:
    """Return whether there is a file; raises `CheckpointError` if something else is in its place.

    A pipe would be waited for, by whoever reads it and by whoever writes into it.
    """
    if os.path.lexists(path) and not path.is_file():
        raise CheckpointError(f'"{path}" is no regular file. Move it away.')
    return path.is_file()


def read_sealed(
    path: Path, what: str, shape: Mapping[str, Any], way_on: str, *, older: Older | None = None
) -> dict[str, Any] | None:
    """Return what `seal` wrote without its digest; None if there is no file.

    Args:
        path: Of the file.
        what: The file holds, in words, for an error.
        shape: Of the data. A type or several stand for themselves, a list of one for a list of such, a mapping for the
            names an object has; `str` in place of a name stands for any.
        way_on: What to do about a file that is refused, in words.
        older: The shape that earlier versions wrote, and from data of it to the same data as it is written now.

    Raises:
        CheckpointError: It is no regular file, no JSON, is not what its digest is of, or of another shape.
    """
    if not is_there(path):
        return None
    try:
        data = read_json(path, MOST_JSON, strict=True)
        if not isinstance(data, dict) or DIGEST not in data:
            raise ValueError(f'it has no "{DIGEST}", and was written before files had one, or is damaged')
        if data.pop(DIGEST) != _digest(data, finite=True):
            raise ValueError("it is not what its digest is of: it was changed or damaged")
        if older is not None and _is_of(data, older[0]):
            data = older[1](data)
        _require(data, shape, "")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f'"{path}" holds no {what}: {reason(error)}.\n    {way_on}') from error
    return data


def _digest(data: Mapping[str, Any], *, finite: bool = False) -> str:
    # as they are read: names as text, in one order
    return sha256(json_text(_as_read(data), sort=True, finite=finite))


def _as_read(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(name): _as_read(value) for name, value in data.items()}
    return [_as_read(value) for value in data] if isinstance(data, list | tuple) else data


def _is_of(data: Any, shape: Any) -> bool:
    """Return whether data is of a shape."""
    try:
        _require(data, shape, "")
    except ValueError:
        return False
    return True


def _require(data: Any, shape: Any, where: str) -> None:
    """Raise `ValueError` for the first place at which data is not of a shape."""
    if isinstance(shape, list):
        if not isinstance(data, list):
            raise ValueError(f"{where} is no list")
        for i, value in enumerate(data):
            _require(value, shape[0], f"{where}[{i}]")
    elif isinstance(shape, Mapping):
        if not isinstance(data, dict):
            raise ValueError(f"{where} is no object")
        for name, inner in shape.items():
            if name is not str and name not in data:
                raise ValueError(f'{where} lacks "{name}"'.strip())
            for one in data if name is str else [name]:
                _require(data[one], inner, f"{where}.{one}".strip("."))
    # true is 1 to Python
    elif not isinstance(data, shape) or (isinstance(data, bool) and shape is not bool and bool not in _several(shape)):
        raise ValueError(f"{where} is {str(data)[:80]!r}, which it cannot be")


def _several(shape: Any) -> tuple[type, ...]:
    return shape if isinstance(shape, tuple) else (shape,)
