"""From the words of a command line to a call of a verb's function: its options, their help and their bounds."""

import contextlib
import inspect
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any, get_type_hints

from glassformer.cli.help import Printed, choices_of, rank, repeatable, shown
from glassformer.cli.options import Speech
from glassformer.config import require
from glassformer.errors import ConfigError, nearest
from glassformer.words import language, speaking, spoken

# option -> least, most. Beyond the most, tables would be of no use and sizes overflow; a smaller model refuses earlier
BOUNDS: dict[str, tuple[int, int]] = {
    "batch": (1, 1_000_000),
    "beams": (1, 1_000),
    "batch_size": (1, 1_000_000),
    "d_head": (1, 65_536),
    "heads": (1, 65_536),
    "iterations": (1, 1_000_000),
    "jobs": (1, 1_024),
    "length": (1, 10_000_000),
    "lengths": (1, 10_000_000),
    "max_new_tokens": (1, 10_000_000),
    "n": (1, 100_000),
    "rows": (1, 10_000_000),
    "samples": (1, 100_000),
    "shots": (1, 100_000),
    "steps": (0, 2**62),
    "threads": (1, 4_096),
    "top": (1, 1_000),
    "verify": (1, 1_000_000),
    "window": (1, 1_000_000),
}


# what no verb declares: how results are told
SPEECH = "speech"

# verbs that cannot leave weights in their files, and why
NOT_STREAMED = {
    "circuits": "it looks at folded copies of all layers together",
    "train": "weights that are trained are held in memory",
    "models": "it opens no model",
    "study": "its models are trained for it",
    "adapt": "weights that experts change are held in memory",
    "plot": "it opens no model",
    "convert": "tensors go from file to file as it is",
    "params": "it reads no weights, whatever the model's size",
    "plan": "it reads no weights, whatever the model's size",
    "parity": "the reference holds the whole model",
    "bench": "it opens no model",
    "serve": "its heads are looked at again and again, and every look would read their block anew",
    "sites": "it reads no weights, whatever the model's size",
}


def call_of(verb: str, function: Callable[..., None], arguments: Sequence[str], does: str = "") -> Callable[[], None]:
    """The call that a command line stands for.

    Args:
        verb: Name of the verb.
        function: What it runs.
        arguments: The words behind it.
        does: What the verb does, which begins its help where another language than English is spoken.

    Raises:
        ConfigError: An option is unknown, lacks its value, or has one that it cannot have.
        SystemExit: Help was asked for, and has been printed.
    """
    import tyro

    refused = NOT_STREAMED.get(verb) if "--stream" in arguments else None
    require(refused is None, f"--stream is not for {verb}: {refused}.")
    found: list[Mapping[str, Any]] = []
    parsed = _declared(function, lambda **values: found.append(values))
    # tyro drops the section with the examples: pass what stands above the arguments as it is
    about = re.split(r"^Args:$", inspect.getdoc(function) or "", flags=re.MULTILINE)[0].strip()
    if language() != "en":
        about = spoken("{does}. Options are explained in English.", does=spoken(does)) + f"\n\n{about}"
    complaint, printed = io.StringIO(), Printed()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(printed):
            tyro.cli(
                parsed, prog=f"glassformer {verb}", description=_joined(about), args=arguments,
                config=(tyro.conf.DisallowNone, tyro.conf.FlagCreatePairsOff),
            )  # fmt: skip
    except SystemExit as stop:
        print(printed.wrapped(), end="")
        if stop.code:
            raise ConfigError(f"{_sentence(complaint.getvalue())}\n    Options: glassformer {verb} --help") from stop
        raise
    (values,) = found
    _check_bounds(values)
    return lambda: _call(function, values)


def _call(function: Callable[..., None], values: Mapping[str, Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    positional = [values[p.name] for p in parameters if p.kind is p.POSITIONAL_ONLY]
    with speaking(values[SPEECH].lang):
        function(*positional, **{p.name: values[p.name] for p in parameters if p.kind is not p.POSITIONAL_ONLY})


def _declared(function: Callable[..., None], receive: Callable[..., None]) -> Callable[..., None]:
    """Return a function with the same options, those of groups one by one, that only receives them."""
    hints, documented = get_type_hints(function, include_extras=True), inspect.getdoc(function) or ""
    hints[SPEECH] = Speech
    speech = inspect.Parameter(SPEECH, inspect.Parameter.KEYWORD_ONLY)
    options, groups, types = list[inspect.Parameter](), dict[str, type](), dict[str, Any]()
    for parameter in (*inspect.signature(function).parameters.values(), speech):
        kind = hints[parameter.name]
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            for group in reversed(kind.__mro__):
                documented += "\n" + (inspect.cleandoc(group.__doc__ or "")).partition("Args:\n")[2]
            options += _options_of(kind)
            types |= get_type_hints(kind, include_extras=True)
        else:
            types[parameter.name] = kind
            options.append(parameter.replace(annotation=shown(parameter.name, kind, parameter.default)))
    defaults = {p.name: p.default for p in options if repeatable(p.annotation)}
    options = [p.replace(annotation=repeatable(p.annotation), default=()) if p.name in defaults else p for p in options]
    positional = [p for p in options if p.kind is p.POSITIONAL_ONLY]
    named = [p.replace(kind=p.KEYWORD_ONLY) for p in options if p.kind is not p.POSITIONAL_ONLY]
    signature = inspect.Signature([*positional, *sorted(named, key=lambda p: rank(p.name))])

    def parsed(*given: Any, **by_name: Any) -> None:
        values = signature.bind(*given, **by_name).arguments
        for name, default in defaults.items():
            values[name] = tuple(chain.from_iterable(values[name])) if values[name] else default
        _check_choices(function.__name__, types, values, [parameter.name for parameter in positional])
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        receive(**values)

    # where types are checked at run time this would lead to the function without a signature
    vars(parsed).pop("__wrapped__", None)
    parsed.__annotations__ = {p.name: p.annotation for p in options}
    parsed.__signature__ = signature  # type: ignore[attr-defined]
    # a help text is one paragraph, wrapped to the width of the terminal and not to that of the source
    parsed.__doc__ = re.sub(r"\n {8,}(?=\S)", " ", documented)
    return parsed


def _options_of(group: type) -> Iterator[inspect.Parameter]:
    """Yield the options of a group."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        hint = shown(field.name, hints[field.name], field.default)
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hint)


def _joined(about: str) -> str:
    """Return a text whose paragraphs are one line each; what is indented keeps its lines."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", about)


def _sentence(complaint: str) -> str:
    """Return what a complaint says, without the box around it and the pointer to the help."""
    lines = [line.strip("│╭╮╰╯ ") for line in complaint.splitlines()[1:]]
    told = re.split(r"For full helptext", "\n".join(lines))[0]
    return re.sub(r"\s*─{4,}\s*", "\n    ", re.sub(r"\s*\n(?!─)\s*", " ", told)).strip().rstrip(":")


def _check_bounds(values: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for numbers that no verb can do anything with."""
    for name, number in _numbers(values):
        flag = f"--{name.replace('_', '-')}"
        require(isinstance(number, int) or math.isfinite(number), f"{flag} must be a finite number, found {number}.")
        least, most = BOUNDS.get(name, (-math.inf, math.inf))
        require(number >= least, f"{flag} must be at least {least}, found {number}.")
        require(number <= most, f"{flag} must be at most {most:,}, found {number:,}.")
        require(-(2**63) <= number < 2**63, f"{flag} must fit in 64 bits, found {number}.")


def _check_choices(verb: str, types: Mapping[str, Any], values: Mapping[str, Any], positional: Sequence[str]) -> None:
    """Raise `ConfigError` for words that are none of those an option of a type takes."""
    for name, value in values.items():
        choices, given = choices_of(types[name]), value if isinstance(value, tuple) else (value,)
        flag, known = name.upper() if name in positional else f"--{name.replace('_', '-')}", ", ".join(choices)
        single = f"\n    Before it: glassformer {verb} {known} {given[0]}" if len(choices) == 1 else ""
        for word in given if choices else ():
            told = f'{flag} takes no "{word}".{nearest(word, choices)} Choices: {known}.'
            require(word is None or word in choices, told + (single if name in positional else ""))


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, int | float]]:
    """Yield each number among the values of options, also of options in groups and of several for one option."""
    for name, value in values.items():
        if is_dataclass(value) and not isinstance(value, type):
            yield from _numbers({field.name: getattr(value, field.name) for field in fields(value)})
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, int | float) and not isinstance(one, bool):
                yield name, one
