"""Labelled tensors, and the base of every result."""

from glassformer.labelled.result import Result, results_within, spaced
from glassformer.labelled.tensor import Coordinate, Labelled, RowLabels

__all__ = ["Coordinate", "Labelled", "Result", "RowLabels", "results_within", "spaced"]
