"""What a reader must be warned of: the same words on a terminal, on a page, in JSON and in Python."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from glassformer.words import Sentence, sentence, spoken


@dataclass(frozen=True)
class Note:
    """One warning, as whole sentences; printed one after the other, in the language that is spoken.

    Args:
        seen: What was seen.
        meaning: What that means for the numbers shown; empty if nothing follows.
        advice: What to do about it; empty if there is nothing to do.
        denies: Whether, for what was seen, nothing can be called found.
    """

    seen: str
    meaning: str = ""
    advice: str = ""
    denies: bool = False

    def __str__(self) -> str:
        return " ".join(spoken(part) for part in (self.seen, self.meaning, self.advice) if part)

    def to_dict(self) -> dict[str, Any]:
        """JSON data: `seen`, `meaning`, `advice`, to be read one after the other; `denies` where it does."""
        return {name: value for name, value in asdict(self).items() if name != "denies" or value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(str(data["seen"]), str(data["meaning"]), str(data["advice"]), bool(data.get("denies", False)))


@dataclass(frozen=True)
class ModelNote(Note):
    """One warning on a model's weights, which holds whatever the model reads."""


# notes on what an analysis read, while it is at work; None outside
_GATHERED: ContextVar[dict[Note, None] | None] = ContextVar("gathered notes", default=None)
MOST_GATHERED = 6


@contextmanager
def gathered() -> Iterator[dict[Note, None]]:
    """Collect what is told inside, each note once and not more than a few; within another, go into that one's."""
    outer = _GATHERED.get()
    found: dict[Note, None] = {} if outer is None else outer
    token = _GATHERED.set(found)
    try:
        yield found
    finally:
        _GATHERED.reset(token)


@contextmanager
def about(said: Callable[[str], Sentence]) -> Iterator[None]:
    """Let what is told inside say what it is of, where that is not what the analysis at work was given.

    Args:
        said: From what was seen to the sentence that names it.
    """
    if not is_gathering():
        yield
        return
    with _apart() as found:
        yield
    tell(note if isinstance(note, ModelNote) else replace(note, seen=said(note.seen)) for note in found)


@contextmanager
def overheard() -> Iterator[dict[Note, None]]:
    """Collect what is told inside, and tell it to the analysis at work too."""
    found: dict[Note, None] = {}
    try:
        with _apart() as found:
            yield found
    finally:
        tell(found)


@contextmanager
def _apart() -> Iterator[dict[Note, None]]:
    """Collect what is told inside; whoever gathers outside is told nothing."""
    found: dict[Note, None] = {}
    token = _GATHERED.set(found)
    try:
        yield found
    finally:
        _GATHERED.reset(token)


def is_gathering() -> bool:
    """Whether an analysis is at work, which says for itself what it is of."""
    return _GATHERED.get() is not None


def tell(notes: Iterable[Note]) -> None:
    """Let the analysis at work, if there is one, know what must be known of what it reads."""
    found = _GATHERED.get()
    if found is None:
        return
    for note in notes:
        if len(found) < MOST_GATHERED:
            found[note] = None


def distinct(*groups: Iterable[Note]) -> tuple[Note, ...]:
    """The notes of several groups in their order, each once."""
    return tuple(dict.fromkeys(note for group in groups for note in group))


def length_note(length: int, trained: int | None) -> tuple[Note, ...]:
    """Note on a text that is longer than the rows a model was trained on: one, or none.

    Args:
        length: Tokens of the text.
        trained: Those of the longest row in training; None if that is not known.
    """
    if trained is None or length <= trained:
        return ()
    seen = sentence("{length:,} tokens, trained on {trained:,}.", length=length, trained=trained)
    advice = sentence("Give at most {trained:,} tokens, or go by the positions before {trained}.", trained=trained)
    return (Note(seen, _beyond(trained), advice),)


def outgrown_note(trained: int) -> Note:
    """Note on a text that became longer than the rows a model was trained on while it was generated."""
    seen = sentence("The text has outgrown the {trained:,} tokens that the model was trained on.", trained=trained)
    advice = sentence("Generate fewer tokens, or go by those before position {trained}.", trained=trained)
    return Note(seen, _beyond(trained), advice)


def _beyond(trained: int) -> Sentence:
    return sentence(
        "From position {trained} on the model stands where training never put it: heads may look elsewhere than "
        "they do before, and its probabilities deserve less trust.",
        trained=trained,
    )
