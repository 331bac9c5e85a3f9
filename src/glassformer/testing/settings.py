"""Settings of a config, enumerated from its types: each value of each boolean, literal and optional field.

for config in settings(Softmax): …              # from the default and from every variant
for config in settings(Softmax, at_once=2): …   # two literals at a time, too
"""

import dataclasses
import itertools
import types
import typing
from collections.abc import Iterator
from typing import Any, TypeVar, cast

from glassformer.config import Config
from glassformer.errors import ConfigError

C = TypeVar("C", bound=Config)


def settings(cls: type[C], *, at_once: int = 1) -> list[C]:
    """Return the configs of a class that differ from its default, or from one of its `variants`, in a field or several.

    What the config itself refuses is left out.

    Args:
        cls: A config class; its `variants`, if it has any, are fields of settings worth testing.
        at_once: How many literals are set at a time; other fields one by one.
    """
    forms = [{}, *getattr(cls, "variants", ())]
    found: dict[C, None] = {}
    for form in forms:
        for changes in _changes(cls, forms, at_once):
            try:
                found[cls(**form | changes)] = None
            except ConfigError:
                continue
    return list(found)


def _changes(cls: type[Config], forms: list[dict[str, Any]], at_once: int) -> Iterator[dict[str, Any]]:
    values = _values(cls, forms)
    yield {}
    for name, several in values.items():
        yield from ({name: value} for value in several)
    hints = typing.get_type_hints(cls)
    literals = [name for name in values if typing.get_origin(hints[name]) is typing.Literal]
    for names in itertools.combinations(literals, at_once) if at_once > 1 else ():
        yield from (dict(zip(names, some)) for some in itertools.product(*(values[name] for name in names)))


def _values(cls: type[Config], forms: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of fields whose type says which there are; of optional ones None and those in variants."""
    hints = typing.get_type_hints(cls)
    found: dict[str, list[Any]] = {}
    for field in dataclasses.fields(cast(Any, cls)):
        hint = hints[field.name]
        if hint is bool:
            found[field.name] = [False, True]
        elif typing.get_origin(hint) is typing.Literal:
            found[field.name] = list(typing.get_args(hint))
        elif typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint):
            set_in_forms = [form[field.name] for form in forms if form.get(field.name) is not None]
            found[field.name] = [None, *(set_in_forms or _examples(typing.get_args(hint)))]
    return found


def _examples(types_of_field: tuple[Any, ...]) -> list[Any]:
    """Return a small value of the first type that has one."""
    small = {int: 2, float: 0.5}
    return [small[one] for one in types_of_field if one in small][:1]
