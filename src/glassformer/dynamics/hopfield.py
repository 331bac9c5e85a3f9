"""Associative memories: Hopfield networks, classical, dense and continuous; attention is one update of the last.

    binary        E(x) = - sum_mu F(xi_mu . x)
                  x_i <- sign of sum_mu F(xi_mu . x with x_i = 1) - F(xi_mu . x with x_i = -1)
    continuous    E(q) = q . q / 2 - ln(sum_mu exp(beta xi_mu . q)) / beta
                  q <- sum_mu softmax(beta xi . q)_mu xi_mu

F(s) = s^2 is Hopfield's network: its couplings are sum_mu xi_mu xi_mu' without their diagonal. F(s) = s^n and e^s are
dense memories. Binary energies do not rise when neurons change one after another, continuous ones in any update.

Of P patterns drawn at random, one neuron of N is wrong after one update from the pattern itself with probability
erfc(sqrt(N^(n-1) / (2 (2n-3)!! P))) / 2, so that P grows with N^(n-1) at a given share of wrong neurons. With e^s it
grows exponentially, at least as 2^(N/2).
Axes: patterns are `pattern neuron`, states `neuron` with anything in front.
Source: Hopfield 1982; Krotov and Hopfield 2016 (1606.01164), equations 1 to 6; Demircigil et al. 2017 (1702.01929),
theorem 3; Ramsauer et al. 2020 (2008.02217), theorems 1 to 5.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, Positive, Share, Within, checked
from glassformer.errors import ShapeMismatch, WrongArgument

# the power of F, or e^s
Interaction = Annotated[int, Within(2, 16)] | Literal["exponential"]


@checked
@dataclass(frozen=True, eq=False)
class BinaryMemory:
    """A network of neurons that are 1 or -1, with patterns for which the energy is low.

    Args:
        patterns: Of 1 and -1.
        interaction: The power n of F(s) = s^n, or `exponential`; 2 is Hopfield's network.

    Raises:
        WrongArgument: A pattern holds other numbers.
    """

    patterns: Float[Tensor, "pattern neuron"]
    interaction: Interaction = 2

    def __post_init__(self) -> None:
        _binary(self.patterns, "patterns")

    @property
    def couplings(self) -> Float[Tensor, "neuron neuron"]:
        """What neuron j adds to the field of i in Hopfield's network; only pairs interact there.

        Raises:
            WrongArgument: More than pairs do.
        """
        if self.interaction != 2:
            raise WrongArgument(
                f"couplings: interaction={self.interaction!r} is of more than two neurons at once; interaction=2 has "
                "a matrix of couplings, and `fields` answers for all."
            )
        made = self.patterns.mT @ self.patterns
        return made - made.diagonal().diag()

    def energy(self, states: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch"]:
        """The energy of states; with e^s in units of e^N, which overflows nothing."""
        return -_separated(self._read(states) @ self.patterns.mT, self.interaction, self.patterns.shape[1]).sum(-1)

    def fields(self, states: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch neuron"]:
        """By how much the energy falls if a neuron is 1 instead of -1, the others as they are."""
        flat = self._read(states).reshape(-1, self.patterns.shape[1])
        # a state at a time: patterns times neurons are numbers enough
        made = [_gains(x, self.patterns, self.interaction).sum(0) for x in flat]
        return torch.stack(made).reshape(states.shape) if made else torch.zeros_like(states)

    def update(self, states: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch neuron"]:
        """States after all neurons have changed at once; one without a field stays. The energy may rise."""
        fields = self.fields(states)
        return torch.where(fields == 0, states, fields.sign())

    def sweep(self, states: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch neuron"]:
        """States after each neuron has changed once, one after another. The energy does not rise."""
        states, size = self._read(states).clone(), self.patterns.shape[1]
        products = states @ self.patterns.mT
        for i, own in enumerate(self.patterns.mT):
            others = products - states[..., i, None] * own
            up, down = (_separated(others + sign * own, self.interaction, size) for sign in (1, -1))
            field = (up - down).sum(-1)
            states[..., i] = torch.where(field == 0, states[..., i], field.sign())
            products = others + states[..., i, None] * own
        return states

    def _read(self, states: Tensor) -> Tensor:
        _fitting(states, self.patterns)
        return _binary(states, "states")


@checked
@dataclass(frozen=True, eq=False)
class ContinuousMemory:
    """A network with real states, an update of which is attention: keys and values are its patterns.

    Args:
        patterns: What is stored.
        beta: How much sharper than their products with the state weights are; 1 / sqrt(d_head) in attention.
    """

    patterns: Float[Tensor, "pattern neuron"]
    beta: Positive = 1.0

    def weights(self, states: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch pattern"]:
        """How much of each pattern an update takes: a row of attention."""
        _fitting(states, self.patterns)
        return (self.beta * states @ self.patterns.mT).softmax(-1)

    def update(self, states: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch neuron"]:
        """States after one update. The energy does not rise."""
        return self.weights(states) @ self.patterns

    def energy(self, states: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch"]:
        """The energy of states, without the constant that makes it positive."""
        _fitting(states, self.patterns)
        products = self.beta * states @ self.patterns.mT
        return states.square().sum(-1) / 2 - products.logsumexp(-1) / self.beta

    def retrieval_bound(self) -> Float[Tensor, " pattern"]:
        """What the distance between a pattern and its update does not exceed.

        A pattern whose product with itself exceeds that with any other by d loses at most (P - 1) e^(-beta d) of the
        weight, and what takes its place lies at most twice the longest pattern away.

        Source: Ramsauer et al. 2020, theorem 5, at the pattern itself.
        """
        products = self.patterns @ self.patterns.mT
        others = products.masked_fill(torch.eye(len(products), dtype=torch.bool, device=products.device), -math.inf)
        separation = products.diagonal() - others.amax(-1)
        longest = self.patterns.norm(dim=-1).max()
        return 2 * (len(products) - 1) * longest * (-self.beta * separation).exp()


@checked
def wrong_bits(
    interaction: Interaction, n_neurons: Count, counts: Sequence[int], *, n_tested: Count = 64, seed: int = 0
) -> Float[Tensor, " count"]:
    """Share of neurons that are wrong after one update from a stored pattern, by how many patterns there are.

    Patterns are drawn at random; those that are tested share what is stored beside them.

    Args:
        interaction: As in `BinaryMemory`.
        n_neurons: How many neurons.
        counts: How many patterns, the tested one included.
        n_tested: How many patterns are tested.
        seed: Of the patterns.
    """
    if not counts or min(counts) < 1:
        raise WrongArgument(f"wrong_bits: counts= takes numbers of patterns, 1 or more each; found {list(counts)}.")
    places = torch.tensor(counts) - 1
    shares = list(_errors(interaction, n_neurons, max(counts), n_tested, seed))
    return torch.stack(shares).mean(0)[places]


@checked
def capacity(
    interaction: Interaction,
    n_neurons: Count,
    most: Count,
    *,
    wrong: Share = 0.01,
    n_tested: Count = 64,
    seed: int = 0,
) -> int:
    """The largest number of patterns of which one update leaves no more than a share of neurons wrong.

    Args:
        interaction: As in `BinaryMemory`.
        n_neurons: How many neurons.
        most: How many patterns are stored at most; what would hold more is given as so many.
        wrong: That share.
        n_tested: How many patterns are tested.
        seed: Of the patterns.
    """
    shares = torch.stack(list(_errors(interaction, n_neurons, most, n_tested, seed))).mean(0)
    over = (shares > wrong).nonzero()
    return int(over[0]) if len(over) else most


@checked
def expected_wrong_bits(degree: Annotated[int, Within(2, 16)], n_neurons: Count, n_patterns: Count) -> float:
    """What theory says `wrong_bits` is for many neurons: the tail of a normal distribution.

    Args:
        degree: The power n of F.
        n_neurons: How many neurons.
        n_patterns: How many patterns.
    """
    signal = n_neurons ** (degree - 1) / (_double_factorial(2 * degree - 3) * n_patterns)
    return math.erfc(math.sqrt(signal / 2)) / 2


@checked
def expected_capacity(degree: Annotated[int, Within(2, 16)], n_neurons: Count, wrong: Share = 0.01) -> float:
    """What theory says `capacity` is: N^(n-1) over (2n-3)!! times the square of a normal quantile.

    Args:
        degree: The power n of F.
        n_neurons: How many neurons.
        wrong: Share of neurons that may be wrong, above 0 and below a half.
    """
    if not 0 < wrong < 0.5:
        raise WrongArgument(f"expected_capacity: wrong= takes a share above 0 and below 0.5; found {wrong}.")
    quantile = NormalDist().inv_cdf(wrong)
    return n_neurons ** (degree - 1) / (_double_factorial(2 * degree - 3) * quantile**2)


def _errors(interaction: Interaction, n_neurons: int, most: int, n_tested: int, seed: int) -> Iterator[Tensor]:
    """Yield the share of wrong neurons of each tested pattern, beside 0, 1, … most - 1 others."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(n: int) -> Tensor:
        return torch.randint(0, 2, (n, n_neurons), generator=generator).double() * 2 - 1

    others = drawn(most - 1)
    for own in drawn(n_tested):
        gains = _gains(own, torch.cat((own[None], others)), interaction)
        # fields of memories of one pattern more each
        yield (gains.cumsum(0) * own <= 0).double().mean(-1)


def _gains(state: Tensor, patterns: Tensor, interaction: Interaction) -> Tensor:
    """Return what each pattern adds to the field of each neuron, `pattern neuron`."""
    others, size = (patterns @ state)[:, None] - patterns * state, patterns.shape[1]
    return _separated(others + patterns, interaction, size) - _separated(others - patterns, interaction, size)


def _separated(products: Tensor, interaction: Interaction, size: int) -> Tensor:
    """Return F of products; e^s as e^(s - N)."""
    return (products - size).exp() if isinstance(interaction, str) else products**interaction


def _double_factorial(n: int) -> int:
    return math.prod(range(n, 0, -2))


def _fitting(states: Tensor, patterns: Tensor) -> None:
    if states.shape[-1:] != patterns.shape[1:]:
        raise ShapeMismatch(
            f"states of shape {tuple(states.shape)} for patterns of {patterns.shape[1]} neurons: the last axis of "
            f"states must be neuron={patterns.shape[1]}."
        )


def _binary(values: Tensor, what: str) -> Tensor:
    if not bool((values.abs() == 1).all()):
        raise WrongArgument(
            f"{what} of a binary memory are 1 and -1; found other numbers. ContinuousMemory takes any, and "
            "2 * bits - 1 makes them of zeros and ones."
        )
    return values
