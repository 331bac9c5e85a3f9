"""Configs: frozen dataclasses that survive JSON, with a registry of kinds.

    class MixerConfig(Config, family=True): ...
    @dataclass(frozen=True)
    class Softmax(MixerConfig, kind="softmax"): ...

A *family* is an abstract config; the class statement of a member registers its kind inside the family. Decoding is
strict: an unknown field or kind raises and lists what exists. A field's annotation bounds its numbers (`Count`, `Rate`
and others of `glassformer.arguments`); `__post_init__` is for how fields go together. No torch here.
"""
# JSON has no static type
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import dataclasses
import json
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, wraps
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Self

from glassformer.arguments import described, fits, has_words, is_bounded, near, refusal
from glassformer.errors import ConfigError, UnknownField, UnknownKind, nearest
from glassformer.files import json_text

FORMAT_VERSION = 1
# of what is no kind: how long a word is that descriptions are searched for, and how many kinds are named then at most
_LETTERS, _MOST_TOLD = range(4, 41), 3
UNSAID = (
    # metadata of a field that is left out of JSON where it is None, or true or false by default, so that what lacks it
    # reads as before
    "unsaid"
)
PLUGINS = "glassformer.mechanisms"  # entry points: a kind, and the module that registers it


class Config:
    """Base of all configs; members are frozen dataclasses of plain fields: numbers, strings, tuples, other configs."""

    kind: ClassVar[str | None] = None
    registry: ClassVar[dict[str, type["Config"]]] = {}

    def __init_subclass__(cls, *, kind: str | None = None, family: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if family:
            cls.registry = {}
        if kind is not None:
            if kind in cls.registry:
                raise ConfigError(f'kind "{kind}" is already registered by {cls.registry[kind].__qualname__}.')
            cls.kind = kind
            cls.registry[kind] = cls
        if "__post_init__" in vars(cls):
            type.__setattr__(cls, "__post_init__", _bounded(cls.__post_init__))

    def __post_init__(self) -> None:
        _check_bounds(self)

    def check_sizes(self) -> None:
        """Raise `ConfigError` for sizes that no member of a family may have; it comes before what a member checks."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data; members of a family carry their `kind`."""
        head, fields = {"kind": self.kind} if self.kind else {}, dataclasses.fields(typing.cast(Any, self))
        values = {f.name: getattr(self, f.name) for f in fields}
        unsaid = [f.name for f in fields if UNSAID in f.metadata and _is_unsaid(values[f.name], f.default)]
        return head | {name: _encode(value) for name, value in values.items() if name not in unsaid}

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Build a config from JSON data.

        Raises:
            UnknownKind: The kind is not registered in this family.
            UnknownField: A field the kind does not have.
            ConfigError: A value of the wrong type, a missing field, or fields that exclude each other.
        """
        try:
            return _decode_config(cls, data, cls.__name__)
        except RecursionError as error:
            raise ConfigError(f"{cls.__name__}: configs are nested too deeply to be read.") from error

    def to_json(self, indent: int | None = 2) -> str:
        return json_text({"format": FORMAT_VERSION} | self.to_dict(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`; raises `ConfigError` for anything that is not such a document."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{cls.__name__}: not valid JSON ({error}).") from error
        if not isinstance(data, dict):
            raise ConfigError(f"{cls.__name__}: expected a JSON object, found {type(data).__name__}.")
        found = data.pop("format", FORMAT_VERSION)
        if found != FORMAT_VERSION:
            raise ConfigError(f"{cls.__name__}: written in format {found!r}; this version reads {FORMAT_VERSION}.")
        return cls.from_dict(data)

    @property
    def described(self) -> str:
        """What it is, and what was set: `softmax(cap=50.0)`, by its kind or else by the name of its class."""
        members = dataclasses.fields(typing.cast(Any, self))
        values = {f.name: getattr(self, f.name) for f in members}
        made = dataclasses.MISSING
        usual = {f.name: f.default if f.default_factory is made else f.default_factory() for f in members}
        changed = {name: value for name, value in values.items() if value != usual[name]}
        said = (f"{name}={value.described if isinstance(value, Config) else value}" for name, value in changed.items())
        return (self.kind or type(self).__name__) + (f"({', '.join(said)})" if changed else "")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed; an unknown name raises `UnknownField`."""
        names = [f.name for f in dataclasses.fields(typing.cast(Any, self))]
        for name in changes:
            if name not in names:
                raise UnknownField(_no_field(type(self), name, names))
        return dataclasses.replace(typing.cast(Any, self), **changes)


def _bounded(relations: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a `__post_init__` that looks at the bounds of fields before it looks at how they go together."""

    @wraps(relations)
    def checked(self: Any) -> None:
        # once: not where a member's own asks for its parent's
        if type(self).__post_init__ is checked:
            _check_bounds(self)
        relations(self)

    return checked


def _check_bounds(config: Config) -> None:
    """Raise `ConfigError` for a field that is none of the numbers or words of its annotation, and for sizes."""
    for name, hint in _bounded_fields(type(config)).items():
        if not fits(value := getattr(config, name), hint):
            who = config.kind or type(config).__name__
            if is_bounded(hint):
                raise ConfigError(f"{who}: {name} {refusal(value, hint)}, found {_short(value)}.")
            raise ConfigError(f"{who}: {name} must be {described(hint)}, found {_short(value)}.{near(value, hint)}")
    config.check_sizes()


@cache
def _bounded_fields(cls: type) -> dict[str, Any]:
    """Return the annotations of a class's fields that bound numbers, or list words."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: hint for f in dataclasses.fields(cls) if is_bounded(hint := hints[f.name]) or has_words(hint)}


def require(condition: bool, message: str) -> None:
    """Raise `ConfigError(message)` unless the condition holds: the one-line form for `__post_init__`."""
    if not condition:
        raise ConfigError(message)


def require_finite(config: Config, where: str) -> None:
    """Raise `ConfigError` if a number in the config, however deep, is infinite or NaN; the message names its place."""
    for field in dataclasses.fields(typing.cast(Any, config)):
        _require_finite(getattr(config, field.name), f"{where}.{field.name}")


def _require_finite(value: object, where: str) -> None:
    if isinstance(value, Config):
        require_finite(value, where)
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            _require_finite(item, f"{where}.{i}")
    elif isinstance(value, float):
        require(math.isfinite(value), f"{where} must be a finite number, found {value}.")


def _is_unsaid(value: object, default: object) -> bool:
    return value is None or (isinstance(value, bool) and value is default)


def _encode(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [_encode(item) for item in value]
    return value


def _decode_config(cls: type, data: object, where: str) -> Any:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected an object, found {type(data).__name__} ({_short(data)}).")
    data = dict(data)
    if cls.registry and ("kind" in data or not dataclasses.is_dataclass(cls)):
        cls = _member(cls, data.pop("kind", None), where)
    hints = _hints(cls)
    for name in data:
        if name not in hints:
            raise UnknownField(f"{where}: " + _no_field(cls, str(name), list(hints)))
    values = {name: _decode(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    missing = [f.name for f in dataclasses.fields(cls) if f.name not in values and _required(f)]
    if missing:
        raise ConfigError(f"{where}: missing " + ", ".join(f'"{name}"' for name in missing) + ".")
    return cls(**values)


def _member(family: type[Config], kind: object, where: str) -> type[Config]:
    plugins = {} if isinstance(kind, str) and kind in family.registry else _plugins()
    if isinstance(kind, str) and kind in plugins:
        _load(plugins[kind], where)
    if not isinstance(kind, str) or kind not in family.registry:
        known = ", ".join(sorted(family.registry))
        hint = _told_of(kind, family) or nearest(kind, {*family.registry, *plugins})
        raise UnknownKind(f"{where}: no kind {kind!r}.{hint} Known: {known}.{_told(kind, plugins)}")
    member = family.registry[kind]
    if not issubclass(member, family):
        raise UnknownKind(f"{where}: kind {kind!r} is a {member.__name__}, not a {family.__name__}.")
    return member


def _told_of(kind: object, family: type[Config]) -> str:
    """Return the kinds that are described by a word that begins as this one does; nothing where these are many.

    So a kind is found by the name of its paper's model.
    """
    if not isinstance(kind, str) or len(kind) not in _LETTERS:
        return ""
    word = re.compile(rf"\b{re.escape(kind)}", re.IGNORECASE)
    found = [
        f'"{name}"'
        for name, member in sorted(family.registry.items())
        if word.search(f"{member.__doc__}\n{sys.modules[member.__module__].__doc__}")
    ]
    return f" Described by that word: {', '.join(found)}." if 0 < len(found) <= _MOST_TOLD else ""


def _plugins() -> dict[str, EntryPoint]:
    """Return what installed packages offer, by kind."""
    return {entry.name: entry for entry in entry_points(group=PLUGINS)}


def _load(plugin: EntryPoint, where: str) -> None:
    """Import the module of a plug-in, which registers its kind."""
    try:
        plugin.load()
    # whatever other people's code raises
    except Exception as error:
        raise UnknownKind(
            f"{where}: kind {plugin.name!r} is that of the plug-in {_described(plugin)}, which cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error


def _told(kind: object, plugins: Mapping[str, EntryPoint]) -> str:
    """Return where else a kind may come from; nothing of what is no kind at all."""
    if not isinstance(kind, str):
        return ""
    if kind in plugins:
        return f"\n    The plug-in {_described(plugins[kind])} was loaded and has not registered it in this family."
    brought = {name: one for name, one in sorted(plugins.items()) if not one.value.startswith("glassformer.")}
    found = ", ".join(f"{name!r} ({_described(one)})" for name, one in brought.items()) or "none"
    return f'\n    A package may bring it, as an entry point "{PLUGINS}": install that. Plug-ins found: {found}.'


def _described(plugin: EntryPoint) -> str:
    package = "" if plugin.dist is None else f" of {plugin.dist.name} {plugin.dist.version}"
    return f'"{plugin.value}"{package}'


def _decode(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where}: expected a list, found {_short(value)}.")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
        if len(value) != len(arguments):
            raise ConfigError(f"{where}: expected {len(arguments)} items, found {len(value)}.")
        return tuple(_decode(h, item, f"{where}[{i}]") for i, (h, item) in enumerate(zip(arguments, value)))
    if origin is typing.Literal:
        if value not in arguments or isinstance(value, bool) != any(isinstance(a, bool) for a in arguments):
            known = ", ".join(repr(a) for a in arguments)
            hint_text = nearest(value, [str(a) for a in arguments]) if isinstance(value, str) else ""
            raise ConfigError(f"{where}: {_short(value)} is not one of {known}.{hint_text}")
        return value
    if isinstance(hint, type) and issubclass(hint, Config):
        return _decode_config(hint, value, where)
    # bool is an int in Python, and an int is a fine float: say both explicitly
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ConfigError(f"{where}: {_short(value)} is not a finite number.") from error
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        if hint is float and (value != value or value in (float("inf"), float("-inf"))):
            raise ConfigError(f"{where}: {value!r} is not a finite number.")
        return value
    raise ConfigError(f"{where}: expected {hint.__name__}, found {_short(value)}.")


def _decode_union(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    options = [a for a in arguments if a is not type(None)]
    if value is None:
        raise ConfigError(f"{where}: null is not allowed here.")
    if len(options) == 1:
        return _decode(options[0], value, where)
    failures = []
    for option in options:
        try:
            return _decode(option, value, where)
        except ConfigError as error:
            failures.append(error)
    raise failures[0]


@cache
def _hints(cls: type) -> dict[str, Any]:
    names = {f.name for f in dataclasses.fields(cls)}
    return {name: hint for name, hint in typing.get_type_hints(cls).items() if name in names}


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _no_field(cls: type, name: str, names: list[str]) -> str:
    return f'{cls.__name__} has no field "{name}".{nearest(name, names)} Fields: {", ".join(names)}.'


def _short(value: object) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        # nested too deeply, or an integer with more digits than Python prints
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= 60 else text[:57] + "..."
