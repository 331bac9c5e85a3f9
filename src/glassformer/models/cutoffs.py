"""Where to cut a vocabulary for an adaptive softmax, so that a training step costs least.

    g(k, B) = fixed + each * max(least, B * d * k)                  a product of B positions with k words
    C = g(k_h + J, B) + sum over clusters i of g(k_i, p_i B)

B positions, k_h words in the head, J clusters of k_i words with the share p_i of the targets, width d. Best clusters
are contiguous in frequency, so words are sorted by it and only ends are to be found. The width is d in all of them,
though clusters are narrower: were that counted, tiny clusters would pay that only make the next ones narrower still.

Source: Grave et al. 2016, "Efficient softmax approximation for GPUs", equations 5 to 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Amount, Positive
from glassformer.config import Config

CANDIDATES = 512  # ends that are tried, at most


@dataclass(frozen=True)
class ProductCost(Config):
    """What one matrix product takes: fixed + each * max(least, multiply-adds).

    Only ratios matter to where cutoffs lie. The defaults are of one core of a server's CPU in float32, forward and
    backward together; `bench.product_cost` measures those of another machine.

    Args:
        fixed: Seconds of any product, however small.
        each: Seconds of one multiply-add.
        least: Multiply-adds below which a product gets no cheaper.
    """

    fixed: Amount = 3e-4
    each: Positive = 3e-10
    least: Amount = 0.0

    def of(self, positions: Tensor | int, width: int, words: Tensor | int) -> Tensor:
        """Return the cost of products of these sizes, in seconds."""
        return self.fixed + self.each * torch.as_tensor(positions * width * words).clamp_min(self.least)


@dataclass(frozen=True)
class Vocabulary:
    """What cutoffs are weighed for.

    Args:
        share: How often each word occurs, most frequent first, summing to 1.
        d_model: Width of the stream.
        positions: Positions of a training step.
        cost: Of one product.
    """

    share: Sequence[float] | Float[Tensor, " word"]
    d_model: int
    positions: int = 1024
    cost: ProductCost = ProductCost()

    def training_cost(self, cutoffs: Sequence[int]) -> float:
        """Return what the products of one training step take, in seconds."""
        ends = torch.tensor([*cutoffs, len(self.share)])
        total = self._head(ends[0], len(cutoffs))
        return float(total + self._cluster(ends[:-1], ends[1:]).sum())

    def best_cutoffs(self, most: int = 3) -> tuple[int, ...]:
        """Return the cutoffs of least training cost, by dynamic programming from the last cluster backwards.

        The best way to cut what is left into n clusters depends on where the first of them begins alone. In
        vocabularies of more than 512 words not every end is tried, but 512 that grow by equal ratios.

        Args:
            most: Clusters at most, the head not counted.
        """
        size = len(self.share)
        ends = _candidates(size)
        options = [(float(self._head(ends[-1], 0)), (size,))]
        # of a cluster from each candidate to each later one; rows begin it, columns end it
        cost = self._cluster(ends[:, None], ends[None]).masked_fill(ends[:, None] >= ends, torch.inf)
        rest, chosen = torch.where(ends == size, 0.0, torch.inf).double(), list[Tensor]()
        for n in range(1, most + 1):
            rest, where = (cost + rest).min(1)
            chosen.insert(0, where)
            total = rest + self._head(ends, n)
            cut = [int(total.argmin())]
            for where in chosen:
                cut.append(int(where[cut[-1]]))
            options.append((float(total.min()), tuple(ends[cut].tolist())))
        return min(options)[1][:-1]

    def _head(self, words: Tensor, clusters: int) -> Tensor:
        return self.cost.of(self.positions, self.d_model, words.double() + clusters)

    def _cluster(self, start: Tensor, end: Tensor) -> Tensor:
        share = torch.as_tensor(self.share, dtype=torch.float64)
        below = torch.cat((share.new_zeros(1), share.cumsum(0)))
        return self.cost.of(self.positions * (below[end] - below[start]), self.d_model, end - start)


def _candidates(size: int) -> Int[Tensor, " end"]:
    """Return ends of head and clusters to try, the vocabulary's size last."""
    if size <= CANDIDATES:
        return torch.arange(1, size + 1)
    steps = torch.linspace(0, 1, CANDIDATES, dtype=torch.float64)
    return (size**steps).round().long().unique()
