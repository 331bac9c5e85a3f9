"""Tokens as particles on a sphere: attention attracts, a norm keeps them there, and clusters form.

    x_i' = P_i sum_j a_ij x_j V,     a_ij = exp(beta x_i B . x_j) / Z_i,     P_i v = v - (x_i . v) x_i
    Z_i = sum_k exp(beta x_i B . x_k)    (softmax),     or Z_i = n for all    (the paper's simpler one)

B is the product of query and key matrices, V that of value and output matrices; 1 for both by default. A layer with a
residual and a norm behind it is a step of Euler's of length 1. Nothing but the distribution of tokens enters, so that
this is a flow of measures. Where B = V is symmetric, the energy

    E = sum_ij exp(beta x_i B . x_j) / (2 beta n^2)

rises: dE/dt = sum_i Z_i x_i' . x_i' / n^2. With Z_i = n it is the flow of steepest ascent in Wasserstein's distance.

In many dimensions random tokens are at right angles, and all angles stay equal to each other. Their cosine g obeys

    g' = 2 e^(beta g) (1 - g) ((n - 1) g + 1) / (e^beta + (n - 1) e^(beta g))    (softmax; else divided by n)

which says when they merge. Without the sphere (no P) tokens run away, and each comes to attend to one token: a leader.
Axes: `token d_model` with anything in front; a token is a row, as everywhere here.
Source: Geshkovski, Letrouit, Polyanskiy and Rigollet 2023, "A mathematical perspective on Transformers" (2312.10794),
sections 2 to 6; the flow without a sphere and leaders: their "The emergence of clusters in self-attention dynamics"
(2305.05465), theorem 2.1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from glassformer.arguments import Amount, Count, Positive, Share, checked
from glassformer.errors import ShapeMismatch, WrongArgument


def runge_kutta(drift: Callable[[float, Any], Any], t: float, x: Any, step: float) -> Any:
    """One step of the classical method of fourth order for x' = drift(t, x), of numbers or tensors."""
    first = drift(t, x)
    second = drift(t + step / 2, x + step / 2 * first)
    third = drift(t + step / 2, x + step / 2 * second)
    fourth = drift(t + step, x + step * third)
    return x + step / 6 * (first + 2 * second + 2 * third + fourth)


@checked
@dataclass(frozen=True, eq=False)
class ParticleFlow:
    """How tokens move under attention.

    Args:
        beta: Inverse temperature; 1 / sqrt(d_head) in attention.
        softmax: Whether weights of a token sum to one; else all are divided by the number of tokens.
        scores: The B of the equation, `W_Q W_K'`; None for 1.
        value: The V of the equation, `W_V W_O`; None for 1.
        sphere: Whether tokens stay on the unit sphere.
    """

    beta: Amount = 1.0
    softmax: bool = True
    scores: Float[Tensor, "d_model d_model"] | None = None
    value: Float[Tensor, "d_model d_model"] | None = None
    sphere: bool = True

    def weights(self, x: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch token token"]:
        """How strongly each token is moved towards each other one: the pattern."""
        exponents = self.beta * self._read(x, self.scores) @ x.mT
        return exponents.softmax(-1) if self.softmax else exponents.exp() / x.shape[-2]

    def drift(self, x: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch token d_model"]:
        """The velocity of each token."""
        pulled = self._read(self.weights(x) @ x, self.value)
        return pulled - (x * pulled).sum(-1, keepdim=True) * x if self.sphere else pulled

    def step(self, x: Float[Tensor, "*batch token d_model"], length: Positive) -> Float[Tensor, "*batch token d_model"]:
        """Tokens after a time, by one step of fourth order, put back onto the sphere."""
        moved = runge_kutta(lambda _, at: self.drift(at), 0.0, x, length)
        return normalize(moved, dim=-1) if self.sphere else moved

    def layer(
        self, x: Float[Tensor, "*batch token d_model"], length: Positive = 1.0
    ) -> Float[Tensor, "*batch token d_model"]:
        """Tokens after a step of Euler's: a layer of attention, a residual, a norm. What layers do is of length 1."""
        moved = x + length * self._read(self.weights(x) @ x, self.value)
        return normalize(moved, dim=-1) if self.sphere else moved

    def flow(
        self, x: Float[Tensor, "*batch token d_model"], steps: Count, length: Positive
    ) -> Float[Tensor, "step *batch token d_model"]:
        """Tokens at the start and after each of so many steps of fourth order."""
        path = [x]
        for _ in range(steps):
            path.append(self.step(path[-1], length))
        return torch.stack(path)

    def energy(self, x: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch"]:
        """The energy, which rises along the flow.

        Raises:
            WrongArgument: B and V are not one symmetric matrix, or beta is zero: there is no such energy.
        """
        return self._of_pairs(x).exp().mean((-2, -1)) / (2 * self.beta)

    def ascent(self, x: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch"]:
        """How fast the energy rises: never below zero.

        Raises:
            WrongArgument: There is no energy, as above.
        """
        n, pairs = x.shape[-2], self._of_pairs(x)
        rate = pairs.exp().sum(-1) if self.softmax else torch.full_like(pairs[..., 0], n)
        return (rate * self.drift(x).square().sum(-1)).sum(-1) / n**2

    def _of_pairs(self, x: Tensor) -> Tensor:
        """Return exponents of the energy, if there is one."""
        one = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        scores, value = (one if matrix is None else matrix for matrix in (self.scores, self.value))
        if self.beta == 0 or not torch.allclose(scores, value) or not torch.allclose(scores, scores.mT):
            raise WrongArgument(
                "energy: this flow has none. beta= must be above zero, and scores= and value= one symmetric matrix; "
                "drift, step and flow work for all."
            )
        return self.beta * self._read(x, self.scores) @ x.mT

    def _read(self, x: Tensor, matrix: Tensor | None) -> Tensor:
        if matrix is not None and matrix.shape[0] != x.shape[-1]:
            raise ShapeMismatch(
                f"tokens of width {x.shape[-1]} for matrices of width {matrix.shape[0]}: both must be d_model."
            )
        return x if matrix is None else x @ matrix


@checked
def on_sphere(*shape: Count, seed: int = 0) -> Float[Tensor, "*batch token d_model"]:
    """Tokens drawn evenly on the unit sphere, in float64.

    Args:
        shape: Sizes: anything, tokens, dimensions.
        seed: Of the draw.
    """
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


@checked
def merged(x: Float[Tensor, "*batch token d_model"], cosine: Share = 0.999) -> Float[Tensor, "*batch"]:
    """Share of pairs of two tokens whose cosine is larger than a number.

    Args:
        x: Tokens on the sphere, two or more.
        cosine: That number.
    """
    n = x.shape[-2]
    if n < 2:
        raise ShapeMismatch(f"merged: of pairs of tokens; found {n} token. Give two or more.")
    near = x @ x.mT > cosine
    near.diagonal(dim1=-2, dim2=-1).zero_()
    return near.double().sum((-2, -1)) / (n * (n - 1))


@checked
def clusters(x: Float[Tensor, "*batch token d_model"], cosine: Share = 0.9999) -> Int[Tensor, "*batch"]:
    """How many clusters there are: tokens are of one if a chain of close pairs joins them.

    Args:
        x: Tokens on the sphere.
        cosine: What a close pair's cosine is larger than.
    """
    near, n = x @ x.mT > cosine, x.shape[-2]
    near = near | torch.eye(n, dtype=torch.bool, device=x.device)
    first = torch.arange(n, device=x.device).expand(x.shape[:-1])
    while True:
        # each takes the lowest number among its neighbours, until none is lower
        lower = first[..., None, :].expand(near.shape).masked_fill(~near, n).amin(-1)
        if bool((lower == first).all()):
            return (first == torch.arange(n, device=x.device)).sum(-1)
        first = lower


@checked
def leaders(weights: Float[Tensor, "*batch query key"], share: Share = 0.5) -> Bool[Tensor, "*batch key"]:
    """Which tokens lead: some other token gives them more than a share of its weight.

    Args:
        weights: A pattern.
        share: That share.
    """
    own = torch.eye(weights.shape[-1], dtype=torch.bool, device=weights.device)
    return (weights.masked_fill(own, 0) > share).any(-2)


@checked
def equal_angles(
    times: Sequence[float], beta: Amount, n_tokens: Count, *, start: float = 0.0, softmax: bool = True
) -> Float[Tensor, " step"]:
    """The cosine of any two tokens where all are alike, at some times: what many dimensions do.

    Args:
        times: When, rising from 0.
        beta: Inverse temperature.
        n_tokens: How many tokens.
        start: The cosine at time 0; 0 for right angles.
        softmax: As in `ParticleFlow`.
    """
    found, now, cosine = list[float](), 0.0, start
    for time in times:
        if time < now:
            raise WrongArgument(f"equal_angles: times= takes times that rise from 0; found {time:g} behind {now:g}.")
        steps = math.ceil((time - now) / 0.01)
        for _ in range(steps):
            cosine = runge_kutta(lambda _, g: _turning(g, beta, n_tokens, softmax), 0.0, cosine, (time - now) / steps)
        found.append(cosine)
        now = time
    return torch.tensor(found, dtype=torch.float64)


@checked
def merging_time(beta: Amount, n_tokens: Count, *, cosine: float = 0.999, softmax: bool = True) -> float:
    """When tokens at right angles have come as close as a cosine, in many dimensions.

    Args:
        beta: Inverse temperature.
        n_tokens: How many tokens.
        cosine: How close, above 0 and below 1.
        softmax: As in `ParticleFlow`.
    """
    if not 0 < cosine < 1:
        raise WrongArgument(f"merging_time: cosine= takes a number above 0 and below 1; found {cosine}.")
    # in s = -ln(1 - g) nothing is singular
    s = torch.linspace(0, -torch.log1p(torch.tensor(-cosine, dtype=torch.float64)), 20_001, dtype=torch.float64)
    left = (-s).exp()
    return float(torch.trapezoid(left / _turning(1 - left, beta, n_tokens, softmax), s))


def _turning(g: Any, beta: float, n: int, softmax: bool) -> Any:
    """Return how fast a cosine rises, or each of several."""
    # e^(beta g) goes into the divisor, so that nothing overflows
    whole = math.e ** (beta * (1 - g)) + n - 1 if softmax else n * math.e ** (-beta * g)
    return 2 * (1 - g) * ((n - 1) * g + 1) / whole
