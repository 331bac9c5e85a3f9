"""Adaptive softmax: frequent words at once, rare ones behind a cluster each, in fewer dimensions.

    p(w) = head(w)                        w among the frequent words;   head = softmax(x W_h), words and clusters
    p(w) = head(cluster i) tail_i(w)      w in cluster i;               tail_i = softmax(x P_i W_i), of width d / div^i

Words are sorted by frequency and cut into a head of k_h words and J clusters of k_i. Few targets are in the long tails,
so few positions reach them. With cutoffs (), every word in the head, it is the softmax; with more it has another form.
Training costs d (k_h + J) + sum of p_i (d d_i + d_i k_i) multiply-adds a position, p_i the share of cluster i.

Source: Grave et al. 2016, "Efficient softmax approximation for GPUs", section 4. The same function of the same
weights as torch.nn.AdaptiveLogSoftmaxWithLoss without a bias, for words in any order.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.arguments import Count, Within
from glassformer.attention import LinearMap, linear
from glassformer.config import require
from glassformer.models.cutoffs import ProductCost, Vocabulary
from glassformer.models.output_layer import FactoredUnembedding, OutputLayer, shares
from glassformer.numerics.precision import wide
from glassformer.trace import Tape


@dataclass(frozen=True)
class AdaptiveSoftmax(OutputLayer, kind="adaptive"):
    """A head of frequent words and clusters of rare ones as output layer.

    Args:
        counts: How often each id occurs; None for ids sorted by frequency, with counts that fall as 1 / rank.
        cutoffs: How many of the most frequent words are in the head, then where each cluster ends but the last; () for
            all in the head. None takes those that cost least (`models.cutoffs`).
        div_value: How much narrower each cluster is than the one before it.
        cost: Of products, for cutoffs that are to be found.
        positions: Positions of a training step, likewise.
    """

    counts: tuple[float, ...] | None = None
    cutoffs: tuple[int, ...] | None = None
    div_value: Annotated[float, Within(1)] = 4.0
    cost: ProductCost = field(default_factory=ProductCost)
    positions: Count = 1024

    def __post_init__(self) -> None:
        self.check_counts()
        given = self.cutoffs or ()
        rising = all(a < b for a, b in itertools.pairwise((0, *given)))
        require(rising, f"adaptive: cutoffs must rise, from 1 at least; found {given}.")

    def build(self, vocab_size: int, d_model: int) -> "AdaptiveUnembedding":
        self.check_vocabulary(vocab_size)
        return AdaptiveUnembedding(self, vocab_size, d_model)

    def ends(self, vocab_size: int, d_model: int) -> tuple[int, ...]:
        """Return where head and clusters end among words sorted by frequency; the last is the vocabulary's size."""
        cutoffs = self.cutoffs
        if cutoffs is None:
            # numbers, even while a model is built without memory
            with torch.device("cpu"):
                share = shares(self.counts, vocab_size).sort(descending=True).values
                cutoffs = Vocabulary(share, d_model, self.positions, self.cost).best_cutoffs()
        last = cutoffs[-1] if cutoffs else 0
        require(last < vocab_size, f"adaptive: cutoffs must be below {vocab_size}, the vocabulary; found {cutoffs}.")
        return (*cutoffs, vocab_size)

    def width(self, cluster: int, d_model: int) -> int:
        """Return the width of a cluster; the first is 1."""
        return max(1, int(d_model // self.div_value**cluster))

    def flops(self, vocab_size: int, d_model: int) -> int:
        head, *tails = self._flops(vocab_size, d_model)
        return head + sum(tails)

    def target_flops(self, vocab_size: int, d_model: int) -> Int[Tensor, " vocab"]:
        head, *tails = self._flops(vocab_size, d_model)
        sizes = [end - start for start, end in itertools.pairwise((0, *self.ends(vocab_size, d_model)))]
        by_rank = [flops for own, size in zip((0, *tails), sizes) for flops in [head + own] * size]
        return torch.tensor(by_rank, device="cpu")[ranks(self.counts, vocab_size)]

    def _flops(self, vocab_size: int, d_model: int) -> list[int]:
        """Return the forward FLOPs of the head and of each cluster."""
        ends = self.ends(vocab_size, d_model)
        found = [2 * d_model * (ends[0] + len(ends) - 1)]
        for i, (start, end) in enumerate(itertools.pairwise(ends), start=1):
            found.append(2 * self.width(i, d_model) * (d_model + end - start))
        return found


def ranks(counts: tuple[float, ...] | None, vocab_size: int) -> Int[Tensor, " vocab"]:
    """Return the place of each word among all sorted by frequency; of equals the one with the smaller id goes first."""
    return shares(counts, vocab_size).argsort(descending=True, stable=True).argsort()


class Tail(nn.Module):
    """A cluster of rare words: x P W, in few dimensions."""

    def __init__(self, d_model: int, width: int, words: int) -> None:
        super().__init__()
        self.down, self.words = LinearMap(d_model, width, bias=False), LinearMap(width, words, bias=False)

    def forward(self, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n word"]:
        return self.words(self.down(x))

    @property
    def matrix(self) -> Float[Tensor, "word d_model"]:
        return self.words.weight @ self.down.weight


class AdaptiveUnembedding(FactoredUnembedding):
    """The layer. Inner logits are those of the head's words, of the clusters, then of each cluster's words."""

    def __init__(self, config: AdaptiveSoftmax, vocab_size: int, d_model: int) -> None:
        ends = config.ends(vocab_size, d_model)
        n = len(ends) - 1
        super().__init__("adaptive softmax", ends[0] + n, vocab_size + n, vocab_size, d_model)
        self.ends = ends
        widths = [config.width(i, d_model) for i in range(1, n + 1)]
        sizes = [end - start for start, end in itertools.pairwise(ends)]
        self.tails = nn.ModuleList(Tail(d_model, width, size) for width, size in zip(widths, sizes))
        self.rank = ranks(config.counts, vocab_size)

    @property
    def inner(self) -> Float[Tensor, "inner d_model"]:
        return torch.cat((self.stored, *(tail.matrix for tail in self._tails())))

    def raw(self, x: Float[Tensor, "... d_model"], tape: Tape | None = None) -> Float[Tensor, "... inner"]:
        return torch.cat((linear(x, self.stored), *(tail(x) for tail in self._tails())), -1)

    def capped(self, raw: Float[Tensor, "... inner"]) -> Float[Tensor, "... vocab"]:
        sizes = [end - start for start, end in itertools.pairwise(self.ends)]
        head, *tails = wide(raw).split([self.ends[0] + len(sizes), *sizes], -1)
        head = head.log_softmax(-1)
        clusters = head[..., self.ends[0] :].unbind(-1)
        of_tails = [cluster[..., None] + tail.log_softmax(-1) for cluster, tail in zip(clusters, tails)]
        by_rank = torch.cat((head[..., : self.ends[0]], *of_tails), -1)
        return by_rank.index_select(-1, self.place("rank", self.rank, raw)).to(raw.dtype)

    def target_losses(
        self, x: Float[Tensor, "position d_model"], ids: Int[Tensor, " position"]
    ) -> Float[Tensor, " position"]:
        rank = self.place("rank", self.rank, ids)[ids]
        first = self.ends[0]
        chosen, losses = rank, list[tuple[Tensor, Tensor]]()
        for i, (tail, start, end) in enumerate(zip(self._tails(), self.ends, self.ends[1:])):
            (rows,) = ((rank >= start) & (rank < end)).nonzero(as_tuple=True)
            chosen = chosen.index_fill(0, rows, first + i)
            if len(rows):
                scores = wide(tail(x.index_select(0, rows)))
                losses.append((rows, F.cross_entropy(scores, rank[rows] - start, reduction="none")))
        found = F.cross_entropy(wide(linear(x, self.stored)), chosen, reduction="none")
        for rows, own in losses:
            found = found.index_add(0, rows, own)
        return found

    def _tails(self) -> Iterator[Tail]:
        for tail in self.tails:
            assert isinstance(tail, Tail), "tails are tails"
            yield tail
