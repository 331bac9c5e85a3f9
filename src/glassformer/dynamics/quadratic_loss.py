"""A loss near its minimum, up to second order: where steps come to there, and how a minimum is found.

    L(theta) = (theta - m) H (theta - m) / 2,    H u_i = k_i u_i

of which the Gibbs distribution exp(-L / T) is normal with covariance T / H, Langevin dynamics is Ornstein and
Uhlenbeck's process, and steps theta - eta P g with a noise of covariance N in g leave the covariance S as it is where

    S = A S A' + eta^2 P N P + 2 T eta P,     A = 1 - eta P H

In coordinates P^(-1/2) theta the mobility P is 1, and in eigenvectors of H there

    S_ij = (eta N_ij + 2 T delta_ij) / (k_i + k_j - eta k_i k_j)     so long as eta k < 2

Axes: `parameter` of one vector of weights, `direction` are eigenvectors of H, `chain` copies of the weights.
Source: Gardiner 2009, "Stochastic Methods", section 4.5, for the process; Mandt, Hoffman and Blei 2017 (1704.04289),
section 3.2, for S in the limit of short steps.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, FiniteAmount, Positive, checked
from glassformer.dynamics.weight_space import Loss
from glassformer.errors import NotConverged, ShapeMismatch, WrongArgument
from glassformer.numerics.decompositions import eigh, solve


@checked
@dataclass(frozen=True, eq=False)
class QuadraticLoss:
    """A loss near a minimum, `(x - m) H (x - m) / 2`: the case in which all of it is known.

    Args:
        hessian: The H, symmetric and positive definite.
        minimum: The m.

    Raises:
        WrongArgument: H is not symmetric, or there is a direction along which it is not above zero: no Gibbs
            distribution is of finite weight then.
        ShapeMismatch: H and m are of unlike sizes.
    """

    hessian: Float[Tensor, "parameter parameter"]
    minimum: Float[Tensor, " parameter"]

    def __post_init__(self) -> None:
        if len(self.hessian) != len(self.minimum):
            raise ShapeMismatch(f"a Hessian of {len(self.hessian)} rows at a point of {len(self.minimum)} numbers.")
        definite_parts(self.hessian, "hessian=", " Weight decay d |x|^2 / 2 in the loss adds d to each.")

    def __call__(self, x: Float[Tensor, "*chain parameter"]) -> Float[Tensor, "*chain"]:
        away = x - self.minimum
        return (away @ self.hessian * away).sum(-1) / 2

    @property
    def curvatures(self) -> Float[Tensor, " direction"]:
        """The k, rising."""
        return eigh(self.hessian)[0]

    @property
    def directions(self) -> Float[Tensor, "parameter direction"]:
        """Eigenvectors of the Hessian, in the order of `curvatures`."""
        return eigh(self.hessian)[1]

    def gibbs(self, temperature: Positive) -> Float[Tensor, "parameter parameter"]:
        """The covariance of the Gibbs distribution, `T / H`."""
        return temperature * solve(self.hessian, _one(self.hessian))

    def flow(
        self, x: Float[Tensor, "chain parameter"], time: Positive, temperature: FiniteAmount, seed: int = 0
    ) -> Float[Tensor, "chain parameter"]:
        """Langevin dynamics over a time of any length, without the error of steps: Ornstein and Uhlenbeck's process.

        Args:
            x: Where chains are.
            time: How long.
            temperature: The T.
            seed: Of the noise.
        """
        k, u = eigh(self.hessian)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
        spread = (-temperature * (-2 * time * k).expm1() / k).sqrt()
        return self.minimum + ((x - self.minimum) @ u * (-time * k).exp() + spread * noise) @ u.mT

    def covariance(
        self,
        step: Positive,
        *,
        temperature: FiniteAmount = 0.0,
        noise: Float[Tensor, "parameter parameter"] | None = None,
        mobility: Float[Tensor, "parameter parameter"] | None = None,
    ) -> Float[Tensor, "parameter parameter"]:
        """The S of the equations: the covariance of positions that steps leave as it is.

        Args:
            step: The eta.
            temperature: The T.
            noise: Covariance of the noise of gradients, C / B of batches; None for none.
            mobility: The P; None for 1.

        Raises:
            WrongArgument: A step is as long as 2 / k or longer for some direction, so that there is no such
                covariance; or the mobility is not symmetric and positive definite.
            ShapeMismatch: Noise or mobility are of another number of parameters.
        """
        for name, matrix in (("noise=", noise), ("mobility=", mobility)):
            if matrix is not None and len(matrix) != len(self.hessian):
                raise ShapeMismatch(f"{name} is of {len(matrix)} parameters, and the loss is of {len(self.hessian)}.")
        root = _one(self.hessian) if mobility is None else root_of(mobility)
        k, u = eigh(root @ self.hessian @ root)
        if step * float(k[-1]) >= 2:
            raise WrongArgument(
                f"steps of {step:g} along a curvature of {float(k[-1]):.3g} end nowhere: step= must be below "
                f"{2 / float(k[-1]):.3g}, which is 2 / k."
            )
        jitter = 2 * temperature / step * _one(self.hessian)
        if noise is not None:
            jitter = jitter + u.mT @ root @ noise @ root @ u
        spread = step * jitter / (k[:, None] + k - step * k[:, None] * k)
        return root @ u @ spread @ u.mT @ root

    def temperatures(self, covariance: Float[Tensor, "parameter parameter"]) -> Float[Tensor, " direction"]:
        """`k <x^2>` along each direction of the Hessian, of positions with a covariance."""
        k, u = eigh(self.hessian)
        return k * torch.einsum("pd,pq,qd->d", u, covariance, u)


@checked
def local_minimum(
    loss: Loss, start: Float[Tensor, " parameter"], *, tolerance: Positive = 1e-9, most: Count = 200
) -> QuadraticLoss:
    """The minimum that a loss has near some weights, and the loss there up to second order.

    By steps of Newton's, with curvatures taken as positive so that none goes up, shorter until the loss falls.

    Args:
        loss: Of one vector of weights; twice differentiable.
        start: Where to begin: trained weights.
        tolerance: Largest slope that is left.
        most: Steps after which it is given up.

    Raises:
        NotConverged: The slope is still larger then.
        WrongArgument: Where the slope is zero there is a direction without curvature.
    """
    with torch.no_grad():
        return _descended(loss, start.detach(), tolerance, most)


def _descended(loss: Loss, x: Tensor, tolerance: float, most: int) -> QuadraticLoss:
    slope_of, hessian_of, size = torch.func.grad(loss), torch.func.hessian(loss), math.inf
    for _ in range(most):
        slope, hessian = slope_of(x), hessian_of(x)
        size = float(slope.abs().max())
        if size <= tolerance:
            return QuadraticLoss((hessian + hessian.mT) / 2, x)
        k, u = eigh((hessian + hessian.mT) / 2)
        # along flat directions no step is longer than a curvature of a thousandth of the largest would have it
        along = k.abs().clamp_min(1e-3 * float(k.abs().max()))
        direction, value = -u @ ((u.mT @ slope) / along), float(loss(x))
        gain = float(slope @ direction)
        # what is too little to be seen in the loss is left to the slope
        unseen = math.sqrt(torch.finfo(x.dtype).eps) * (1 + abs(value))
        while -gain > unseen and float(loss(x + direction)) > value + 1e-4 * gain:
            direction, gain = direction / 2, gain / 2
        x = x + direction
    raise NotConverged(
        f"local_minimum: after {most} steps the loss still has a slope of {size:.2g}. Begin with trained weights in "
        "float64, or take a larger most=, or a larger tolerance=."
    )


def _one(like: Tensor) -> Tensor:
    return torch.eye(len(like), dtype=like.dtype, device=like.device)


def definite_parts(matrix: Tensor, name: str, otherwise: str = "") -> tuple[Tensor, Tensor]:
    """Return eigenvalues, rising, and eigenvectors of a matrix that is symmetric and positive definite."""
    uneven = float((matrix - matrix.mT).abs().max())
    if uneven > 1e-6 * float(matrix.abs().max()):
        raise WrongArgument(
            f"{name} takes a symmetric matrix, such as (A + A.mT) / 2; this one differs from its transpose by "
            f"{uneven:.2g}."
        )
    values, vectors = eigh(matrix)
    if float(values[0]) <= torch.finfo(matrix.dtype).eps * len(values) * float(values[-1].abs()):
        raise WrongArgument(
            f"{name} takes a matrix that is positive definite; the least eigenvalue of this one is "
            f"{float(values[0]):.2g}.{otherwise}"
        )
    return values, vectors


def root_of(mobility: Tensor) -> Tensor:
    """Return the symmetric square root."""
    values, vectors = definite_parts(mobility, "mobility=")
    return vectors * values.sqrt() @ vectors.mT
