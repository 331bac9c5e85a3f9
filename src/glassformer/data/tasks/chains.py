"""Random languages whose best loss is known: Markov chains, of symbols and of unequal words, and skip-trigrams."""

import dataclasses
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import Count, Kinds
from glassformer.config import require
from glassformer.data.batch import Split, generator
from glassformer.data.tasks.one_head import ranked_loss
from glassformer.data.tasks.task import Alphabet, Rows, TaskConfig, check_shape

_LARGEST_TABLE = 2**22


@dataclasses.dataclass(frozen=True)
class Markov(TaskConfig, kind="markov"):
    """A random Markov chain: each symbol depends on the `order` symbols before it.

    The transition probabilities are softmax(sharpness * normal) and belong to the seed. Rows start in the stationary
    distribution, so the best loss is the entropy rate at every position that sees `order` symbols; only these count.

    Args:
        order: How many symbols back the chain looks.
        sharpness: 0 for pure noise; the larger, the more predictable.
    """

    batch_size: int = 16
    length: int = 64
    seed: int = 0
    order: Count = 1
    n_symbols: Kinds = 16
    sharpness: float = 2.0

    def __post_init__(self) -> None:
        require(self.order >= 1 and self.n_symbols >= 2, "order must be at least 1 and n_symbols at least 2.")
        check_shape(self, least=self.order + 1)
        size = self.n_symbols ** (self.order + 1)
        require(size <= _LARGEST_TABLE, f"n_symbols^(order + 1) = {size} transitions; at most {_LARGEST_TABLE}.")

    def symbols(self) -> list[str]:
        return ["<bos>", *(f"s{i}" for i in range(self.n_symbols))]

    def table(self) -> Tensor:
        """The transition probabilities, float64 `context vocab`; contexts count with the oldest symbol first."""
        return _chain(self.seed, self.order, self.n_symbols, self.sharpness)[0]

    def optimal_loss(self) -> float:
        table, weights = _chain(self.seed, self.order, self.n_symbols, self.sharpness)
        entropy = -(table * table.log()).sum(-1)
        return float(weights @ entropy)

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        (table, weights), n = _chain(self.seed, self.order, self.n_symbols, self.sharpness), self.n_symbols
        context = torch.multinomial(weights, self.batch_size, replacement=True, generator=random)
        symbols = [context // n**k % n for k in reversed(range(self.order))]
        while len(symbols) < self.length:
            symbols.append(torch.multinomial(table[context], 1, generator=random)[:, 0])
            context = (context * n + symbols[-1]) % len(table)
        sequence = torch.cat([torch.zeros(self.batch_size, 1, dtype=torch.int64), torch.stack(symbols, 1) + 1], 1)
        weight = (torch.arange(self.length) >= self.order).repeat(self.batch_size, 1)
        return Rows(sequence, weight)


@dataclasses.dataclass(frozen=True)
class ZipfMarkov(TaskConfig, kind="zipf-markov"):
    """A Markov chain of words that are as unequal as those of a language.

        P(next = w | the word before is v) in proportion to  exp(sharpness * G[class of v, w]) / rank of w,   G normal

    Ranks fall on words in no order, and the class of word v is v modulo `n_classes`: words of a class have the same
    favourites after them. Table and ranks belong to the seed. Rows start in the stationary distribution, and every
    position counts.

    Args:
        n_words: How many words there are.
        n_classes: Words of a class are followed alike.
        sharpness: 0 for words that do not depend on each other.

    Source: Zipf 1949, "Human Behavior and the Principle of Least Effort" (frequency falls as 1 / rank).
    """

    batch_size: int = 32
    length: int = 32
    seed: int = 0
    n_words: Kinds = 2000
    n_classes: Kinds = 8
    sharpness: float = 1.0

    def __post_init__(self) -> None:
        check_shape(self, least=1)
        require(
            1 <= self.n_classes <= self.n_words,
            f"n_classes={self.n_classes} must be from 1 to n_words={self.n_words}.",
        )
        size = self.n_classes * self.n_words
        require(size <= _LARGEST_TABLE, f"n_classes * n_words = {size} transitions; at most {_LARGEST_TABLE}.")

    def symbols(self) -> list[str]:
        return [f"w{i}" for i in range(self.n_words)]

    def table(self) -> Float[Tensor, "class vocab"]:
        """The probability of each word after a word of each class, float64."""
        return _words(self.seed, self.n_words, self.n_classes, self.sharpness)[0]

    def shares(self) -> Float[Tensor, " vocab"]:
        """Frequency of each word, float64."""
        return _words(self.seed, self.n_words, self.n_classes, self.sharpness)[1]

    def optimal_loss(self) -> float:
        table, share = self.table(), self.shares()
        entropy = -(table * table.log()).sum(-1)
        return float(share @ entropy[torch.arange(self.n_words) % self.n_classes])

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        below = self.table().cumsum(-1)
        found = [torch.multinomial(self.shares(), self.batch_size, replacement=True, generator=random)]
        for drawn in torch.rand(self.length, self.batch_size, 1, generator=random, dtype=torch.float64):
            word = torch.searchsorted(below[found[-1] % self.n_classes], drawn)[:, 0]
            # sums of probabilities end a rounding below 1
            found.append(word.clamp_max(self.n_words - 1))
        return Rows(torch.stack(found, 1), torch.ones(self.batch_size, self.length, dtype=torch.bool))


@dataclasses.dataclass(frozen=True)
class SkipTrigram(TaskConfig, kind="skip-trigram"):
    """`… source … destination` -> answer: a table gives one answer for each source and destination.

    Each row has one source in its first half and, after it, `n_questions` destinations with their answers, in noise.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (skip-trigrams).
    """

    batch_size: int = 16
    length: int = 32
    seed: int = 0
    n_sources: Kinds = 8
    n_destinations: Kinds = 8
    n_answers: Kinds = 16
    n_noise: Kinds = 16
    n_questions: Count = 3

    def __post_init__(self) -> None:
        check_shape(self, least=4)
        sizes = (self.n_sources, self.n_destinations, self.n_answers, self.n_noise, self.n_questions)
        require(min(sizes) >= 1, "n_sources, n_destinations, n_answers, n_noise and n_questions must be at least 1.")
        size = self.n_sources * self.n_destinations
        require(size <= _LARGEST_TABLE, f"n_sources * n_destinations = {size} pairs; at most {_LARGEST_TABLE}.")
        require(
            self.n_questions <= self._slots(),
            f"n_questions={self.n_questions}, but length={self.length} has room for {self._slots()}.",
        )

    def symbols(self) -> list[str]:
        sizes = {"a": self.n_sources, "b": self.n_destinations, "c": self.n_answers, "n": self.n_noise}
        return ["<bos>", *(f"{letter}{i}" for letter, size in sizes.items() for i in range(size))]

    def table(self) -> Tensor:
        """The number of the answer, `source destination`."""
        random = generator(self.seed, "skip-trigram")
        return torch.randint(self.n_answers, (self.n_sources, self.n_destinations), generator=random)

    def one_head_loss(self) -> float:
        """The least loss, in nats, of what one head can move from the source; 0 would be right every time."""
        return ranked_loss(self.table(), self.n_answers)

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        size, half = self.batch_size, self.length // 2
        first_b = 1 + self.n_sources
        first_c = first_b + self.n_destinations
        first_n = first_c + self.n_answers
        sequence = first_n + torch.randint(self.n_noise, (size, self.length + 1), generator=random)
        sequence[:, 0] = 0
        source = torch.randint(self.n_sources, (size, 1), generator=random)
        sequence.scatter_(1, torch.randint(1, half + 1, (size, 1), generator=random), 1 + source)
        slots = torch.rand(size, self._slots(), generator=random).argsort(1)[:, : self.n_questions]
        place = half + 1 + 2 * slots
        destination = torch.randint(self.n_destinations, place.shape, generator=random)
        sequence.scatter_(1, place, first_b + destination)
        sequence.scatter_(1, place + 1, first_c + self.table()[source, destination])
        weight = torch.zeros(size, self.length, dtype=torch.bool).scatter_(1, place, True)
        return Rows(sequence, weight)

    def _slots(self) -> int:
        """How many pairs fit into the second half."""
        return (self.length - self.length // 2) // 2


def stationary(table: Tensor) -> Tensor:
    """Return the stationary distribution over contexts of a chain whose transitions are all possible."""
    n_contexts, n = table.shape
    weights = torch.full((n_contexts,), 1 / n_contexts, dtype=table.dtype)
    for _ in range(100_000):
        # the oldest symbol is forgotten, the new one joins on the right
        after = (weights[:, None] * table).reshape(n, -1).sum(0)
        if (after - weights).abs().sum() < 1e-13:
            break
        weights = after
    return weights


@cache
def _chain(seed: int, order: int, n_symbols: int, sharpness: float) -> tuple[Tensor, Tensor]:
    """Return transition probabilities and stationary distribution."""
    scores = torch.randn(n_symbols**order, n_symbols, generator=generator(seed, "markov"), dtype=torch.float64)
    table = (sharpness * scores).softmax(-1)
    return table, stationary(table)


@cache
def _words(seed: int, n_words: int, n_classes: int, sharpness: float) -> tuple[Tensor, Tensor]:
    """Return transition probabilities by class and the stationary distribution of words."""
    random = generator(seed, "zipf-markov")
    scores = sharpness * torch.randn(n_classes, n_words, generator=random, dtype=torch.float64)
    rank = 1 + torch.randperm(n_words, generator=random).double()
    table = (scores - rank.log()).softmax(-1)
    # from class to class, and what follows a class in the long run
    steps = torch.stack([table[:, one::n_classes].sum(-1) for one in range(n_classes)], -1)
    return table, stationary(steps) @ table
