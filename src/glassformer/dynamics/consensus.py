"""Where tokens end under attention: theorems on consensus, their hypotheses looked at before their conclusions.

    x_i' = v_i - (x_i . W v_i) x_i,    v_i = sum_h U_h sum_j A^h_ij x_j,    A^h_ij = softmax_j(x_i . P_h x_j / sqrt(D))

Tokens stay on the ellipsoid x . W x = 1, and P = Q' K, U, heads h are those of a layer; P may change with time, that is
with depth. A layer is x_i <- pi(x_i + v_i), pi(x) = x / sqrt(x . W x). With a causal mask j <= i.

    3.2    one head, P constant, symmetric and positive definite, W = P, U = 1, full mask, generic start:
           V = - sum_ij exp(x_i . P x_j / sqrt(D)) falls, and tokens come to consensus
    4.1    U = 1, full mask, all tokens begin in one open half of the ellipsoid: consensus
    5.1    U = 1, causal mask, generic start: all come to where the first begins
    6.1    one head, U constant and symmetric with a largest eigenvalue that is simple and above zero, W = 1, causal
           mask, all begin on one side of that eigenvector: all come to the eigenvector on that side

That P is bounded and smooth, as 4.1, 5.1 and 6.1 ask, cannot be seen of a function of time; that it is finite is.
What the text of 6.1 asks of U beyond symmetry is stated here as it was found to be needed.
Axes: `token d_model` with anything in front; a token is a row x, and a matrix M acts as M x.
Source: Rodriguez Abella, Silvestre and Tabuada 2024, "The Asymptotic Behavior of Attention in Transformers"
(2412.02682), theorems 3.2, 4.1, 5.1 and 6.1. Pairs of opposite tokens rest: the counterexample to all starts.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Positive, Several, checked
from glassformer.dynamics.particles import runge_kutta
from glassformer.errors import ShapeMismatch, WrongArgument
from glassformer.numerics.decompositions import eigh

TheoremName = Literal["3.2", "4.1", "5.1", "6.1"]
# constant, or a function of time
Weights = Float[Tensor, "d_model d_model"] | Callable[[float], Tensor]
NEAR = 1e-6  # of what counts as equal in hypotheses


@checked
@dataclass(frozen=True, eq=False)
class EllipsoidHead:
    """A head of attention on an ellipsoid.

    Args:
        scores: The P of the equation, or a function from time to it.
        value: The U; None for 1.
    """

    scores: Weights
    value: Weights | None = None

    def at(self, time: float) -> tuple[Tensor, Tensor | None]:
        """Its matrices at a time."""
        scores, value = (given(time) if callable(given) else given for given in (self.scores, self.value))
        assert scores is not None
        return scores, value


@checked
@dataclass(frozen=True, eq=False)
class EllipsoidAttention:
    """Attention on an ellipsoid, as a flow.

    Args:
        heads: Its heads.
        metric: The W of the equation, symmetric and positive definite; None for 1, the sphere.
        causal: Whether a token sees those before it and itself only.

    Raises:
        WrongArgument: The metric is not symmetric, or not positive definite.
        ShapeMismatch: When tokens are given, a matrix is not as wide as they are.
    """

    heads: Several[EllipsoidHead]
    metric: Float[Tensor, "d_model d_model"] | None = None
    causal: bool = False

    def __post_init__(self) -> None:
        if self.metric is not None and not _positive(self.metric):
            raise WrongArgument(
                "metric= of an ellipsoid must be symmetric and positive definite; this one is not. M @ M.mT + 0.1 is, "
                "of any square M, and None is the sphere."
            )

    def onto(self, x: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch token d_model"]:
        """Tokens moved along their own directions onto the ellipsoid."""
        return x / (x * self._measured(x)).sum(-1, keepdim=True).sqrt()

    def pull(self, time: float, x: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch token d_model"]:
        """What heads write at a time, the v of the equation."""
        found = torch.zeros_like(x)
        for head in self.heads:
            scores, value = head.at(time)
            _require_width(x, scores, value)
            products = x @ scores @ x.mT / math.sqrt(x.shape[-1])
            if self.causal:
                products = products.masked_fill(torch.ones_like(products, dtype=torch.bool).triu(1), -math.inf)
            mixed = products.softmax(-1) @ x
            found = found + (mixed if value is None else mixed @ value.mT)
        return found

    def drift(self, time: float, x: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch token d_model"]:
        """The velocity of each token at a time."""
        v = self.pull(time, x)
        return v - (x * self._measured(v)).sum(-1, keepdim=True) * x

    def layer(
        self, x: Float[Tensor, "*batch token d_model"], time: float = 0.0
    ) -> Float[Tensor, "*batch token d_model"]:
        """Tokens after a layer: attention, a residual, a norm."""
        return self.onto(x + self.pull(time, x))

    def flow(
        self, x: Float[Tensor, "*batch token d_model"], until: Positive, length: Positive = 0.05
    ) -> Float[Tensor, "step *batch token d_model"]:
        """Tokens at the start and after each step of fourth order, to a time."""
        path = [x]
        for step in range(math.ceil(until / length)):
            path.append(self.onto(runge_kutta(self.drift, step * length, path[-1], length)))
        return torch.stack(path)

    def potential(self, x: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch"]:
        """The V of theorem 3.2, at time 0.

        Raises:
            ShapeMismatch: The matrix of the head is not as wide as tokens are.
            WrongArgument: There are several heads: it is of one.
        """
        if len(self.heads) != 1:
            raise WrongArgument(f"potential: of one head; found {len(self.heads)}. Theorem 3.2 has one.")
        scores = self.heads[0].at(0.0)[0]
        _require_width(x, scores)
        return -(x @ scores @ x.mT / math.sqrt(x.shape[-1])).exp().sum((-2, -1))

    def _measured(self, x: Tensor) -> Tensor:
        _require_width(x, self.metric)
        return x if self.metric is None else x @ self.metric


@dataclass(frozen=True, eq=False)
class TheoremCheck:
    """What was seen of a theorem.

    Args:
        theorem: Its number.
        hypotheses: What it asks, and whether that is so.
        distance: How far the furthest token is from where the theorem has all end, at each step.
        potential: The V of theorem 3.2 at each step; None for others.
    """

    theorem: TheoremName
    hypotheses: Mapping[str, bool]
    distance: Float[Tensor, " step"]
    potential: Float[Tensor, " step"] | None

    @property
    def applies(self) -> bool:
        """Whether all that it asks is so; of others nothing is claimed."""
        return all(self.hypotheses.values())

    def reached(self, distance: float = 1e-4) -> bool | None:
        """Whether tokens ended as near as that to where the theorem has them end; None if it does not apply."""
        return bool(self.distance[-1] < distance) if self.applies else None


@checked
def check_theorem(
    theorem: TheoremName,
    system: EllipsoidAttention,
    start: Float[Tensor, "token d_model"],
    *,
    until: Positive = 60.0,
    length: Positive = 0.1,
) -> TheoremCheck:
    """Look at what a theorem asks of a system and a start, then at where the tokens end.

    They are followed whether or not the theorem applies, so that what is asked can be dropped.

    Args:
        theorem: Its number in the paper.
        system: The attention.
        start: Where tokens begin; they are moved onto the ellipsoid.
        until: When to stop.
        length: Of a step.

    Raises:
        ShapeMismatch: A matrix of the system is not as wide as tokens are.
    """
    x = system.onto(start)
    asked = hypotheses(theorem, system, x)
    path = system.flow(x, until, length)
    end = _end(theorem, system, path)
    potential = system.potential(path) if theorem == "3.2" and len(system.heads) == 1 else None
    return TheoremCheck(theorem, asked, (path - end).norm(dim=-1).amax(-1), potential)


@checked
def hypotheses(theorem: TheoremName, system: EllipsoidAttention, x: Float[Tensor, "token d_model"]) -> dict[str, bool]:
    """What a theorem asks, and whether a system and tokens on its ellipsoid have it.

    Args:
        theorem: Its number in the paper.
        system: The attention.
        x: Where tokens begin.

    Raises:
        ShapeMismatch: A matrix of the system is not as wide as tokens are.
    """
    _require_width(x, system.metric, *(matrix for head in system.heads for matrix in head.at(0.0)))
    heads, one = system.heads, torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    given = [head.value for head in heads]
    plain = all(u is None or (isinstance(u, Tensor) and torch.allclose(u, one)) for u in given)
    mask = {"causal mask": system.causal} if theorem in ("5.1", "6.1") else {"full mask": not system.causal}
    if theorem == "3.2":
        scores, metric = heads[0].scores, one if system.metric is None else system.metric
        constant = isinstance(scores, Tensor)
        return mask | {
            "one head": len(heads) == 1,
            "P constant": constant,
            "P symmetric and positive definite": isinstance(scores, Tensor) and _positive(scores),
            "W = P": isinstance(scores, Tensor) and torch.allclose(metric, scores),
            "U = 1": plain,
            "no two tokens opposite": not _opposite(x, x),
        }
    finite = all(bool(matrix.isfinite().all()) for head in heads for matrix in head.at(0.0) if matrix is not None)
    if theorem == "4.1":
        return mask | {"P finite": finite, "U = 1": plain, "all tokens in one open half": in_one_half(x)}
    if theorem == "5.1":
        return mask | {"P finite": finite, "U = 1": plain, "no token opposite the first": not _opposite(x, x[:1])}
    axis = _axis(system, x)
    sides = None if axis is None else (x @ axis).sign()
    one_side = sides is not None and bool((sides == sides[0]).all() and sides[0] != 0)
    return mask | {
        "one head": len(heads) == 1,
        "P finite": finite,
        "W = 1": system.metric is None or torch.allclose(system.metric, one),
        "U constant, symmetric, its largest eigenvalue simple and above zero": axis is not None,
        "all tokens on one side of its eigenvector": one_side,
    }


@checked
def in_one_half(x: Float[Tensor, "token d_model"]) -> bool:
    """Whether some plane through the middle has all tokens strictly on one side, as far as a perceptron finds one.

    Args:
        x: Tokens, of any length.
    """
    directions = x / x.norm(dim=-1, keepdim=True)
    normal = directions.mean(0)
    for _ in range(1000):
        sides = directions @ normal
        worst = int(sides.argmin())
        if sides[worst] > 0:
            return True
        normal = normal + directions[worst]
    return False


def _end(theorem: TheoremName, system: EllipsoidAttention, path: Tensor) -> Tensor:
    """Return where a theorem has all tokens end: a place, or at each step the first token."""
    if theorem == "5.1":
        return path[0, :1]
    if theorem == "6.1":
        axis = _axis(system, path[0])
        if axis is not None:
            return torch.where(path[0, 0] @ axis < 0, -axis, axis)
    return path[:, :1]


def _axis(system: EllipsoidAttention, x: Tensor) -> Tensor | None:
    """Return the eigenvector of 6.1, if there is one."""
    value = system.heads[0].value
    value = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) if value is None else value
    if not isinstance(value, Tensor) or not torch.allclose(value, value.mT):
        return None
    sizes, vectors = eigh(value)
    simple = len(sizes) == 1 or sizes[-1] - sizes[-2] > NEAR
    return vectors[:, -1] if sizes[-1] > NEAR and simple else None


def _opposite(x: Tensor, others: Tensor) -> bool:
    return bool(((x[:, None] + others).norm(dim=-1) < NEAR * x.norm(dim=-1)[:, None]).any())


def _require_width(x: Tensor, *matrices: Tensor | None) -> None:
    width = x.shape[-1]
    for matrix in matrices:
        if matrix is not None and tuple(matrix.shape) != (width, width):
            raise ShapeMismatch(
                f"tokens of width {width} for a matrix of shape {tuple(matrix.shape)}: metric, scores and value of an "
                f"ellipsoid's attention must be {width} by {width}."
            )


def _positive(matrix: Tensor) -> bool:
    return torch.allclose(matrix, matrix.mT) and bool(eigh(matrix)[0][0] > 0)
