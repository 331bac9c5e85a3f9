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
is in a model that fits, k <x^2> is proportional to k: positions spread alike, and temperatures do not. With steps of
Newton's, P = 1 / H, it is the other way round: theirs is a Gibbs distribution where C is proportional to H, and only
there. (All of it in the limit of short steps; the equations above have what finite ones add.)

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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Count, FiniteAmount, Natural, Positive, checked
from glassformer.errors import NotConverged, ShapeMismatch, TrainingDiverged, WrongArgument, nearest
from glassformer.numerics.decompositions import eigh, is_finite, solve

Loss = Callable[[Tensor], Tensor]  # of one vector of weights
ExampleLoss = Callable[[Tensor, Tensor], Tensor]  # of one vector and the numbers of some examples, their mean
Gradients = Callable[[Tensor, torch.Generator], Tensor]  # of the weights of all chains


@checked
@dataclass(frozen=True, eq=False)
class WeightSpace:
    """Named parameters of a model as one vector, and the model as a function of it.

    Args:
        model: Any module, in evaluation mode.
        names: Which parameters; all by default. The others stay as they are.

    Raises:
        WrongArgument: The model has no such parameter, or is in training mode.
    """

    model: nn.Module
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        own = dict(self.model.named_parameters())
        for name in self.names or ():
            if name not in own:
                raise WrongArgument(f'the model has no parameter "{name}".{nearest(name, own)}')
        if self.model.training:
            raise WrongArgument(
                "a loss is the same at each call: a model in training mode draws its dropout anew. Call model.eval()."
            )

    def vector(self) -> Float[Tensor, " parameter"]:
        """The model's own weights."""
        return torch.cat([p.detach().flatten() for p in self._parameters().values()])

    def named(self, vector: Float[Tensor, " parameter"]) -> dict[str, Tensor]:
        """Weights by the names of parameters.

        Raises:
            ShapeMismatch: There are more or fewer numbers than the parameters have.
        """
        own = self._parameters()
        sizes = [p.numel() for p in own.values()]
        if vector.shape[-1] != sum(sizes):
            raise ShapeMismatch(f"{vector.shape[-1]} numbers for parameters that have {sum(sizes)}: give one for each.")
        return {name: part.view(p.shape) for (name, p), part in zip(own.items(), vector.split(sizes))}

    def __call__(self, vector: Float[Tensor, " parameter"], *inputs: Any) -> Any:
        """What the model makes of inputs with these weights."""
        return torch.func.functional_call(self.model, self.named(vector), inputs)

    def _parameters(self) -> dict[str, nn.Parameter]:
        own = dict(self.model.named_parameters())
        return own if self.names is None else {name: own[name] for name in self.names}


@checked
def loss_gradients(loss: Loss) -> Gradients:
    """Gradients of a loss at the weights of all chains, side by side by `torch.func.vmap`.

    A kernel that knows no such thing, as that of attention, is asked for one chain after another; PyTorch says so.

    Args:
        loss: Of one vector of weights, a number; differentiable.
    """
    of_all = torch.func.vmap(torch.func.grad(loss))
    return lambda x, generator: of_all(x)


@checked
def batch_gradients(losses: ExampleLoss, n_examples: Count, batch: Count) -> Gradients:
    """Gradients of batches, drawn for each chain by itself, with replacement, so that their noise has covariance C / B.

    Args:
        losses: Of one vector of weights and the numbers of some examples, their mean; differentiable.
        n_examples: How many examples there are.
        batch: How many are drawn, the B.
    """
    of_all = torch.func.vmap(torch.func.grad(losses))

    def gradients(x: Tensor, generator: torch.Generator) -> Tensor:
        return of_all(x, torch.randint(n_examples, (len(x), batch), generator=generator).to(x.device))

    return gradients


@checked
def gradient_noise(
    losses: ExampleLoss, n_examples: Count, weights: Float[Tensor, " parameter"]
) -> Float[Tensor, "parameter parameter"]:
    """The C of the equations: covariance of the gradients of single examples.

    Args:
        losses: As in `batch_gradients`.
        n_examples: How many examples there are.
        weights: Where.
    """
    examples = torch.arange(n_examples, device=weights.device)[:, None]
    with torch.no_grad():
        each = torch.func.vmap(torch.func.grad(losses), (None, 0))(weights, examples)
    centred = each - each.mean(0)
    return centred.mT @ centred / n_examples


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
    mobility: Float[Tensor, "parameter parameter"] | None = None,
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
    """
    generator = torch.Generator().manual_seed(seed)
    root = None if mobility is None else _root(mobility)
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
def balance_temperatures(chains: Chains, step: Positive, around: Float[Tensor, " parameter"]) -> ChainMeans:
    """Temperatures by the balance of a stationary state, `<(x - m) g> - eta <g^2> / 2`, parameter by parameter.

    They need no Hessian, and hold of any loss and any step, with mobility 1. Of chains that are moved by batches they
    are 0.

    Args:
        chains: They, in the stationary state.
        step: The eta they were run with.
        around: The m: the nearer to their mean, the smaller the error.
    """
    return chain_means((chains.positions - around) * chains.gradients - step * chains.gradients.square() / 2)


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
        _definite(self.hessian, "hessian=", " Weight decay d |x|^2 / 2 in the loss adds d to each.")

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
        """
        root = _one(self.hessian) if mobility is None else _root(mobility)
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

    def measured(self, positions: Float[Tensor, "sample chain parameter"]) -> ChainMeans:
        """`k <x^2>` along each direction of the Hessian, of chains."""
        k, u = eigh(self.hessian)
        return chain_means(k * ((positions - self.minimum) @ u).square())


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
    slope_of, hessian_of = torch.func.grad(loss), torch.func.hessian(loss)
    value, size = float(loss(x)), math.inf
    for _ in range(most):
        slope, hessian = slope_of(x), hessian_of(x)
        size = float(slope.abs().max())
        if size <= tolerance:
            return QuadraticLoss((hessian + hessian.mT) / 2, x)
        k, u = eigh((hessian + hessian.mT) / 2)
        # along flat directions no step is longer than a curvature of a thousandth of the largest would have it
        along = k.abs().clamp_min(1e-3 * float(k.abs().max()))
        direction, length = -u @ ((u.mT @ slope) / along), 1.0
        gain, rounding = float(slope @ direction), 8 * torch.finfo(x.dtype).eps * abs(value)
        while (after := float(loss(x + length * direction))) > value + 1e-4 * length * gain + rounding:
            length /= 2
        x, value = x + length * direction, after
    raise NotConverged(
        f"local_minimum: after {most} steps the loss still has a slope of {size:.2g}. Begin with trained weights in "
        "float64, or take a larger most=, or a larger tolerance=."
    )


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


def _one(like: Tensor) -> Tensor:
    return torch.eye(len(like), dtype=like.dtype, device=like.device)


def _definite(matrix: Tensor, name: str, otherwise: str = "") -> tuple[Tensor, Tensor]:
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


def _root(mobility: Tensor) -> Tensor:
    """Return the symmetric square root."""
    values, vectors = _definite(mobility, "mobility=")
    return vectors * values.sqrt() @ vectors.mT
