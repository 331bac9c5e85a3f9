"""Fréchet distance: how far apart two sets of points are, each taken for a normal distribution.

    F = (m_1 - m_2)^2 + tr(C_1 + C_2 - 2 (C_1 C_2)^(1/2))

It is the squared Wasserstein distance of both normal distributions. Of few points in many dimensions it is too large,
and the more so the fewer there are: only sets of equal sizes compare.
Source: Dowson and Landau 1982, "The Fréchet Distance between Multivariate Normal Distributions"; Heusel et al. 2017
(1706.08500), who take it of features of a network.
"""

import math

from jaxtyping import Float
from torch import Tensor

from glassformer.numerics.decompositions import singular_values, triangular


def frechet_distance(one: Float[Tensor, "sample feature"], other: Float[Tensor, "other_sample feature"]) -> float:
    """Return the Fréchet distance of two sets of points, in the square of their unit.

    Args:
        one: Two points or more, of any features.
        other: Of the same features.
    """
    (first, at_first), (second, at_second) = map(_spread, (one.double(), other.double()))
    # with C = R' R the roots of the eigenvalues of C_1 C_2 are the singular values of R_1 R_2'
    shared = singular_values(triangular(first) @ triangular(second).T).sum()
    apart = (at_first - at_second).square().sum()
    return float(apart + first.square().sum() + second.square().sum() - 2 * shared)


def _spread(
    points: Float[Tensor, "sample feature"],
) -> tuple[Float[Tensor, "sample feature"], Float[Tensor, " feature"]]:
    """Return points less their mean, whose products with each other are the covariance, and the mean."""
    mean = points.mean(0)
    return (points - mean) / math.sqrt(len(points) - 1), mean
