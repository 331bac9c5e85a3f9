"""The verbs of the command line by what they take."""

import importlib
from typing import Any, get_type_hints

from glassformer.cli import VERBS


def taking(group: type) -> list[str]:
    """Return the verbs with the options of a group, or of one that has those too."""
    found = list[str]()
    for verb in VERBS:
        function: Any = getattr(importlib.import_module(f"glassformer.cli.{verb}"), verb)
        kinds = get_type_hints(function).values()
        if any(isinstance(kind, type) and issubclass(kind, group) for kind in kinds):
            found.append(verb)
    return found
