"""Hierarchical softmax: a word is found by left-or-right decisions from the root of a tree to its leaf.

    p(w) = product over inner nodes n on the path to w of sigmoid(s_n u_n . x),   s_n = +1 to the first child, else -1

The tree is Huffman's for the words' counts: frequent words have short paths. With V words there are V - 1 inner nodes,
a vector each. Training costs depth(w) products in place of V; the expected depth lies in [H, H + 1), H the entropy of
the counts' shares in bits. All log-probabilities together cost V - 1 products.

Source: Morin and Bengio 2005, "Hierarchical Probabilistic Neural Network Language Model"; Mikolov et al. 2013,
"Distributed Representations of Words and Phrases", section 2.1, and the authors' word2vec.c for Huffman's tree.
Differs from word2vec: vectors of nodes are drawn as other weights are and do not start at 0, where every leaf has the
probability 2^-depth; inner nodes are numbered from the root, level by level.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.attention import linear
from glassformer.config import require
from glassformer.models.output_layer import FactoredUnembedding, OutputLayer, frequencies
from glassformer.numerics.precision import wide
from glassformer.trace import Tape


@dataclass(frozen=True)
class HierarchicalSoftmax(OutputLayer, kind="hierarchical"):
    """A binary tree of words as output layer.

    Args:
        counts: How often each id occurs; None for ids sorted by frequency, with counts that fall as 1 / rank.
    """

    counts: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self.check_counts()

    def build(self, vocab_size: int, d_model: int) -> "HierarchicalUnembedding":
        self.check_vocabulary(vocab_size)
        return HierarchicalUnembedding(self, vocab_size, d_model)

    def flops(self, vocab_size: int, d_model: int) -> int:
        return 2 * d_model * (vocab_size - 1)

    def target_flops(self, vocab_size: int, d_model: int) -> Int[Tensor, " vocab"]:
        return 2 * d_model * HuffmanTree.of(frequencies(self.counts, vocab_size)).depths


@dataclass(frozen=True, eq=False)
class HuffmanTree:
    """A binary tree of least expected depth; inner nodes are numbered from the root, level by level.

    Args:
        parents: Of each inner node, -1 of the root.
        signs: +1 where an inner node is its parent's first child, -1 where it is the second.
        leaf_parents: Of each word.
        leaf_signs: Of each word, likewise.
        depths: How many decisions lead to each word.
        levels: Where each level of inner nodes begins, and where the last one ends.
    """

    parents: Int[Tensor, " inner"]
    signs: Int[Tensor, " inner"]
    leaf_parents: Int[Tensor, " word"]
    leaf_signs: Int[Tensor, " word"]
    depths: Int[Tensor, " word"]
    levels: tuple[int, ...]

    @classmethod
    def of(cls, counts: Sequence[float]) -> "HuffmanTree":
        """Return Huffman's tree of counts, one per word, two words at least.

        The two lightest nodes are joined again and again, the lighter one first. Of equals an inner node goes before a
        word and older inner nodes before younger ones, as in word2vec; of words the one with the larger id.
        """
        size = len(counts)
        require(size >= 2, f"a tree of words needs two of them, found {size}.")
        # nodes below `size` are words; inner nodes are made in the order of their weights
        heap = [(count, 1, -word, word) for word, count in enumerate(counts)]
        heapq.heapify(heap)
        children = list[tuple[int, int]]()
        for node in range(size, 2 * size - 1):
            first, second = heapq.heappop(heap), heapq.heappop(heap)
            children.append((first[3], second[3]))
            heapq.heappush(heap, (first[0] + second[0], 0, node, node))
        return cls._numbered(children, size)

    @classmethod
    def _numbered(cls, children: list[tuple[int, int]], size: int) -> "HuffmanTree":
        above, sign = [-1], [0]
        leaf_above, leaf_sign, depth = ([0] * size for _ in range(3))
        level, levels = [2 * size - 2], [0]
        while level:
            below = list[int]()
            for number, node in enumerate(level, start=levels[-1]):
                for child, side in zip(children[node - size], (1, -1)):
                    if child < size:
                        leaf_above[child], leaf_sign[child], depth[child] = number, side, len(levels)
                    else:
                        below.append(child)
                        above.append(number)
                        sign.append(side)
            levels.append(levels[-1] + len(level))
            level = below
        parts = (above, sign, leaf_above, leaf_sign, depth)
        # on the CPU even while a model is built without memory
        return cls(*(torch.tensor(part, device="cpu") for part in parts), levels=tuple(levels))

    def path(self, word: int) -> list[tuple[int, int]]:
        """Return the inner nodes from the root to a word, and the sign of the decision at each."""
        node, sign = int(self.leaf_parents[word]), int(self.leaf_signs[word])
        found = list[tuple[int, int]]()
        while node >= 0:
            found.append((node, sign))
            node, sign = int(self.parents[node]), int(self.signs[node])
        return found[::-1]


class HierarchicalUnembedding(FactoredUnembedding):
    def __init__(self, config: HierarchicalSoftmax, vocab_size: int, d_model: int) -> None:
        n_inner = vocab_size - 1
        super().__init__("hierarchical softmax", n_inner, n_inner, vocab_size, d_model)
        self.tree = HuffmanTree.of(frequencies(config.counts, vocab_size))

    @property
    def inner(self) -> Float[Tensor, "inner d_model"]:
        return self.stored

    def raw(self, x: Float[Tensor, "... d_model"], tape: Tape | None = None) -> Float[Tensor, "... inner"]:
        return linear(x, self.stored)

    def capped(self, raw: Float[Tensor, "... inner"]) -> Float[Tensor, "... vocab"]:
        inner, levels = wide(raw), self.tree.levels
        parents, signs = self._of_tree("parents", raw), self._of_tree("signs", raw)
        # each level of inner nodes from the one above, and words at last
        found = [torch.zeros_like(inner[..., :1])]
        for above, start, end in zip(levels, levels[1:], levels[2:]):
            at = parents[start:end]
            chosen = F.logsigmoid(inner.index_select(-1, at) * signs[start:end])
            found.append(found[-1].index_select(-1, at - above) + chosen)
        at, sign = self._of_tree("leaf_parents", raw), self._of_tree("leaf_signs", raw)
        words = torch.cat(found, -1).index_select(-1, at) + F.logsigmoid(inner.index_select(-1, at) * sign)
        return words.to(raw.dtype)

    def target_losses(
        self, x: Float[Tensor, "position d_model"], ids: Int[Tensor, " position"]
    ) -> Float[Tensor, " position"]:
        nodes, signs = self._paths(ids)
        step, position = (nodes >= 0).nonzero(as_tuple=True)
        rows = self.stored.index_select(0, nodes[step, position])
        inner = wide((rows * x.index_select(0, position)).sum(-1))
        losses = -F.logsigmoid(inner * signs[step, position])
        return losses.new_zeros(len(x)).index_add(0, position, losses)

    def _paths(
        self, ids: Int[Tensor, " position"]
    ) -> tuple[Int[Tensor, "step position"], Int[Tensor, "step position"]]:
        """Return the inner nodes above some words, from the leaf upwards, -1 beyond the root, and their signs."""
        parents, signs = self._of_tree("parents", ids), self._of_tree("signs", ids)
        node, sign = self._of_tree("leaf_parents", ids)[ids], self._of_tree("leaf_signs", ids)[ids]
        nodes, sides = [node], [sign]
        for _ in self.tree.levels[2:]:
            inside = node.clamp_min(0)
            node, sign = torch.where(node < 0, node, parents[inside]), signs[inside]
            nodes.append(node)
            sides.append(sign)
        return torch.stack(nodes), torch.stack(sides)

    def _of_tree(self, name: str, like: Tensor) -> Int[Tensor, " node"]:
        return self.place(name, getattr(self.tree, name), like)
