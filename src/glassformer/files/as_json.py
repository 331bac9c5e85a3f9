"""The one way in which JSON is written: what is not finite becomes null, or is refused; JSON has no word for it."""

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(
    data: Any,
    *,
    indent: int | None = None,
    ascii_only: bool = True,
    sort: bool = False,
    tight: bool = False,
    finite: bool = False,
) -> str:
    """Data as JSON that any reader takes.

    Args:
        data: Numbers, text, lists and mappings.
        indent: Spaces per level; one line by default.
        ascii_only: Escape all other characters.
        sort: Order keys by name.
        tight: No spaces behind separators.
        finite: All numbers are to be finite: refuse others, in place of writing null.

    Raises:
        ValueError: A number is not finite, and all are to be.
    """
    separators = (",", ":") if tight else None

    def written(value: Any, ascii_only: bool = ascii_only) -> str:
        text = json.dumps(
            value, indent=indent, ensure_ascii=ascii_only, sort_keys=sort, separators=separators, allow_nan=False
        )
        try:
            if not ascii_only:
                text.encode("utf-8")
        except UnicodeEncodeError:  # half of a pair of surrogates, which has no bytes
            return written(value, True)
        return text

    try:
        return written(data)
    except ValueError:
        if finite:
            raise
        return written(_without_nan(data))


def _without_nan(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _without_nan(value) for key, value in data.items()}
    return [_without_nan(value) for value in data] if isinstance(data, list | tuple) else data
