"""The book: what articles on the transformer explain, as functions that run; its pages are in `docs/book`.

    errata            what articles say and is not so, each with the numbers that decide it
    check             whether an answer to an exercise is right, and which mistake it makes if not
"""

from glassformer.book import errata
from glassformer.book.exercise import Checked, Exercise

__all__ = ["Checked", "Exercise", "errata"]
