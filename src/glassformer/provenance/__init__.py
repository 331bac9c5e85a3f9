"""What a result is of, and what must be known to read it."""

from glassformer.provenance.binding import Binding, Bound, Given, Provenance, of_runs, of_several
from glassformer.provenance.notes import (
    ModelNote,
    Note,
    about,
    distinct,
    gathered,
    is_gathering,
    length_note,
    outgrown_note,
    overheard,
    tell,
)

__all__ = [
    "Binding", "Bound", "Given", "ModelNote", "Note", "Provenance", "about", "distinct", "gathered", "is_gathering",
    "length_note", "of_runs", "of_several", "outgrown_note", "overheard", "tell",
]  # fmt: skip
