"""The checker behind `--jaxtyping-packages`: beartype, which sees one method at a time and so cannot resolve `Self`."""

from collections.abc import Callable
from typing import Any, Self

from beartype import beartype


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Check arguments and result at every call; a bare `Self` passes as `Any`."""
    hints = getattr(function, "__annotations__", {})
    for name, hint in hints.items():
        if hint is Self:
            hints[name] = Any
    return beartype(function)
