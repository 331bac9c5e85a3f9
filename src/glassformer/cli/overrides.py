"""`--set PATH=VALUE`: a config with one of its fields replaced."""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

from glassformer.config import Config
from glassformer.docstrings import described_in
from glassformer.errors import ConfigError, nearest

C = TypeVar("C", bound=Config)


def overridden(config: C, override: str) -> C:
    """Return a config with one field, addressed by a dotted path, replaced.

    Args:
        config: Any.
        override: `path.to.field=value`, an entry of a list by its index; the value is JSON, or a word.

    Raises:
        ConfigError: There is no such field, with the nearest path; or it cannot have the value.
    """
    import json

    path, sep, text = override.partition("=")
    if not sep:
        raise ConfigError(f"--set {override}: expected path.to.field=value.")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    data = config.to_dict()
    place: Any = data
    *parents, last = path.split(".")
    key: Any
    for i, key in enumerate([*parents, last]):
        if isinstance(place, list) and key.isdigit() and int(key) < len(place):
            key = int(key)
        elif not isinstance(place, dict) or key not in place:
            fields = ", ".join(name for name, _ in _entries(place)) or "none, it is a value"
            where = "".join(f"{parent}." for parent in parents[:i])
            close = _nearest_path(path, where, data, _said_of(config, parents[:i], str(key)))
            raise ConfigError(f'--set {override}: no field "{key}".{close} Fields: {fields}.')
        if i < len(parents):
            place = place[key]
    within: Any = place
    if last == "kind" and within["kind"] != value:
        # another kind starts from its own defaults, as far as it has one for each of its fields
        old = dict(within)
        within.clear()
        within["kind"] = value
        with contextlib.suppress(ConfigError):
            return type(config).from_dict(data)
        within |= old
    within[int(last) if isinstance(within, list) else last] = value
    return type(config).from_dict(data)


def _said_of(config: Any, parents: list[str], key: str) -> str:
    """Return the path of the first field whose description has the words of a name: `learning_rate` is `lr`."""
    for name in parents:
        config = config[int(name)] if isinstance(config, tuple | list) else getattr(config, name, None)
    told = described_in(type(config)) if isinstance(config, Config) else {}
    found = next((name for name, words in told.items() if key.replace("_", " ") in words.lower()), None)
    return "" if found is None else ".".join([*parents, found])


def _nearest_path(path: str, where: str, data: Any, described: str) -> str:
    """Return ` Nearest: "optim.lr".`: a path with the same last name, below what was found of it if there is one.

    Without one it is a field that is described by that name, else the nearest path.
    """
    known = list(_paths(data))
    alike = [one for one in known if one.rpartition(".")[2] == path.rpartition(".")[2]]
    below = [one for one in alike if one.startswith(where)]
    return nearest(path, below or alike) or (f' Nearest: "{described}".' if described else nearest(path, known))


def _paths(data: Any) -> Iterator[str]:
    """Yield the path of every field, however deep."""
    for name, inner in _entries(data):
        yield name
        yield from (f"{name}.{rest}" for rest in _paths(inner))


def _entries(data: Any) -> list[tuple[str, Any]]:
    """Return what is inside a value of a config, each with the name it has in a path."""
    if isinstance(data, dict):
        return list(data.items())
    return [(str(i), one) for i, one in enumerate(data)] if isinstance(data, list) else []
