"""What a reader must know of the text that a model read: its specials, its unknown words, its bytes, its length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer.checkpoints import folder_of, shipped
from glassformer.data import UNMARKED, Marks, Tokenizer, marks
from glassformer.errors import TextError
from glassformer.provenance import Note, length_note
from glassformer.words import Sentence, sentence

SHOWN = 8


def specials_note(said: str) -> tuple[Note, ...]:
    """Return the note on special tokens around a text, from what the tokenizer says of them: one, or none."""
    return (Note(said),) if said else ()


def rows_note(model: Any, *sides: Sequence[Sequence[str]]) -> tuple[Note, ...]:
    """Return what must be known of rows, those of encoder and decoder, if they are longer than those of training."""
    longest = max((len(row) for rows in sides for row in rows), default=0)
    return length_note(longest, getattr(model, "trained_length", None))


def marked(model: Any, ids: Tensor | None, rows: Sequence[Sequence[str]], *, of_source: bool = False) -> Marks:
    """Return what is odd about the tokens of a text; several rows are data, which nobody reads token by token."""
    tokenizer = getattr(model, "source_tokenizer" if of_source else "tokenizer", None)
    if ids is None or len(rows) != 1 or not isinstance(tokenizer, Tokenizer):
        return UNMARKED
    return marks(tokenizer, ids[0, : len(rows[0])].tolist(), rows[0])


def mark_notes(model: Any, found: Marks, side: str = "text") -> tuple[Note, ...]:
    """Return what must be known of tokens that are no words of the vocabulary: at most one note of each kind."""
    notes: list[Note] = []
    if found.unknown:
        notes.append(
            Note(
                sentence(
                    "{n} of {all} tokens of the {side} are unknown to this model.",
                    n=len(found.unknown),
                    all=found.words,
                    side=sentence(side),
                ),
                sentence(
                    "It read one and the same token for all of them, so what it says cannot depend on which they were."
                ),
                sentence("Use words that it knows."),
            )
        )
    if found.by_bytes:
        better = fitting_model("".join(one.character for one in found.by_bytes), getattr(model, "name", ""))
        seen, meaning = _bytes_read(found, side)
        notes.append(Note(seen, meaning, sentence("A shipped model that fits: {name}.", name=better) if better else ""))
    return tuple(notes)


def _bytes_read(found: Marks, side: str) -> tuple[Sentence, Sentence]:
    """Return in words which characters are spelled byte by byte, and what that means."""
    characters = list(dict.fromkeys(one.character for one in found.by_bytes))
    return (
        sentence(
            "{n} of {all} tokens of the {side} are single bytes of characters: {characters}.",
            n=found.byte_tokens,
            all=found.words,
            side=sentence(side),
            characters=_first(characters),
        ),
        sentence(
            "The vocabulary learnt no token for them, so its text held hardly any, and the model was not trained to "
            "read them."
        ),
    )


def _first(words: Sequence[str]) -> str:
    return " ".join(words[:SHOWN]) + (" …" if len(words) > SHOWN else "")


def check_known(model: Any, tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    """Raise `TextError` if more than half of a text is unknown or unlearnt bytes, unless the tokenizer allows that."""
    # what has one byte per character is not spelled by bytes
    if tokenizer.allows_unknown or (tokenizer.unk is None and text.isascii()):
        return
    found = marks(tokenizer, ids, tokenizer.tokens(ids))
    if found.mostly_unknown:
        words = [text[first:end] for first, end in tokenizer.spans(text)]
        unknown = list(dict.fromkeys(words[i] for i in found.unknown if i < len(words)))
        seen = f"{len(found.unknown)} of {found.words} tokens are unknown to this model: {_first(unknown)}"
        meaning, otherwise = "What it makes of them says nothing about the text.", "Use words that it knows."
    elif found.mostly_bytes:
        seen, meaning = _bytes_read(found, "text")
        otherwise = "Use characters that it has tokens for."
    else:
        return
    better = fitting_model(text, getattr(model, "name", ""))
    raise TextError(
        f"{seen}\n    {meaning}\n    {f'A shipped model that fits: {better}.' if better else otherwise} "
        "To run it all the same: allow_unknown=True, --allow-unknown."
    )


def fitting_model(text: str, other_than: str = "") -> str:
    """Return the shipped model that knows all of a text and reads it in the fewest tokens; empty if there is none."""
    lengths: dict[str, int] = {}
    for name in shipped():
        tokenizer = None if name == other_than else _shipped_tokenizer(folder_of(name))
        if tokenizer is None:
            continue
        ids = tokenizer.encode(text)
        found = marks(tokenizer, ids, tokenizer.tokens(ids))
        if not found.unknown and not found.spelled:
            lengths[name] = len(ids)
    return min(lengths, key=lambda name: lengths[name], default="")


def _shipped_tokenizer(folder: Path) -> Tokenizer | None:
    return Tokenizer.load(folder) if (folder / "tokenizer.json").is_file() else None
