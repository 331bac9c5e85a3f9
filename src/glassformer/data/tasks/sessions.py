"""Sessions of a shop: what comes next depends on the two visits that point at the same thing.

    <bos> i1 r1 i2 r2 … im rm ?  ->  next item          each visit an item and what it was reached from, its referrer

Two visits have a referrer in common and all others have one of their own, so that neither the items nor the referrers
say which two count: only that two positions point at the same, whatever it is. With u and v their items,

    P(next | session) = softmax over items of  sharpness (G[u, next] + G[v, next]) / sqrt(2),   G normal, of the seed

so that loss and hit rate of a perfect model are sums over pairs of items.
"""

import dataclasses
import math
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Kinds
from glassformer.config import require
from glassformer.data.batch import Split, generator
from glassformer.data.tasks.task import Alphabet, Rows, TaskConfig, check_shape, last_position

_BOS, _NEXT, _FIRST_ITEM = 0, 1, 2
_LARGEST_TABLE = 2**24


@dataclasses.dataclass(frozen=True)
class Sessions(TaskConfig, kind="sessions"):
    """Sequential recommendation in which the next item depends on the two visits that share a referrer.

    Items of a session differ, and any two of them are as likely to count; referrers carry nothing else.

    Args:
        length: Even; a session has length / 2 - 1 visits.
        n_items: Items to visit and to recommend.
        n_referrers: What visits may be reached from.
        sharpness: 0 for next items at random; the larger, the more two items say of the next.
    """

    batch_size: int = 64
    length: int = 12
    seed: int = 0
    n_items: Kinds = 16
    n_referrers: Kinds = 16
    sharpness: float = 2.0

    def __post_init__(self) -> None:
        check_shape(self, least=6)
        require(self.length % 2 == 0, f"length={self.length} must be even: two tokens for each visit.")
        most = min(self.n_items, self.n_referrers + 1)
        require(
            self.n_visits <= most,
            f"length={self.length} has {self.n_visits} visits, but n_items={self.n_items} and "
            f"n_referrers={self.n_referrers} suffice for {most}.",
        )
        require(
            self.n_items**3 <= _LARGEST_TABLE,
            f"n_items^3 = {self.n_items**3:,} transitions; at most {_LARGEST_TABLE:,}.",
        )
        require(0 <= self.sharpness < math.inf, f"sharpness must be a finite number >= 0, found {self.sharpness}.")

    @property
    def n_visits(self) -> int:
        return self.length // 2 - 1

    def symbols(self) -> list[str]:
        named = [("i", self.n_items), ("r", self.n_referrers)]
        return ["<bos>", "?", *(f"{letter}{i}" for letter, size in named for i in range(size))]

    def table(self) -> Float[Tensor, "item item item"]:
        """Transition probabilities P(next | u, v), float64; it does not matter which of the two comes first."""
        return _transitions(self.seed, self.n_items, self.sharpness)

    def predictive(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch vocab"]:
        """The best distribution of what follows `?`, for whole rows up to it."""
        items, referrers = tokens[:, 1:-1:2], tokens[:, 2:-1:2]
        shared = (referrers[:, :, None] == referrers[:, None]).sum(-1) == 2
        u, v = items[shared].view(-1, 2).unbind(-1)
        known = self.table()[u - _FIRST_ITEM, v - _FIRST_ITEM]
        return torch.nn.functional.pad(known, (_FIRST_ITEM, self.n_referrers))

    def optimal_loss(self) -> float:
        pairs = self._pairs()
        return float(-(pairs * pairs.log()).sum(-1).mean())

    def best_hit_rate(self, k: int) -> float:
        """Best hit rate: how often the next item is among the k that a perfect model holds most likely."""
        require(1 <= k <= self.n_items, f"k={k} of n_items={self.n_items}: from 1 to as many as there are.")
        return float(self._pairs().topk(k).values.sum(-1).mean())

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        size, visits = self.batch_size, self.n_visits
        items = torch.rand(size, self.n_items, generator=random).argsort(1)[:, :visits]
        referrers = torch.rand(size, self.n_referrers, generator=random).argsort(1)[:, : visits - 1]
        # the last referrer is one that is there already, and visits come in any order
        referrers = torch.cat((referrers, referrers[:, :1]), 1)
        u, v = items[:, 0], items[:, -1]
        order = torch.rand(size, visits, generator=random).argsort(1)
        named = (_FIRST_ITEM + items.gather(1, order), _FIRST_ITEM + self.n_items + referrers.gather(1, order))
        answer = torch.multinomial(self.table()[u, v], 1, generator=random)
        ends = torch.tensor([_BOS, _NEXT]).expand(size, 2)
        sequence = [ends[:, :1], torch.stack(named, -1).flatten(1), ends[:, 1:], _FIRST_ITEM + answer]
        return Rows(torch.cat(sequence, 1), last_position(self))

    def _pairs(self) -> Float[Tensor, "pair item"]:
        u, v = torch.combinations(torch.arange(self.n_items)).unbind(-1)
        return self.table()[u, v]


@cache
def _transitions(seed: int, n_items: int, sharpness: float) -> Tensor:
    scores = torch.randn(n_items, n_items, generator=generator(seed, "sessions"), dtype=torch.float64)
    return (sharpness * 2**-0.5 * (scores[:, None] + scores[None])).softmax(-1)
