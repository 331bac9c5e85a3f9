"""Packages whose names are imported when they are first used, so that importing the package costs next to nothing.

An old name of a package stands for what has it now, and says so when it is asked for: `renamed.json` has the table,
from old names to new ones within `glassformer`, until version 0.1. Of a name that has no heir, it says in a sentence
what stands in its place.
"""

import importlib
import json
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
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
            return renamed(package, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        # what is public, for tab completion: not what the package imports for itself
        own = vars(sys.modules[package])
        return sorted({*(n for n in own if n.startswith("__")), *own.get("__all__", ()), *home_of, *modules})

    return get, names


@cache
def renamed_names() -> Mapping[str, str]:
    """Every name that has another one now, to that one, both without `glassformer.`; or to a sentence, with spaces."""
    return json.loads(Path(__file__).with_name("renamed.json").read_text(encoding="utf-8"))


def renamed(package: str, name: str, instead: str = "") -> Any:
    """What an old name of a package stood for, with a warning that says its new name.

    Args:
        package: Where the name is asked for.
        name: What it does not offer.
        instead: What it offers, to end the message about a name that was never there.

    Raises:
        AttributeError: It never had that name, or has nothing of its kind any more.
    """
    old = f"{package}.{name}"
    root, _, within = old.partition(".")
    if within not in renamed_names():
        raise AttributeError(f'module "{package}" has no attribute "{name}".{instead}')
    heir = renamed_names()[within]
    # warnings are of whoever asked: this function, and the `__getattr__` that calls it, stand between
    if " " in heir:
        # an import tells its own error in place of this one, and the warning beside it
        told = f'"{old}" is gone: {heir}'
        warnings.warn(told, FutureWarning, stacklevel=3)
        raise AttributeError(told)
    new = f"{root}.{heir}"
    warnings.warn(f'"{old}" is renamed: use "{new}".', FutureWarning, stacklevel=3)
    home, _, own = new.rpartition(".")
    return getattr(importlib.import_module(home), own)


def renames(package: str) -> Callable[[str], Any]:
    """`__getattr__` of a package that imports all it offers, for its old names: `__getattr__ = renames(__name__)`."""
    return lambda name: renamed(package, name)
