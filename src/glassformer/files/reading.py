"""Reading files that others may have made: regular ones only, no larger than such a file is.

A pipe would be waited for, a link to a device read until memory ends. What is refused is refused by an `OSError`, which
whoever reads turns into an error about what was to be read.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from glassformer.errors import CheckpointError

# configs, indices of many thousand tensors, cards; the largest published are a tenth of it
MOST_JSON = 1 << 26
# vocabularies of a million words
MOST_TOKENIZER = 1 << 29
# what a run logs of a million steps
MOST_METRICS = 1 << 29


def opened(path: str | Path) -> BinaryIO:
    """A regular file, open for reading.

    Raises:
        OSError: It cannot be read, or is a pipe, a socket or a device, or a link to one.
    """
    # without waiting for whoever might write into a pipe
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(handle, "rb")


def read(path: str | Path, most: int) -> bytes:
    """The content of a regular file.

    Args:
        path: Of the file.
        most: Bytes it may have.

    Raises:
        OSError: As for `opened`, or it is larger.
    """
    with opened(path) as file:
        # what the system makes up as it is read says that it is empty
        content = b"" if os.fstat(file.fileno()).st_size > most else file.read(most + 1)
        size = max(os.fstat(file.fileno()).st_size, len(content))
    if size > most:
        raise OSError(errno.EFBIG, f"it is larger than the {most:,} bytes that such a file may have", str(path))
    return content


def read_text(path: str | Path, most: int) -> str:
    """The content of a regular file as text; raises as `read` does, or `UnicodeDecodeError`."""
    return read(path, most).decode("utf-8")


def read_json(path: str | Path, most: int = MOST_JSON, *, strict: bool = False) -> Any:
    """The JSON data in a regular file.

    Args:
        path: Of the file.
        most: Bytes it may have.
        strict: Refuse what other readers take otherwise: a name that stands twice in an object, NaN and Infinity.

    Raises:
        OSError: As for `read`.
        ValueError: It is no JSON, is not UTF-8, or is nested deeper than can be read.
    """
    text = read_text(path, most)
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant) if strict else json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f'"{next(name for name in names if names.count(name) > 1)}" stands in it twice')
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def read_object(path: str | Path, most: int = MOST_JSON) -> dict[str, Any]:
    """The JSON object in a file beside a model, an empty one if there is no file.

    Raises:
        CheckpointError: It cannot be read, or holds something else.
    """
    if not os.path.exists(path):
        return {}
    try:
        found = read_json(path, most)
    except OSError as error:
        raise CheckpointError(f'cannot read "{path}": {reason(error)}.') from error
    except ValueError as error:
        raise CheckpointError(f'"{path}" is not valid JSON ({error}).') from error
    if not isinstance(found, dict):
        raise CheckpointError(f'"{path}" holds a {type(found).__name__} where an object belongs.')
    return found


@contextmanager
def tensors_in(path: str | Path) -> Iterator[Any]:
    """Give what safetensors reads a regular file with, tensor by tensor as PyTorch's.

    Raises:
        OSError: As for `opened`.
        SafetensorError: It is no safetensors file, or damaged.
    """
    from safetensors import safe_open

    with opened(path), safe_open(str(path), framework="pt") as file:
        yield file


def reason(error: Exception) -> str:
    """Reason why a file could not be read, in words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
