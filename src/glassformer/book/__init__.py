"""The book: what articles on the transformer explain, as functions that run; its pages are in `docs/book`.

errata          what articles say and is not so, each with the numbers that decide it
articles_code   models of the articles' code, under the arguments of that code
check           whether an answer to an exercise of the course is right, and which mistake it makes if not
glossary        what the words of a chapter mean
"""

from glassformer.book import articles_code, errata
from glassformer.book.exercise import Checked, Exercise, Mistake
from glassformer.book.exercises import EXERCISES, check, exercise
from glassformer.book.glossary import GLOSSARY, Term, glossary

__all__ = [
    "EXERCISES",
    "GLOSSARY",
    "Checked",
    "Exercise",
    "Mistake",
    "Term",
    "articles_code",
    "check",
    "errata",
    "exercise",
    "glossary",
]
