"""Linear probes of a vector: scores of classes that are an affine function of it.

    score = W (x - mean) + b,    the class is the one with the largest score

    ridge      least squares to indicators of classes: W = S_xy^T (S_xx + penalty s I)^-1, b the shares of classes,
               s the mean variance of a coordinate, so that scale does not matter
    means      the nearest class mean: W = the class means less the mean of all, b = -(their squared lengths) / 2
    logistic   the likeliest class, with a penalty on W; rows are divided by the standard deviations of coordinates

Ridge and means come from sums (`LabelledMoments`); logistic regression is scikit-learn's.

Source: Alain and Bengio 2016, "Understanding intermediate layers using linear classifier probes".
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.probes._moments import LabelledMoments
from glassformer.errors import MissingExtra
from glassformer.numerics import decompositions

Kind = Literal["ridge", "means", "logistic"]


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """An affine map from vectors to scores of classes, in float64.

    Args:
        weight: A direction of each class.
        bias: Score of each class at the mean.
        mean: What is taken off vectors.
    """

    weight: Float[Tensor, "cls width"]
    bias: Float[Tensor, " cls"]
    mean: Float[Tensor, " width"]

    def scores(self, rows: Float[Tensor, "*row width"]) -> Float[Tensor, "*row cls"]:
        """Return the score of each class."""
        return (rows.double() - self.mean) @ self.weight.mT + self.bias

    def classes(self, rows: Float[Tensor, "*row width"]) -> Int[Tensor, "*row"]:
        """Return the class with the largest score."""
        return self.scores(rows).argmax(-1)


def from_moments(moments: LabelledMoments, kind: Kind, penalty: float) -> LinearProbe:
    """Return the probe that sums of rows lead to.

    Args:
        moments: Of the rows it is fitted to.
        kind: `ridge` or `means`.
        penalty: Of ridge, as a share of the mean variance of a coordinate.
    """
    mean, absent = moments.mean, moments.counts == 0
    if kind == "means":
        weight = (moments.class_means - mean).masked_fill(absent[:, None], 0.0)
        bias = (-weight.square().sum(-1) / 2).masked_fill(absent, -torch.inf)
        return LinearProbe(weight, bias, mean)
    covariance = moments.covariance
    size = covariance.diagonal().mean()
    # a covariance of low rank has eigenvalues too small for normal numbers, which take a hundred times as long
    values, vectors = decompositions.eigh(covariance + penalty * size * torch.eye(len(mean)).to(covariance))
    # of a covariance none is below zero but by rounding; a direction without variance says nothing
    varies = values - penalty * size > size * 1e-12
    inverse = torch.where(varies, 1 / values, 0.0)
    weight = ((vectors * inverse) @ (vectors.mT @ moments.cross_covariance)).mT
    shares = (moments.counts / moments.count).masked_fill(absent, -torch.inf)
    return LinearProbe(weight, shares, mean)


def logistic(
    rows: Float[Tensor, "row width"], labels: Int[Tensor, " row"], n_classes: int, penalty: float
) -> LinearProbe:
    """Return the probe of logistic regression.

    Args:
        rows: To fit it to.
        labels: Their classes.
        n_classes: How many there are.
        penalty: On half the squared length of W, per row; rows are divided by the standard deviations of coordinates.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    try:
        # of the extra `learn`
        from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra(
            "probes of kind \"logistic\" need scikit-learn: pip install 'glassformer[learn]'."
        ) from error
    rows = rows.double()
    mean, deviation = rows.mean(0), rows.std(0, correction=0)
    deviation = deviation.masked_fill(deviation == 0, 1.0)
    there = labels.unique()
    weight = rows.new_zeros(n_classes, rows.shape[1])
    bias = rows.new_full((n_classes,), -torch.inf)
    if len(there) == 1:
        bias[there] = 0.0
        return LinearProbe(weight, bias, mean)
    model: Any = LogisticRegression(C=1 / (penalty * len(rows)), max_iter=1000)
    model.fit(((rows - mean) / deviation).numpy(), labels.numpy())
    found, at = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    if len(there) == 2:
        # one score stands for the difference of two
        found, at = torch.cat((-found / 2, found / 2)), torch.cat((-at / 2, at / 2))
    weight[there], bias[there] = found / deviation, at
    return LinearProbe(weight, bias, mean)
