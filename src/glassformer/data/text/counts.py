"""Models that only count: what a transformer must beat.

`BigramModel` is one table; `NGramModel` backs off through contexts of falling length. Both are proper distributions
over the whole vocabulary, so their losses compare with a transformer's. Documents are lists of token ids; every token
counts, the first one too, in the context of nothing.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from glassformer.config import require
from glassformer.errors import DataError, outside_vocabulary

_LARGEST_TABLE = 2**28


class BigramModel:
    """The next token given the last one.

        P(w | v) = (count(v w) + followers(v) P(w)) / (count(v) + followers(v))
        P(w) = (count(w) + 1) / (n + vocab)

    `followers(v)` is how many different tokens were seen after v, at least 1. `log_probs` has a row per token, and a
    last one for the beginning of a document.

    Source: Witten and Bell 1991 (method C).
    """

    def __init__(self, documents: Iterable[list[int]], vocab_size: int) -> None:
        require(
            vocab_size**2 <= _LARGEST_TABLE,
            f"a bigram table of vocab_size={vocab_size} is too large; NGramModel(order=2) keeps only what occurs.",
        )
        arrays = _arrays(documents, vocab_size)
        pairs = np.concatenate([np.concatenate([[vocab_size], a[:-1]]) * vocab_size + a for a in arrays if len(a)])
        counts = np.bincount(pairs, minlength=(vocab_size + 1) * vocab_size).reshape(-1, vocab_size).astype(np.float32)
        unigram = counts.sum(0, dtype=np.float64) + 1
        unigram = (unigram / unigram.sum()).astype(np.float32)
        followers = np.maximum((counts > 0).sum(1, keepdims=True), 1).astype(np.float32)
        totals = counts.sum(1, keepdims=True, dtype=np.float64) + followers
        self.vocab_size = vocab_size
        self.log_probs = torch.from_numpy(np.log((counts + followers * unigram) / totals.astype(np.float32)))

    def loss(self, ids: list[int]) -> Tensor:
        """The loss of each token of a document, in nats."""
        tokens = torch.from_numpy(_array(ids, self.vocab_size))
        before = torch.cat([torch.tensor([self.vocab_size]), tokens])[:-1]
        return -self.log_probs[before, tokens]

    def probabilities(self, context: list[int]) -> Tensor:
        """The distribution of the token after a context, over `vocab`."""
        return self.log_probs[context[-1] if context else self.vocab_size].exp()

    def sample(self, n: int, generator: torch.Generator | None = None) -> list[int]:
        """A document of n tokens drawn from the model."""
        return _sample(self, n, 1, generator)


class NGramModel:
    """The next token given up to `order - 1` before it: interpolated Kneser-Ney.

        P_k(w | c) = max(count(c w) - D, 0) / count(c)  +  D followers(c) / count(c)  P_{k-1}(w | c without its first)

    Below the highest order, `count` is the number of different tokens seen before the k-gram; order zero is uniform. In
    a context never seen, P_k = P_{k-1}. D = n1 / (n1 + 2 n2), from how many k-grams have count one and two.

    Source: Kneser and Ney 1995; interpolated as in Chen and Goodman 1999, with one discount per order.
    """

    def __init__(self, documents: Iterable[list[int]], vocab_size: int, order: int = 4) -> None:
        require(order >= 1, f"order={order} is not at least 1.")
        self.vocab_size, self.order = vocab_size, order
        stream = np.concatenate([self._padded(array) for array in _arrays(documents, vocab_size)])
        self._orders = _count(stream, vocab_size, order)

    def loss(self, ids: list[int]) -> Tensor:
        """The loss of each token of a document, in nats."""
        stream = self._padded(_array(ids, self.vocab_size))
        probability = np.full(len(stream), 1 / self.vocab_size)
        grams = np.zeros(len(stream), np.int64)
        for order in self._orders:
            context = _shifted(grams)
            grams = order.find(context, stream, self.vocab_size + 1)
            probability = order.interpolate(context, np.where(grams < 0, 0, order.counts[grams]), probability)
        return torch.from_numpy(-np.log(probability[self.order - 1 :]))

    def probabilities(self, context: list[int]) -> Tensor:
        """The distribution of the token after a context that begins a document, over `vocab`."""
        # only the last order - 1 tokens matter; the leading zero keeps the stream of a unigram model from being empty
        stream = np.concatenate([[0], self._padded(_array(context, self.vocab_size))])[-max(self.order, 2) :]
        base = self.vocab_size + 1
        probability = np.full(self.vocab_size, 1 / self.vocab_size)
        grams = np.zeros(len(stream), np.int64)
        for order in self._orders:
            last = grams[-1]
            counts = np.zeros(self.vocab_size, np.int64)
            if last >= 0:
                low, high = np.searchsorted(order.keys, [last * base, last * base + self.vocab_size])
                counts[order.keys[low:high] - last * base] = order.counts[low:high]
            probability = order.interpolate(np.full(self.vocab_size, last), counts, probability)
            grams = order.find(_shifted(grams), stream, base)
        return torch.from_numpy(probability)

    def sample(self, n: int, generator: torch.Generator | None = None) -> list[int]:
        """A document of n tokens drawn from the model."""
        return _sample(self, n, self.order - 1, generator)

    def _padded(self, array: np.ndarray) -> np.ndarray:
        # one symbol more than the vocabulary stands for "before the document"
        return np.concatenate([np.full(self.order - 1, self.vocab_size), array])


@dataclasses.dataclass(frozen=True, eq=False)
class _Order:
    """The k-grams of one length, sorted by key = id of their first k - 1 tokens * (vocab + 1) + last token."""

    keys: np.ndarray
    counts: np.ndarray  # one per k-gram
    totals: np.ndarray  # per context: sum of the counts
    followers: np.ndarray  # per context: how many k-grams of count above 0 it begins
    discount: float

    def find(self, context: np.ndarray, tokens: np.ndarray, base: int) -> np.ndarray:
        """Return the id of each k-gram, -1 for those never seen."""
        wanted = context * base + tokens
        place = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        return np.where((context >= 0) & (self.keys[place] == wanted), place, -1)

    def interpolate(self, context: np.ndarray, counts: np.ndarray, lower: np.ndarray) -> np.ndarray:
        total = np.where(context < 0, 0, self.totals[context])
        safe = np.maximum(total, 1)
        left = self.discount * self.followers[context] / safe
        return np.where(total > 0, np.maximum(counts - self.discount, 0) / safe + left * lower, lower)


def _count(stream: np.ndarray, vocab_size: int, order: int) -> list[_Order]:
    base, real = vocab_size + 1, stream < vocab_size
    grams = np.zeros(len(stream), np.int64)
    keys, counts, sizes = [], [], []
    for k in range(order):
        shorter, context = grams, _shifted(grams)
        sizes.append(int(grams.max()) + 1)
        unique, first, grams = np.unique(context * base + stream, return_index=True, return_inverse=True)
        if k:
            # each k-gram is one more left neighbour of the gram that it ends in
            counts[-1] = np.bincount(shorter[first][real[first]], minlength=len(keys[-1]))
        keys.append(unique)
        counts.append(np.bincount(grams[real], minlength=len(unique)))
    return [_order(*table, base) for table in zip(keys, counts, sizes, strict=True)]


def _order(keys: np.ndarray, counts: np.ndarray, n_contexts: int, base: int) -> _Order:
    context = keys // base
    totals = np.bincount(context, weights=counts, minlength=n_contexts)
    followers = np.bincount(context[counts > 0], minlength=n_contexts)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    # zero would leave nothing for tokens never seen, one would forget every k-gram seen once
    discount = min(0.95, once / (once + 2 * twice)) if once else 0.5
    return _Order(keys, counts, totals, followers, discount)


def _shifted(grams: np.ndarray) -> np.ndarray:
    # what precedes the first position never reaches a token that counts: the padding is long enough
    return np.concatenate([grams[:1], grams[:-1]])


def _sample(model: BigramModel | NGramModel, n: int, reach: int, generator: torch.Generator | None) -> list[int]:
    ids: list[int] = []
    for _ in range(n):
        context = ids[max(0, len(ids) - reach) :]
        ids.append(int(torch.multinomial(model.probabilities(context), 1, generator=generator)))
    return ids


def _arrays(documents: Iterable[list[int]], vocab_size: int) -> list[np.ndarray]:
    arrays = [_array(ids, vocab_size) for ids in documents]
    if not any(map(len, arrays)):
        raise DataError("nothing to count: the documents hold no token.")
    return arrays


def _array(ids: list[int], vocab_size: int) -> np.ndarray:
    array = np.asarray(ids, np.int64)
    wrong = array[(array < 0) | (array >= vocab_size)]
    if len(wrong):
        raise outside_vocabulary(int(wrong[0]), vocab_size)
    return array
