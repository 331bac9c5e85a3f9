"""Both ends of what vectors say of every token, and the shape of what lies between, without holding all of it.

    c = v M' - v mean(M)        M a row per token; the mean is taken out where a softmax takes no notice of it

Blocks of tokens are multiplied one after the other; of each only the k best so far, the k worst and sums of powers are
kept.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 1 << 22  # numbers held at a time
VECTORS = 1 << 10  # how many vectors are multiplied at a time
Rows = Callable[[slice], Float[Tensor, "some d_model"]]


class Ends(NamedTuple):
    """What some vectors say of a vocabulary; moments are those of what they say over all tokens."""

    high: Float[Tensor, "n k"]
    high_ids: Int[Tensor, "n k"]
    low: Float[Tensor, "n k"]
    low_ids: Int[Tensor, "n k"]
    variance: Float[Tensor, " n"]
    skew: Float[Tensor, " n"]
    kurtosis: Float[Tensor, " n"]
    correlation: Float[Tensor, " n"]


def both_ends(
    vectors: Float[Tensor, "n d_model"],
    rows: Rows,
    size: int,
    k: int,
    *,
    mean: Float[Tensor, " d_model"] | None = None,
    along: Float[Tensor, " vocab"] | None = None,
) -> Ends:
    """Multiply vectors by a row per token, and keep what is wanted of it.

    Args:
        vectors: What is asked.
        rows: Returns the rows of some tokens.
        size: How many tokens there are.
        k: Tokens per end.
        mean: Mean of the rows, to be taken out of each.
        along: A number per token, that what is said is correlated with; without, `correlation` is NaN.
    """
    k = min(k, size)
    parts = [_of_some(some, rows, size, k, mean, along) for some in vectors.split(VECTORS)]
    return Ends(*(torch.cat(part) for part in zip(*parts)))


def _of_some(
    vectors: Float[Tensor, "n d_model"], rows: Rows, size: int, k: int, mean: Tensor | None, along: Tensor | None
) -> Ends:
    n, step = len(vectors), max(1, BLOCK // max(1, len(vectors)))
    off = vectors.new_zeros(n, 1) if mean is None else (vectors @ mean)[:, None]
    high = low = vectors.new_empty(n, 0)
    high_ids = low_ids = torch.empty(n, 0, dtype=torch.long, device=vectors.device)
    sums = vectors.new_zeros(5, n, dtype=torch.float64)
    centred = None if along is None else along.double() - along.double().mean()
    for first in range(0, size, step):
        some = slice(first, min(first + step, size))
        said = vectors @ rows(some).mT - off
        high, high_ids = _better(high, high_ids, said, first, k, largest=True)
        low, low_ids = _better(low, low_ids, said, first, k, largest=False)
        powers = [said, said.square(), said**3, said**4]
        sums[:4] += torch.stack([power.sum(-1, dtype=torch.float64) for power in powers])
        if centred is not None:
            sums[4] += said.double() @ centred[some]
    spread = 0.0 if centred is None else centred.square().sum()
    return Ends(high, high_ids, low, low_ids, *(part.to(vectors) for part in _shape(sums, size, spread)))


def _better(
    best: Tensor, ids: Tensor, said: Float[Tensor, "n some"], first: int, k: int, *, largest: bool
) -> tuple[Tensor, Tensor]:
    """Return the k best among those in hand and new ones."""
    new = said.topk(min(k, said.shape[1]), largest=largest)
    best, ids = torch.cat((best, new.values), 1), torch.cat((ids, new.indices + first), 1)
    found = best.topk(min(k, best.shape[1]), largest=largest)
    return found.values, ids.gather(1, found.indices)


def _shape(sums: Float[Tensor, "five n"], size: int, spread: Tensor | float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return variance, skew, excess kurtosis and correlation of numbers whose powers were summed."""
    mean, second, third, fourth = sums[:4] / size
    variance = (second - mean**2).clamp_min(0)
    skew = (third - 3 * mean * second + 2 * mean**3) / variance**1.5
    kurtosis = (fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4) / variance**2 - 3
    together = sums[4] / (variance * size * spread).sqrt() if isinstance(spread, Tensor) else mean * torch.nan
    return variance, skew, kurtosis, together
