"""Words for people, in their language: one table per language, for terminals and pages alike"""

from glassformer.words.durations import duration
from glassformer.words.saying import (
    Language,
    Sentence,
    language,
    listed,
    sentence,
    speaking,
    spoken,
    spoken_each,
    spoken_label,
    table,
)

__all__ = [
    "Language",
    "Sentence",
    "duration",
    "language",
    "listed",
    "sentence",
    "speaking",
    "spoken",
    "spoken_each",
    "spoken_label",
    "table",
]
