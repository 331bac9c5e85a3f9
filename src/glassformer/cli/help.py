"""What the help of a verb shows: what stands for values of options, defaults that say something, whole sentences."""

import functools
import inspect
import io
import operator
import re
import shlex
import shutil
import sys
import textwrap
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro

# what stands for the value of an option of this name; for others their type decides
PLACEHOLDERS = {
    "ablate": "PART", "against": "TOKEN", "answer": "TOKEN", "begin_from": "FOLDER", "by": "AXIS", "data": "SOURCE",
    "corpus": "SOURCE", "device": "DEVICE", "dtype": "TYPE", "edit": "LAYER", "features": "FEATURE",
    "folder": "FOLDER", "glob": "GLOB", "head": "HEAD", "heads": "HEAD", "host": "ADDRESS", "image": "IMAGE",
    "key": "POSITION", "label": "LABEL",
    "maps": "MAP", "mechanisms": "MECHANISM", "mesh": "AXIS=N", "model": "MODEL", "name": "NAME", "others": "RUN",
    "position": "POSITION", "positions": "POSITION", "query": "POSITION", "read": "SITE", "receivers": "RECEIVER",
    "recipe": "RECIPE", "revision": "REVISION", "role": "ROLE", "run": "RUN", "site": "SITE", "set": "PATH=VALUE",
    "shard_size": "BYTES", "sites": "SITE", "subject": "WORDS", "task": "TASK", "token": "SECRET",
    "word": "WORD", "wrong": "TOKEN",
}  # fmt: skip
BY_TYPE: dict[type, str] = {int: "N", float: "X", Path: "FILE", str: "TEXT"}

# options that several verbs have, in the one order in which help shows them: before a verb's own, and behind those
BEFORE = (
    "pairs", "fitting", "columns", "task", "n", "clean", "corrupt", "image", "answer", "against", "wrong", "target",
    "position",
)  # fmt: skip
BEHIND = (
    "top", "seed", "chat", "specials", "allow_unknown", "allow_nonfinite", "stream", "device", "dtype", "dry_run",
    "save_to", "lang", "html", "json",
)  # fmt: skip


def rank(name: str) -> int:
    """Return where an option stands among those of its verb: what is asked about, its own, how it is run and kept."""
    if name in BEFORE:
        return BEFORE.index(name) - len(BEFORE)
    return BEHIND.index(name) + 1 if name in BEHIND else 0


def shown(name: str, hint: Any, default: Any) -> Any:
    """Return the annotation of an option with what its help shows for its value and of its default.

    Args:
        name: Of the option.
        hint: Its type, annotated or not.
        default: Its value if it is not given; `inspect.Parameter.empty` where it has to be.
    """
    kind, *annotations = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    said: dict[str, Any] = {}
    if default in (None, ()) or isinstance(default, bool):
        said["help_behavior_hint"] = ""
    elif isinstance(default, tuple):
        # as one would type it; of a repeatable option tyro would tell its own default, which is none
        said["help_behavior_hint"] = f"(default: {shlex.join(map(str, default))})"
    word = None if any(getattr(a, "metavar", None) for a in annotations) else _placeholder(name, kind)
    if word is not None:
        # brackets say that an argument may be left out; an option may anyway
        optional = tyro.conf.Positional in annotations and default is not inspect.Parameter.empty
        said["metavar"] = f"[{word}]" if optional and not word.startswith("[") else word
    hint = _any_words(hint) if choices_of(hint) else hint
    return Annotated[hint, tyro.conf.arg(**said)] if said else hint


def repeatable(annotation: Any) -> Any:
    """Return the annotation of an option of several values for a command line that may give it more than once.

    Its value is then a tuple of what each time was given, and there are none where it was not given at all.

    Args:
        annotation: Of an option, as `shown` returns it; None is returned of a positional and of one with one value.
    """
    kind, *annotations = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is not tuple or tyro.conf.Positional in annotations:
        return None
    return Annotated[tuple[kind, ...], *annotations, tyro.conf.UseAppendAction]


def choices_of(hint: Any) -> tuple[str, ...]:
    """Return the words that an option of this type takes, where it takes no others."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(word for one in get_args(hint) for word in choices_of(one))


def _any_words(hint: Any) -> Any:
    """Return a type with any words in the place of choices: a wrong one is answered as other errors are, not here."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return str
    if origin is Annotated:
        return Annotated[_any_words(inner[0]), *inner[1:]]
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_any_words, inner))
    return tuple[_any_words(inner[0]), ...] if origin is tuple else hint


def _placeholder(name: str, kind: Any) -> str | None:
    """Return what stands for the value of an option; None where it has no value."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is tuple:
        return f"[{_placeholder(name, get_args(kind)[0])} ...]"
    if get_origin(kind) is Literal:
        return f"{{{','.join(get_args(kind))}}}"
    return None if kind not in BY_TYPE else PLACEHOLDERS.get(name, BY_TYPE[kind])


class Printed(io.StringIO):
    """Standard output while help is printed, as what is printed on takes it: its colours and its characters."""

    def __init__(self) -> None:
        super().__init__()
        self.onto = sys.stdout

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return self.onto.encoding

    def isatty(self) -> bool:
        return self.onto.isatty()

    def wrapped(self) -> str:
        """Return what was printed, with paragraphs as wide as the terminal; examples and tables stay as they are."""
        width = shutil.get_terminal_size().columns
        lines = [
            textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
            if re.match(r"\w", line)
            else line
            for line in self.getvalue().split("\n")
        ]
        return "\n".join(lines)
