"""Hidden units that can be exchanged: a soft committee, and the amount of data from which on its units are unlike.

    y(x) = sum_i f(w_i . x / sqrt(N)) / sqrt(K),      i = 1 … K units, N inputs, x normal
    E(w) = sum of P examples (y(x) - y*(x))^2 / 2 + T sum_i |w_i|^2 / 2

A teacher y* of the same form has orthogonal b_j of length sqrt(N). Exchanging units changes neither y nor E, so that
gradient descent keeps units alike that begin alike. In the Gibbs distribution exp(-E / T) they are alike on average
for few data, and each takes a unit of the teacher for its own beyond a threshold: the symmetry breaks.

All that counts, for large N, are overlaps Q_ij = w_i . w_j / N and R_ij = w_i . b_j / N. At a high temperature what is
seen of the examples is their mean, and with a = P / (N T), the amount of data, the overlaps are those where

    phi(Q, R) = a e(Q, R) + tr Q / 2 - logdet(Q - R R') / 2,      e = <(y - y*)^2> / 2

is least. The mean e is of normal pairs: <f(u) f(v)> with the covariance Q_ij, R_ij or 1_ij, by quadrature. R has r on
its diagonal and s elsewhere, and r - s is the order. Weights that have found their place have T / 2 each: a e comes to
K / 2 for many data.

Axes: `unit` are the student's hidden units, `teacher` those of the teacher, `input` what they read.
Source: Biehl, Schloesser and Ahr 1998, "Phase transitions in soft-committee machines" (cond-mat/9805182), where weights
are on a sphere; their cond-mat/9901179 of 1999, for weight decay in place of the sphere; Hou, Wong and Huang 2019,
"Minimal model of permutation symmetry in unsupervised learning" (1904.13052), for data as what breaks the symmetry.
"""

import itertools
from typing import Literal, NamedTuple

import numpy
import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, FiniteAmount, checked
from glassformer.dynamics.quadratic_loss import local_minimum
from glassformer.errors import ShapeMismatch
from glassformer.models.mlp import ACTIVATIONS

# those without a kink, for which quadrature of few nodes is good to rounding, nearly
Smooth = Literal["gelu", "gelu_tanh", "gelu_sigmoid", "silu", "tanh", "none"]
NODES = 24


class Overlaps(NamedTuple):
    """Scalar products of weight vectors, divided by the number of inputs.

    Args:
        own: Q, of the student's units with each other.
        shared: R, of the student's with the teacher's.
    """

    own: Float[Tensor, "*batch unit unit"]
    shared: Float[Tensor, "*batch unit teacher"]


@checked
def committee_overlaps(
    student: Float[Tensor, "*batch unit input"], teacher: Float[Tensor, "teacher d_teacher"]
) -> Overlaps:
    """The overlaps of units.

    Args:
        student: Weights, a row for each unit.
        teacher: Those that it learns from.

    Raises:
        ShapeMismatch: Both do not read as many inputs.
    """
    n = student.shape[-1]
    if n != teacher.shape[-1]:
        raise ShapeMismatch(f"a student of {n} inputs and a teacher of {teacher.shape[-1]}: both must read the same.")
    return Overlaps(student @ student.mT / n, student @ teacher.mT / n)


@checked
def specialisation(shared: Float[Tensor, "*batch unit teacher"]) -> Float[Tensor, "*batch"]:
    """The order: how much more units overlap with their own unit of the teacher than with others, at the best match.

    It is 0 where units are alike and 1 where they are the teacher's; of a random student it is of the size of
    1 / sqrt(input).

    Args:
        shared: R, of two units or more and as many of the teacher.

    Raises:
        ShapeMismatch: There is one unit, or as many of the teacher are not there.
    """
    k, of_teacher = shared.shape[-2:]
    if k < 2 or k != of_teacher:
        raise ShapeMismatch(f"an order is of two units or more and as many of the teacher; found {k} and {of_teacher}.")
    rows = torch.arange(k, device=shared.device)
    matched = torch.stack([shared[..., rows, list(match)].mean(-1) for match in itertools.permutations(range(k))])
    # others have what the whole has less the matched ones
    return (k * matched.amax(0) - shared.sum((-2, -1)) / k) / (k - 1)


@checked
def committee_error(overlaps: Overlaps, activation: Smooth = "gelu") -> Float[Tensor, ""]:
    """The e of the equations: half the mean squared error on new examples, of a student with these overlaps.

    Args:
        overlaps: Of one student with a teacher whose units are orthogonal, of length sqrt(input).
        activation: The f, without a kink.

    Raises:
        ShapeMismatch: Student and teacher do not have as many units.
    """
    if overlaps.shared.shape != overlaps.own.shape:
        raise ShapeMismatch(
            f"a student of {len(overlaps.own)} units, which has overlaps of shape {tuple(overlaps.shared.shape)} with "
            "its teacher: both must have as many units."
        )
    return _error(overlaps, activation)


class CommitteeState(NamedTuple):
    """Where the overlaps of a committee come to.

    Args:
        overlaps: Q and R.
        error: The e there.
        free_energy: The phi there.
    """

    overlaps: Overlaps
    error: float
    free_energy: float

    @property
    def order(self) -> float:
        """The size of r - s, by which units are unlike."""
        shared = self.overlaps.shared
        return abs(float(shared[0, 0] - shared[0, 1]))


@checked
def committee_state(
    amount: FiniteAmount, activation: Smooth = "gelu", *, n_units: Count = 2, alike: bool = False
) -> CommitteeState:
    """The overlaps where the free energy is least, of many inputs at a high temperature.

    Args:
        amount: The a: examples over inputs and temperature.
        activation: The f, without a kink.
        n_units: The K, two or more.
        alike: Whether units are held to be alike, r = s, whether or not that is least.

    Raises:
        ShapeMismatch: There is one unit.
        NotConverged: No minimum was found: at the threshold itself it is flat.
    """
    if n_units < 2:
        raise ShapeMismatch(f"units are alike or unlike where there are two or more; found n_units={n_units}.")

    def phi(numbers: Tensor) -> Tensor:
        return _free_energy(numbers, amount, activation, n_units)

    found: list[CommitteeState] = []
    for start in ((-0.5, -0.5, 0.3),) if alike else ((-0.5, -0.5, 0.3), (-1.5, -1.5, 0.8, 0.1)):
        numbers = local_minimum(phi, torch.tensor(start, dtype=torch.float64)).minimum
        overlaps = _overlaps(numbers, n_units)
        found.append(CommitteeState(overlaps, float(_error(overlaps, activation)), float(phi(numbers))))
    # rounding must not choose between two that are one
    return min(found, key=lambda state: round(state.free_energy, 10))


def _overlaps(numbers: Tensor, k: int) -> Overlaps:
    """Return the overlaps of logarithms of both eigenvalues of Q - R R', of r and, unless it is the same, of s."""
    across, along, r, s = (*numbers, numbers[-1]) if len(numbers) == 3 else numbers
    one, all_alike = torch.eye(k).to(numbers), torch.ones(k, k).to(numbers)
    shared = (r - s) * one + s * all_alike
    own_part = across.exp() * one + (along.exp() - across.exp()) / k * all_alike
    return Overlaps(own_part + shared @ shared.mT, shared)


def _free_energy(numbers: Tensor, amount: float, activation: Smooth, k: int) -> Tensor:
    overlaps = _overlaps(numbers, k)
    entropy = ((k - 1) * numbers[0] + numbers[1]) / 2
    return amount * _error(overlaps, activation) + overlaps.own.diagonal().sum() / 2 - entropy


def _error(overlaps: Overlaps, activation: Smooth) -> Tensor:
    own, shared = overlaps
    k = len(own)
    teachers = torch.eye(k).to(own)
    both = torch.cat((torch.cat((own, shared), 1), torch.cat((shared.mT, teachers), 1)))
    signs = torch.cat((torch.ones(k), -torch.ones(k))).to(own)
    return signs @ _of_pairs(both, activation) @ signs / (2 * k)


def _of_pairs(covariance: Tensor, activation: Smooth) -> Tensor:
    """Return <f(u) f(v)> for each pair of normal numbers with a covariance."""
    nodes, weights = numpy.polynomial.hermite_e.hermegauss(NODES)
    x, w = (torch.from_numpy(of).to(covariance) for of in (nodes, weights / weights.sum()))
    f, variance = ACTIVATIONS[activation], covariance.diagonal()
    first, slope = variance[:, None, None, None].sqrt(), (covariance / variance[:, None].sqrt())[..., None, None]
    # of a number with itself nothing is left but rounding, whose root has no slope
    rest = (variance - covariance.square() / variance[:, None]).clamp_min(1e-15).sqrt()[..., None, None]
    u, v = first * x[:, None], slope * x[:, None] + rest * x
    return (w[:, None] * w * f(u) * f(v)).sum((-2, -1))
