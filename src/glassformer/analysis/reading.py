"""What a reader must know of the text that a model read: its specials, its unknown words, its bytes, its length."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from glassformer.data import UNMARKED, Marks, Tokenizer, marks
from glassformer.provenance import Note, length_note


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
