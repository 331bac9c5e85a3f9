"""Markov chains that have to be learned from the context: every row has one of its own, and the best guess is known.

With transition probabilities drawn from a Dirichlet(alpha) prior, the best prediction after a context c is the
posterior mean, which only counts:

    P(w | row so far) = (count(c w) + alpha) / (count(c) + alpha n_symbols)
"""

import dataclasses
import math
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Kinds, Natural
from glassformer.config import require
from glassformer.data.batch import Split, generator
from glassformer.data.tasks.task import Alphabet, Rows, TaskConfig, check_shape

_LARGEST_TABLE = 2**16
_ROWS_FOR_ESTIMATE = 2**13


def dirichlet_predictive(
    symbols: Int[Tensor, "batch pos"], n_symbols: int, *, order: int = 1, alpha: float = 1.0
) -> Float[Tensor, "batch predicted symbol"]:
    """The posterior predictive distributions of a Markov chain of unknown transition probabilities.

    Entry i is the distribution of symbol i given the symbols before it, so there is one entry more than there are
    symbols. It is uniform where fewer than `order` symbols came before, and at a context that is new.

    Args:
        symbols: Rows, each from a chain of its own; symbols count from 0.
        n_symbols: How many there are.
        order: How many symbols back the chains look; 0 for independent draws.
        alpha: Concentration of the symmetric Dirichlet prior on each context's transition probabilities.
    """
    counts = _Counts(len(symbols), n_symbols, order, alpha, symbols.device)
    found = [counts.predictive]
    for column in symbols.T:
        counts.see(column)
        found.append(counts.predictive)
    return torch.stack(found, 1)


@dataclasses.dataclass(frozen=True)
class DirichletMarkov(TaskConfig, kind="dirichlet-markov"):
    """A new random Markov chain in every row: what to expect next is told by the row so far, and by nothing else.

    Each context's transition probabilities are a draw from Dirichlet(alpha); the first `order` symbols are uniform and
    do not count. The smaller alpha, the more can be learned from one look.

    Args:
        order: How many symbols back the chain looks; 0 for independent draws.
        n_symbols: Symbols beside `<bos>`.
        alpha: Concentration of the prior.
    """

    batch_size: int = 16
    length: int = 64
    seed: int = 0
    order: Natural = 1
    n_symbols: Kinds = 8
    alpha: float = 0.5

    def __post_init__(self) -> None:
        require(self.order >= 0 and self.n_symbols >= 2, "order must be at least 0 and n_symbols at least 2.")
        require(0 < self.alpha < math.inf, f"alpha must be a positive number, found {self.alpha}.")
        check_shape(self, least=self.order + 1)
        size = self.n_symbols ** (self.order + 1)
        require(size <= _LARGEST_TABLE, f"n_symbols^(order + 1) = {size} transitions a row; at most {_LARGEST_TABLE}.")

    def symbols(self) -> list[str]:
        return ["<bos>", *(f"s{i}" for i in range(self.n_symbols))]

    def predictive(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        """The best next-token distribution at every position of rows that start with `<bos>`, float64."""
        known = dirichlet_predictive(tokens[:, 1:] - 1, self.n_symbols, order=self.order, alpha=self.alpha)
        return torch.nn.functional.pad(known, (1, 0))

    def optimal_loss(self) -> float:
        """The mean loss of the posterior predictive, in nats.

        Exact for order 0. Otherwise the mean entropy of the predictive over 8,192 rows, always the same ones; its
        standard error is 0.0007 at the default sizes.
        """
        if self.order == 0:
            return sum(self._loss_after(n) for n in range(self.length)) / self.length
        return _estimate(self.length, self.order, self.n_symbols, self.alpha)[0]

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        counts = _Counts(self.batch_size, self.n_symbols, self.order, self.alpha)
        columns = [torch.zeros(self.batch_size, dtype=torch.int64)]
        while len(columns) <= self.length:
            # drawing from the predictive, and counting the draw, is drawing from a chain drawn from the prior
            drawn = torch.multinomial(counts.predictive, 1, generator=random)[:, 0]
            counts.see(drawn)
            columns.append(drawn + 1)
        weight = (torch.arange(self.length) >= self.order).repeat(self.batch_size, 1)
        return Rows(torch.stack(columns, 1), weight)

    def _loss_after(self, seen: int) -> float:
        """Return the expected loss of the predictive after so many independent draws.

        How often the next symbol came before is beta-binomial, weighted by how likely that makes it next.
        """
        n = self.n_symbols
        a, whole = torch.tensor([self.alpha, seen], dtype=torch.float64)
        b = a * (n - 1)
        count = torch.arange(seen + 1, dtype=torch.float64)
        ways = (whole + 1).lgamma() - (count + 1).lgamma() - (whole - count + 1).lgamma()
        log_chance = ways + _log_beta(count + a, whole - count + b) - _log_beta(a, b)
        probability = (count + a) / (seen + a * n)
        return float(-(n * log_chance.exp() * probability * probability.log()).sum())


class _Counts:
    """How often each symbol followed each context, row by row, and what that says of the next symbol."""

    def __init__(self, rows: int, n_symbols: int, order: int, alpha: float, device: torch.device | None = None) -> None:
        self.n, self.order, self.alpha, self.seen = n_symbols, order, alpha, 0
        self.table = torch.zeros(rows, n_symbols**order, n_symbols, dtype=torch.float64, device=device)
        self.context = torch.zeros(rows, dtype=torch.int64, device=device)
        self.each = torch.arange(rows, device=device)

    @property
    def predictive(self) -> Float[Tensor, "batch symbol"]:
        known = self.table[self.each, self.context] + self.alpha
        return known / known.sum(-1, keepdim=True)

    def see(self, symbol: Int[Tensor, " batch"]) -> None:
        # a context that is not full yet would count as one that begins with zeros
        if self.seen >= self.order:
            self.table[self.each, self.context, symbol] += 1
        # the oldest symbol is forgotten, the new one joins on the right
        self.context = (self.context * self.n + symbol) % self.n**self.order
        self.seen += 1


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return a.lgamma() + b.lgamma() - (a + b).lgamma()


@cache
def _estimate(length: int, order: int, n_symbols: int, alpha: float) -> tuple[float, float]:
    """Return the mean loss of the predictive and its standard error, from the entropies of drawn rows."""
    random = generator("dirichlet-markov", "optimal loss")
    means = []
    # in batches of bounded size, whatever the table's
    size = max(1, min(_ROWS_FOR_ESTIMATE, 2**24 // n_symbols ** (order + 1)))
    for start in range(0, _ROWS_FOR_ESTIMATE, size):
        counts = _Counts(min(size, _ROWS_FOR_ESTIMATE - start), n_symbols, order, alpha)
        total = torch.zeros(len(counts.each), dtype=torch.float64)
        for position in range(length):
            predictive = counts.predictive
            if position >= order:
                total -= (predictive * predictive.log()).sum(-1)
            counts.see(torch.multinomial(predictive, 1, generator=random)[:, 0])
        means.append(total / (length - order))
    rows = torch.cat(means)
    return float(rows.mean()), float(rows.std() / len(rows) ** 0.5)
