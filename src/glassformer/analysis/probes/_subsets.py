"""Best subsets of coordinates for least squares, from a covariance alone.

    fit(S) = c_S^T C_SS^-1 c_S / var(y)        the share of the variance of y that the coordinates in S explain, R^2

C is the covariance of coordinates, c their covariance with y. `fit` rises as S grows. All pairs and triples of a few
dozen coordinates are tried in one batch; beyond that a set is grown by the coordinate that adds most, and each member
is swapped for a better one while there is one.

Source: Gurnee et al. 2023, "Finding Neurons in a Haystack: Case Studies with Sparse Probing" (2305.01610), section 3,
whose optimum is of a hinge loss by mixed-integer programming.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.numerics import decompositions

MOST = 1 << 15  # subsets solved at once
_RIDGE = 1e-12  # of the mean variance


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """What decides how well coordinates explain a number, in float64.

    Args:
        covariance: Of coordinates.
        cross: Of coordinates with the number.
        variance: Of the number.
    """

    covariance: Float[Tensor, "width width"]
    cross: Float[Tensor, " width"]
    variance: float

    @property
    def single(self) -> Float[Tensor, " width"]:
        """Share that each coordinate explains by itself."""
        own = self.covariance.diagonal()
        return torch.where(own > 0, self.cross.square() / own.clamp_min(1e-300), 0.0) / self.variance

    def fit(self, subsets: Int[Tensor, "subset k"]) -> Float[Tensor, " subset"]:
        """Return the share that each subset explains."""
        return torch.cat([self._fit(part) for part in subsets.split(MOST)])

    def _fit(self, subsets: Int[Tensor, "subset k"]) -> Float[Tensor, " subset"]:
        return (self.cross[subsets] * self.weights(subsets)).sum(-1) / self.variance

    def weights(self, subsets: Int[Tensor, "*subset k"]) -> Float[Tensor, "*subset k"]:
        """Return the coefficients of the coordinates of each subset."""
        blocks = self.covariance[subsets[..., :, None], subsets[..., None, :]]
        # a coordinate that is the sum of others adds nothing and leaves no inverse; one that is zero has no scale
        scale = blocks.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].clamp_min(1e-300)
        blocks = blocks + _RIDGE * scale * torch.eye(subsets.shape[-1], dtype=blocks.dtype)
        return decompositions.solve(blocks, self.cross[subsets][..., None])[..., 0]


def best_of_all(problem: LeastSquares, k: int, candidates: Int[Tensor, " n"]) -> Int[Tensor, " k"]:
    """Return the best subset of a size among all of some coordinates."""
    subsets = candidates[torch.combinations(torch.arange(len(candidates)), k)]
    return subsets[problem.fit(subsets).argmax()]


def grown(problem: LeastSquares, most: int) -> Iterator[Int[Tensor, " k"]]:
    """Yield a set of each size up to the largest: the coordinate that adds most, then swaps while they help."""
    width, chosen = len(problem.cross), torch.zeros(0, dtype=torch.long)
    for _ in range(min(most, width)):
        chosen = torch.cat((chosen, _best_addition(problem, chosen)[None]))
        chosen = _swapped(problem, chosen)
        yield chosen


def _best_addition(problem: LeastSquares, chosen: Int[Tensor, " k"]) -> Int[Tensor, ""]:
    others = _without(len(problem.cross), chosen)
    return others[problem.fit(torch.cat((chosen.expand(len(others), -1), others[:, None]), 1)).argmax()]


def _swapped(problem: LeastSquares, chosen: Int[Tensor, " k"]) -> Int[Tensor, " k"]:
    """Return the set with members swapped for others, one at a time, until no swap helps."""
    best = float(problem.fit(chosen[None]))
    while len(chosen) > 1:
        found = chosen
        for i in range(len(chosen)):
            rest = torch.cat((found[:i], found[i + 1 :]))
            one = torch.cat((rest, _best_addition(problem, rest)[None]))
            # rest is without it, so that it may come back
            if (fit := float(problem.fit(one[None]))) > best * (1 + 1e-9):
                best, found = fit, torch.cat((one[:i], one[-1:], one[i:-1]))
        if found is chosen:
            break
        chosen = found
    return chosen


def _without(width: int, chosen: Int[Tensor, " k"]) -> Int[Tensor, " n"]:
    left = torch.ones(width, dtype=torch.bool)
    left[chosen] = False
    return left.nonzero()[:, 0]
