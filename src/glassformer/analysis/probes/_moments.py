"""Sums over labelled rows, fold by fold: all that least squares and class means need, taken in one reading.

    n_c = rows of a class,   s_c = sum of its rows,   G = sum of x x^T over labelled rows

A fold is left out by taking its sums away. Rows of one document stay in one fold.
"""

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LabelledMoments:
    """Sums of rows by class.

    Args:
        counts: Rows of each class.
        sums: Their sums, in float64.
        products: Sum of x x^T over all of them, in float64.
    """

    counts: Float[Tensor, " cls"]
    sums: Float[Tensor, "cls width"]
    products: Float[Tensor, "width width"]

    @classmethod
    def of(cls, rows: Float[Tensor, "row width"], labels: Int[Tensor, " row"], n_classes: int) -> "LabelledMoments":
        """Return the sums of rows; those with a label below zero do not count."""
        has = labels >= 0
        rows, labels = rows[has].double(), labels[has]
        classes = torch.nn.functional.one_hot(labels, n_classes).to(rows)
        return cls(classes.sum(0), classes.mT @ rows, rows.mT @ rows)

    @classmethod
    def by_fold(
        cls, batches: Iterable[tuple[Tensor, Tensor, Tensor]], n_folds: int, n_classes: int
    ) -> "list[LabelledMoments]":
        """Return the sums of each fold, from batches of rows, labels and folds."""
        found: list[LabelledMoments | None] = [None] * n_folds
        for rows, labels, folds in batches:
            for fold in range(n_folds):
                here = folds == fold
                part = cls.of(rows[here], labels[here], n_classes)
                found[fold] = part if (before := found[fold]) is None else before + part
        return [moments for moments in found if moments is not None]

    @classmethod
    def total(cls, parts: "Sequence[LabelledMoments]") -> "LabelledMoments":
        """Return the sums of several folds together."""
        return functools.reduce(operator.add, parts)

    def __add__(self, other: "LabelledMoments") -> "LabelledMoments":
        return LabelledMoments(self.counts + other.counts, self.sums + other.sums, self.products + other.products)

    def __sub__(self, other: "LabelledMoments") -> "LabelledMoments":
        return LabelledMoments(self.counts - other.counts, self.sums - other.sums, self.products - other.products)

    @property
    def count(self) -> Float[Tensor, ""]:
        """How many rows."""
        return self.counts.sum()

    @property
    def mean(self) -> Float[Tensor, " width"]:
        """Mean of all rows."""
        return self.sums.sum(0) / self.count

    @property
    def class_means(self) -> Float[Tensor, "cls width"]:
        """Mean of the rows of each class; zero of one that has none."""
        return self.sums / self.counts.clamp_min(1)[:, None]

    @property
    def covariance(self) -> Float[Tensor, "width width"]:
        """Covariance of rows, divided by their number."""
        return self.products / self.count - torch.outer(self.mean, self.mean)

    @property
    def cross_covariance(self) -> Float[Tensor, "width cls"]:
        """Covariance of rows with indicators of classes, divided by their number."""
        shares = self.counts / self.count
        return (self.sums / self.count).mT - torch.outer(self.mean, shares)
