"""Tokens that a reader must not take at face value: words a vocabulary lacks, and characters spelled byte by byte.

Of a text with some of them there is a note; one that is mostly such tokens is refused, unless that is allowed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from glassformer.errors import TextError
from glassformer.files.packaged import shipped, shipped_folder
from glassformer.provenance import Note
from glassformer.words import Sentence, sentence

# characters and words that a message names
SHOWN = 8
OTHERWISE = sentence("Use characters that it has tokens for.")
KNOWN_WORDS = sentence("Use words that it knows; its tokenizer.json lists them all.")
# UTF-8 gives no character more bytes
LONGEST = 4


@dataclass(frozen=True)
class Spelled:
    """One character that takes several tokens.

    Args:
        first: Index of its first token.
        end: Index behind its last one.
        character: The character.
        raw: Every one of these tokens is a single byte: no merge holds two of them.
    """

    first: int
    end: int
    character: str
    raw: bool


@dataclass(frozen=True)
class Marks:
    """What is odd about the tokens of one row.

    Args:
        unknown: Indices of tokens that stand for words outside the vocabulary.
        spelled: Characters that take several tokens, in order.
        words: Tokens that stand for a piece of the text, specials aside; unknown ones count.
        learnt: The tokenizer is not bytes by design, so what is spelled byte by byte is what it did not learn.
        text: What the tokens spell, specials aside.
        lost: What the text has in place of unknown tokens, with their indices: `whale [5]`, of several rows
            `whale [1, 5]`. Where ids alone are known it is the unknown token's name.
    """

    unknown: tuple[int, ...] = ()
    spelled: tuple[Spelled, ...] = ()
    words: int = 0
    learnt: bool = False
    text: str = ""
    lost: tuple[str, ...] = ()

    @property
    def mostly_unknown(self) -> bool:
        """Whether more than half of the text is lost."""
        return 2 * len(self.unknown) > self.words

    @property
    def mostly_bytes(self) -> bool:
        """Whether more than half of the tokens are single bytes of characters that the vocabulary did not learn."""
        return 2 * self.byte_tokens > self.words

    @property
    def byte_tokens(self) -> int:
        """How many tokens the characters take of which the vocabulary holds nothing but their single bytes."""
        return sum(one.end - one.first for one in self.by_bytes)

    @property
    def by_bytes(self) -> tuple[Spelled, ...]:
        """Characters of which the vocabulary holds nothing but their single bytes."""
        return tuple(one for one in self.spelled if one.raw) if self.learnt else ()

    def of(self, index: int) -> dict[str, Any]:
        """JSON data on one token, empty if nothing is odd: `unknown`, or `character` and the token's `part`."""
        if index in self.unknown:
            return {"unknown": True}
        for one in self.spelled:
            if one.first <= index < one.end:
                return {"character": one.character, "part": index - one.first}
        return {}

    def to_list(self) -> list[dict[str, Any]]:
        """JSON data: `index` and what is odd, for each token of which something is."""
        odd = {*self.unknown, *(i for one in self.spelled for i in range(one.first, one.end))}
        return [{"index": i} | self.of(i) for i in sorted(odd)]


UNMARKED = Marks()


@runtime_checkable
class Vocabulary(Protocol):
    """What must be known of a tokenizer to say which of its tokens are no words."""

    @property
    def unk(self) -> int | None: ...
    @cached_property
    def specials(self) -> dict[int, str]: ...
    @cached_property
    def vocab_size(self) -> int: ...
    @cached_property
    def is_bytes(self) -> bool: ...
    def named(self, role: str) -> int | None: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def tokens(self, ids: Iterable[int]) -> list[str]: ...
    def bytes_of(self, id: int) -> bytes: ...
    def spans(self, text: str) -> list[tuple[int, int]]: ...


# reads the vocabulary that lies in a folder, if there is one
Load = Callable[[Path], Vocabulary | None]


def marks(tokenizer: Vocabulary | None, ids: Sequence[int], texts: Sequence[str], given: str | None = None) -> Marks:
    """Marks of a row of tokens: what is odd about them.

    Args:
        tokenizer: Of the model; without one nothing is known.
        ids: The tokens.
        texts: The same as readable text.
        given: The text that they are read from, if it is known.
    """
    if tokenizer is None:
        return UNMARKED
    unknown = () if tokenizer.unk is None else tuple(i for i, id in enumerate(ids) if id == tokenizer.unk)
    # bytes that are no text by themselves read as <0xHH>
    broken = [i for i, text in enumerate(texts) if "<0x" in text]
    if not unknown and not broken:
        return UNMARKED
    words = [id for id in ids if id not in tokenizer.specials or id == tokenizer.unk]
    spelled = tuple(_spelled(tokenizer, ids, broken))
    # a model may have more ids than its tokenizer has tokens
    text = tokenizer.decode([id for id in words if id < tokenizer.vocab_size])
    lost = lost_words(tokenizer, [ids], {} if given is None else {0: given})
    return Marks(unknown, spelled, len(words), not tokenizer.is_bytes, text, lost)


def lost_words(
    tokenizer: Vocabulary, rows: Sequence[Sequence[int]], texts: Mapping[int, str], behind: int = 0
) -> tuple[str, ...]:
    """Return what texts have in place of unknown tokens, each word once, with the indices of its tokens.

    Args:
        tokenizer: Of the model.
        rows: Ids.
        texts: What rows were read from, by the row, as far as it is known.
        behind: How many tokens stand before each row, from where places are counted.
    """
    places: dict[str, list[str]] = {}
    for row, ids in enumerate(rows):
        unknown = [i for i, id in enumerate(ids) if id == tokenizer.unk]
        words = tokenizer.tokens(ids[i] for i in unknown)
        if unknown and row in texts:
            text = texts[row]
            read = zip(tokenizer.spans(text), tokenizer.encode(text))
            words = [text[first:end] for (first, end), id in read if id == tokenizer.unk]
        for i, word in zip(unknown, words):
            places.setdefault(word, []).append(f"[{row}, {behind + i}]" if len(rows) > 1 else f"[{behind + i}]")
    return tuple(f"{word} {_first(found)}" for word, found in places.items())


def _spelled(tokenizer: Vocabulary, ids: Sequence[int], broken: Sequence[int]) -> list[Spelled]:
    found: list[Spelled] = []
    for first in broken:
        if found and first < found[-1].end:
            continue
        pieces: list[bytes] = []
        for id in ids[first : first + LONGEST]:
            pieces.append(tokenizer.bytes_of(id))
            # bytes that are no text decode to nothing
            character = b"".join(pieces).decode("utf-8", "ignore")
            if len(character) == 1 and character.encode() == b"".join(pieces):
                found.append(Spelled(first, first + len(pieces), character, all(len(piece) == 1 for piece in pieces)))
                break
    return found


def mark_notes(found: Marks, side: str, model: str, load: Load) -> tuple[Note, ...]:
    """Return what must be known of tokens that are no words of the vocabulary: at most one note of each kind.

    Args:
        found: What is odd about them.
        side: What they are: the text, a source.
        model: The model's name.
        load: Reads vocabularies of shipped models, one of which may fit better.
    """
    notes: list[Note] = []
    if found.unknown:
        n = len(found.unknown)
        seen = sentence(
            "{n} of {all} tokens of the {side} is unknown to this model: {words}." if n == 1
            else "{n} of {all} tokens of the {side} are unknown to this model: {words}.",
            n=n, all=found.words, side=sentence(side), words=_first(found.lost, ", "),
        )  # fmt: skip
        notes.append(
            Note(
                seen,
                sentence(
                    "It read one and the same token for all of them, so what it says cannot depend on which they were."
                ),
                KNOWN_WORDS,
            )
        )
    if found.by_bytes:
        better = fitting_model(found.text, model, load)
        advice = sentence("A shipped model that fits: {name}.", name=better) if better else OTHERWISE
        notes.append(Note(*_bytes_read(found, side), advice))
    return tuple(notes)


def _bytes_read(found: Marks, side: str) -> tuple[Sentence, Sentence]:
    """Return in words which characters are spelled byte by byte, and what that means."""
    characters = list(dict.fromkeys(one.character for one in found.by_bytes))
    return (
        sentence(
            "{n} of {all} tokens of the {side} are single bytes of characters: {characters}.",
            n=found.byte_tokens, all=found.words, side=sentence(side), characters=_first(characters),
        ),
        sentence(
            "The vocabulary learnt no token for them, so its text held hardly any, and the model was not trained to "
            "read them."
        ),
    )  # fmt: skip


def _first(words: Sequence[str], between: str = " ") -> str:
    return between.join(words[:SHOWN]) + (f"{between}…" if len(words) > SHOWN else "")


def check_known(tokenizer: Vocabulary, text: str, ids: Sequence[int], model: str, load: Load, behind: int = 0) -> None:
    """Raise `TextError` if more than half of a text is unknown or unlearnt bytes.

    Args:
        tokenizer: Of the model.
        text: The text.
        ids: Its tokens.
        model: The model's name.
        load: Reads vocabularies of shipped models, one of which may fit better.
        behind: How many tokens stand before it, from where places are counted.
    """
    # what has one byte per character is not spelled by bytes
    if tokenizer.unk is None and text.isascii():
        return
    found = marks(tokenizer, ids, tokenizer.tokens(ids))
    if found.mostly_unknown:
        n, words = len(found.unknown), _first(lost_words(tokenizer, [ids], {0: text}, behind), ", ")
        seen = f"{n} of {found.words} tokens {'is' if n == 1 else 'are'} unknown to this model: {words}."
        meaning, otherwise = "What it makes of them says nothing about the text.", KNOWN_WORDS
    elif found.mostly_bytes:
        seen, meaning = _bytes_read(found, "text")
        otherwise = OTHERWISE
    else:
        return
    better = fitting_model(text, model, load)
    raise TextError(
        f"{seen}\n    {meaning}\n    {f'A shipped model that fits: {better}.' if better else otherwise} "
        "To run it all the same: allow_unknown=True, --allow-unknown."
    )


def fitting_model(text: str, other_than: str, load: Load) -> str:
    """Return the shipped model that knows all of a text and reads it in the fewest tokens; empty if there is none.

    Of two that read it alike, the one that goes on with a text rather than the one that fills masks in.
    """
    reads: dict[str, tuple[int, bool]] = {}
    for name in shipped():
        tokenizer = None if name == other_than else load(shipped_folder(name))
        if tokenizer is None:
            continue
        ids = tokenizer.encode(text)
        found = marks(tokenizer, ids, tokenizer.tokens(ids))
        if not found.unknown and not found.spelled:
            reads[name] = len(ids), tokenizer.named("mask") is not None
    return min(reads, key=lambda name: reads[name], default="")
