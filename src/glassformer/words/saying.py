"""Saying English words in the language that is spoken: a table from English to each other language, in JSON.

    with speaking("zh"):
        spoken("layer {layer}", layer=3)       "第 3 层"
    spoken("layer {layer}", layer=3)           "layer 3"

What a view writes is said at once. What an analysis writes goes into documents, which stay English: it is a `sentence`,
a string that remembers its slots, and is said when it is shown.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.resources import files
from typing import Any, Literal

Language = Literal["en", "zh"]

_SPOKEN: ContextVar[Language] = ContextVar("language that is spoken", default="en")


class Sentence(str):
    """English words that know their slots, and so can be said in another language."""

    template: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        # what takes strings for keys calls `str`, which would forget the slots
        return self


def sentence(template: str, /, **values: Any) -> Sentence:
    """English words to be kept and said later: `sentence("{n} of {all} layers", n=1, all=4)`.

    Args:
        template: The words with a slot in braces for each value; without values, braces are braces.
        values: What stands in the slots; sentences among them are said in the same language.
    """
    made = Sentence(template.format(**values) if values else template)
    made.template, made.values = template, values
    return made


def listed(parts: Sequence[str], *, commas: bool = False) -> Sentence:
    """Parts as one sentence, with semicolons between, or commas."""

    def joined(one: Sentence, other: Sentence) -> Sentence:
        return sentence("{one}, {other}" if commas else "{one}; {other}", one=one, other=other)

    return functools.reduce(joined, (part if isinstance(part, Sentence) else sentence(part) for part in parts))


def spoken(words: str, /, **values: Any) -> str:
    """English words, or a sentence, in the language that is spoken; in English where its table lacks them."""
    if isinstance(words, Sentence):
        words, values = words.template, {**words.values}
    said = table(language()).get(words, words)
    return said.format(**{name: _said(value) for name, value in values.items()}) if values else said


def spoken_each(*words: str) -> list[str]:
    """Words one by one, such as the heads of a table's columns."""
    return [spoken(word) for word in words]


def spoken_label(label: str, /) -> str:
    """The name of a component or a place in the model, such as `L0 attn bias`, said word by word."""
    return re.sub(r"norm bias|\b[a-z]+\b", lambda word: spoken(word[0]), label)


def language() -> Language:
    """Language that is spoken here."""
    return _SPOKEN.get()


@contextmanager
def speaking(chosen: Language) -> Iterator[None]:
    """Speak a language inside."""
    token = _SPOKEN.set(chosen)
    try:
        yield
    finally:
        _SPOKEN.reset(token)


@functools.cache
def table(chosen: Language) -> Mapping[str, str]:
    """Table of a language: what each English word is in it; English has no need of one."""
    if chosen == "en":
        return {}
    return json.loads(files("glassformer.words").joinpath(f"{chosen}.json").read_text(encoding="utf-8"))


def _said(value: Any) -> Any:
    return spoken(value) if isinstance(value, Sentence) else value
