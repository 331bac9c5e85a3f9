"""The Langevin view of training: weights that jitter at a temperature, and the Gibbs distribution that they come to.

    d theta = - P grad L dt + sqrt(2 T P) dW            overdamped Langevin dynamics; P is the mobility, 1 by default
    theta <- theta - eta P g + sqrt(2 T eta P) xi       its step of Euler and Maruyama, xi normal
    p(theta) = exp(-L(theta) / T) / Z                   where it comes to as eta falls, whatever P, if Z is finite

Stochastic gradient descent is that step at T = 0, with a g of few examples that brings its own noise. Near a minimum
where L is quadratic with the Hessian H, gradients whose noise has the covariance N come, if P = 1, to positions whose
covariance S does not change any more:

    S = (1 - eta H) S (1 - eta H) + eta^2 N,     in its eigenvectors    S_ij = eta N_ij / (k_i + k_j - eta k_i k_j)

so long as eta k < 2. Other P are P = 1 in coordinates P^(-1/2) theta. Langevin's steps have N = 2 T / eta, and obey
equipartition but for what a finite step adds; batches of B examples have N = C / B, with C the covariance of gradients
of single examples, and each direction has a temperature of its own:

    k <x^2> = T / (1 - eta k / 2)                        at a temperature
    k <x^2> = eta c / (2 B (1 - eta k / 2))              of batches, with c the variance of gradients along it

So SGD comes to a Gibbs distribution where C is proportional to 1, and only there. Where C is proportional to H, as it
is in a model that fits, k <x^2> is proportional to k: positions spread alike, and temperatures are unlike. With steps
of Newton's, P = 1 / H, it is the other way round: theirs is a Gibbs distribution where C is proportional to H, and
only there. (All of it in the limit of short steps; the equations above have what finite ones add.)

Whatever L, a state that steps with P = 1 leave as it is obeys, along any direction and for any m,

    <(x - m) g> - eta <g^2> / 2 = T                      (T = 0 for SGD, whose g holds its noise)

Axes: a model's weights are one vector, `parameter`; `chain` are copies with noise of their own, `sample` are steps that
were kept.
Source: Welling and Teh 2011, "Bayesian Learning via Stochastic Gradient Langevin Dynamics"; Mandt, Hoffman and Blei
2017, "Stochastic Gradient Descent as Approximate Bayesian Inference" (1704.04289), sections 3 and 4, in continuous
time; Yaida 2018, "Fluctuation-dissipation relations for stochastic gradient descent" (1810.00004), equation FDR1, here
with T.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, FiniteAmount, Natural, Positive, checked
from glassformer.dynamics.quadratic_loss import QuadraticLoss, root_of
from glassformer.dynamics.weight_space import Gradients, Loss
from glassformer.errors import ShapeMismatch, TrainingDiverged, WrongArgument
from glassformer.numerics.decompositions import is_finite


class Chains(NamedTuple):
    """Chains at the steps that were kept.

    Args:
        positions: Their weights.
        gradients: What they were moved by next: of a batch, where one was drawn.
    """

    positions: Float[Tensor, "sample chain parameter"]
    gradients: Float[Tensor, "sample chain parameter"]


@checked
def run_chains(
    gradients: Gradients,
    start: Float[Tensor, "chain parameter"],
    *,
    step: Positive,
    steps: Count,
    temperature: FiniteAmount = 0.0,
    mobility: Float[Tensor, "width width"] | None = None,
    skip: Natural = 0,
    every: Count = 1,
    seed: int = 0,
) -> Chains:
    """Steps of Euler and Maruyama, of many chains side by side; at temperature 0 those of gradient descent.

    Args:
        gradients: `loss_gradients`, `batch_gradients`, or any function of weights and a generator.
        start: Where each chain begins.
        step: The eta.
        steps: How many, beyond those skipped.
        temperature: The T.
        mobility: The P, symmetric and positive definite; None for 1.
        skip: Steps before the first that is kept.
        every: One of so many steps is kept.
        seed: Of noise and batches.

    Raises:
        TrainingDiverged: Weights are not finite in the end.
        WrongArgument: The mobility is not symmetric and positive definite.
        ShapeMismatch: It is of another number of parameters.
    """
    if mobility is not None and len(mobility) != start.shape[1]:
        raise ShapeMismatch(f"mobility= is of {len(mobility)} parameters, and the chains are of {start.shape[1]}.")
    generator = torch.Generator().manual_seed(seed)
    root = None if mobility is None else root_of(mobility)
    x, positions, slopes = start.detach().clone(), list[Tensor](), list[Tensor]()
    # weights of a model that are not among them keep no graph
    with torch.no_grad():
        for n in range(skip + steps):
            slope = gradients(x, generator)
            if n >= skip and (n - skip) % every == 0:
                positions.append(x)
                slopes.append(slope)
            moved = step * (slope if root is None else slope @ root @ root)
            if temperature > 0:
                noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
                moved = moved + math.sqrt(2 * temperature * step) * (noise if root is None else noise @ root)
            x = x - moved
    if not is_finite(x):
        raise TrainingDiverged(
            f"run_chains: weights are not finite after {skip + steps} steps of {step:g}. Below 2 / k steps are stable, "
            "with k the largest curvature: take a shorter step=, or a lower temperature=."
        )
    return Chains(torch.stack(positions), torch.stack(slopes))


class ChainMeans(NamedTuple):
    """Means over samples and chains, each with its standard error by the spread of chains.

    Args:
        mean: For each parameter or direction.
        error: Chains are independent of each other, whatever the samples of one are.
    """

    mean: Float[Tensor, " direction"]
    error: Float[Tensor, " direction"]


@checked
def chain_means(values: Float[Tensor, "sample chain direction"]) -> ChainMeans:
    """Means of what was measured on chains.

    Args:
        values: At each sample, of each chain.

    Raises:
        ShapeMismatch: There is one chain, of which there is no spread.
    """
    if values.shape[1] < 2:
        raise ShapeMismatch(f"an error takes the spread of chains; found {values.shape[1]}. Run two or more.")
    of_chains = values.mean(0)
    return ChainMeans(of_chains.mean(0), of_chains.std(0) / math.sqrt(len(of_chains)))


@checked
def position_temperatures(chains: Chains, loss: QuadraticLoss) -> ChainMeans:
    """Temperatures by positions near a minimum, `k <x^2>`, direction by direction of the Hessian.

    Args:
        chains: They, in the stationary state.
        loss: What the loss is near the minimum they are at.

    Raises:
        ShapeMismatch: There is one chain, of which there is no spread, or chains are of another number of parameters.
    """
    if chains.positions.shape[-1] != len(loss.minimum):
        raise ShapeMismatch(
            f"chains of {chains.positions.shape[-1]} parameters near the minimum of a loss of {len(loss.minimum)}."
        )
    return chain_means(loss.curvatures * ((chains.positions - loss.minimum) @ loss.directions).square())


@checked
def balance_temperatures(chains: Chains, step: Positive, around: Float[Tensor, " parameter"]) -> ChainMeans:
    """Temperatures by the balance of a stationary state, `<(x - m) g> - eta <g^2> / 2`, parameter by parameter.

    They need no Hessian, and hold of any loss and any step, with mobility 1. Of chains that are moved by batches they
    are 0.

    Args:
        chains: They, in the stationary state.
        step: The eta they were run with.
        around: The m: the nearer to their mean, the smaller the error.

    Raises:
        ShapeMismatch: There is one chain, of which there is no spread.
    """
    return chain_means((chains.positions - around) * chains.gradients - step * chains.gradients.square() / 2)


@checked
@dataclass(frozen=True, eq=False)
class LineDensity:
    """A distribution on a line, at points of equal distance.

    Args:
        points: Where.
        density: There.
    """

    points: Float[Tensor, " point"]
    density: Float[Tensor, " point"]

    def mean(self, values: Float[Tensor, " point"]) -> float:
        """The mean of numbers that are given at the points."""
        return float(torch.trapezoid(self.density * values, self.points))


@checked
def gibbs_on_line(loss: Loss, temperature: Positive, low: float, high: float, *, n_points: Count = 2001) -> LineDensity:
    """The Gibbs distribution of a loss of one weight, by quadrature.

    Args:
        loss: Of a vector of one weight.
        temperature: The T.
        low: Where the line begins.
        high: Where it ends.
        n_points: How many points.

    Raises:
        WrongArgument: The line ends before it begins, or cuts off what is not small: there is more beyond it, or the
            distribution is of no finite weight.
    """
    if not low < high:
        raise WrongArgument(f"gibbs_on_line: low= must be below high=; found {low:g} and {high:g}.")
    points = torch.linspace(low, high, max(n_points, 2), dtype=torch.float64)
    exponents = -torch.func.vmap(loss)(points[:, None]) / temperature
    weights = (exponents - exponents.max()).exp()
    if (cut := float(torch.maximum(weights[0], weights[-1]))) > 1e-6:
        raise WrongArgument(
            f"gibbs_on_line: at an end of {low:g} to {high:g} there is still {cut:.2g} of the largest density. Take a "
            "longer line; a loss that does not rise on either side has no Gibbs distribution."
        )
    return LineDensity(points, weights / torch.trapezoid(weights, points))
