"""Dynamics: the physical, continuous and computational views of a transformer, as code that runs.

Each module is one view: its equation and source, the thing itself, and what of it can be checked.
"""

from typing import TYPE_CHECKING

from glassformer.lazy import lazily

if TYPE_CHECKING:
    from glassformer.dynamics import prompting

_HOMES: dict[str, list[str]] = {}

__all__ = ["prompting"]

__getattr__, __dir__ = lazily(__name__, _HOMES, ["prompting"])
