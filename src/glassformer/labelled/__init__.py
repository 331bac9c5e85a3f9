"""Labelled tensors, and the base of every result."""

from glassformer.labelled.result import Result, results_within, spaced
from glassformer.labelled.tensor import Coordinate, Labelled, RowLabels
from glassformer.labelled.viewed import Viewed

__all__ = ["Coordinate", "Labelled", "Result", "RowLabels", "Viewed", "results_within", "spaced"]
