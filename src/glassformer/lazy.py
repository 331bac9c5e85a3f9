"""Packages whose names are imported when they are first used, so that importing the package costs next to nothing."""

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazily(
    package: str, homes: Mapping[str, Collection[str]], modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package: `__getattr__, __dir__ = lazily(__name__, {"own": ["save"]})`.

    Args:
        package: Its name.
        homes: The names it offers, by the module inside it where they are defined.
        modules: Modules of it that are offered whole.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name in home_of:
            value = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        elif name in modules:
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f'module "{package}" has no attribute "{name}".')
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        # what is public, for tab completion: not what the package imports for itself
        own = vars(sys.modules[package])
        return sorted({*(n for n in own if n.startswith("__")), *own.get("__all__", ()), *home_of, *modules})

    return get, names
