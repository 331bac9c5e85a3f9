"""Fréchet distance: how far apart two sets of points are, each taken for a normal distribution.

    F = (m_1 - m_2)^2 + tr(C_1 + C_2 - 2 (C_1 C_2)^(1/2))

It is the squared Wasserstein distance of both normal distributions. Of few points in many dimensions it is too large,
and the more so the fewer there are: only sets of equal sizes compare.
Source: Dowson and Landau 1982, "The Fréchet Distance between Multivariate Normal Distributions"; Heusel et al. 2017
(1706.08500), who take it of features of a network.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.numerics.decompositions import eigh


def frechet_distance(one: Float[Tensor, "sample feature"], other: Float[Tensor, "other_sample feature"]) -> float:
    """Return the Fréchet distance of two sets of points, in the square of their unit.

    Args:
        one: Two points or more, of any features.
        other: Of the same features.
    """
    one, other = one.double(), other.double()
    first, second = (torch.atleast_2d(torch.cov(points.T)) for points in (one, other))
    # C_1 C_2 has the eigenvalues of R C_2 R, which is symmetric, R the root of C_1
    root = _root(first)
    shared = eigh(root @ second @ root)[0].clamp_min(0).sqrt().sum()
    apart = (one.mean(0) - other.mean(0)).square().sum()
    return float(apart + first.trace() + second.trace() - 2 * shared)


def _root(covariance: Float[Tensor, "feature feature"]) -> Float[Tensor, "feature feature"]:
    values, vectors = eigh(covariance)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.T
