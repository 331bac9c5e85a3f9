"""Hierarchical softmax against gensim's: the cost of its tree for any counts, and its log-probabilities."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from glassformer.models import HierarchicalSoftmax
from glassformer.models.hierarchical_softmax import HuffmanTree

WIDTH = 4


def theirs(counts: list[int]) -> Any:
    """A skip-gram model whose words are 0, 1, … and have these counts."""
    library = pytest.importorskip("gensim.models")
    model = library.Word2Vec(hs=1, negative=0, sg=1, min_count=1, vector_size=WIDTH, sample=0)
    model.build_vocab_from_freq({str(word): count for word, count in enumerate(counts)})
    return model


def code(model: Any, word: int) -> list[tuple[int, int]]:
    """Their inner nodes from the root to a word, and which way it goes at each: 1 or -1, as they score it."""
    nodes, bits = (model.wv.get_vecattr(str(word), name) for name in ("point", "code"))
    return [(int(node), 1 - 2 * int(bit)) for node, bit in zip(nodes, bits, strict=True)]


@pytest.mark.full
@given(st.lists(st.integers(1, 40), min_size=2, max_size=30))
@settings(max_examples=20)
def test_both_trees_take_as_few_decisions_whatever_the_counts(counts: list[int]) -> None:
    model = theirs(counts)
    taken = sum(count * len(code(model, word)) for word, count in enumerate(counts))
    assert int((torch.tensor(counts) * HuffmanTree.of(list(map(float, counts))).depths).sum()) == taken


def test_log_probabilities_of_pairs_are_those_that_gensim_scores() -> None:
    """No two sums of these counts are alike, so there is one tree; nodes go by the words below them."""
    counts = [3**i for i in range(6)]
    model, generator = theirs(counts), torch.Generator().manual_seed(0)
    vectors = torch.randn(6, WIDTH, generator=generator)
    model.syn1[:5] = torch.randn(5, WIDTH, generator=generator).numpy()
    for word in range(6):
        model.wv.vectors[model.wv.key_to_index[str(word)]] = vectors[word].numpy()
    layer: Any = HierarchicalSoftmax(tuple(map(float, counts))).build(6, WIDTH)
    below: dict[frozenset[int], int] = {}
    for node in range(5):
        words = frozenset(word for word in range(6) if node in dict(code(model, word)))
        below[words] = node
    with torch.no_grad():
        for node in range(5):
            words = frozenset(word for word in range(6) if node in dict(layer.tree.path(word)))
            some = min(words)
            # who is called the first child is up to each
            turned = dict(layer.tree.path(some))[node] * dict(code(model, some))[below[words]]
            layer.stored[node] = turned * torch.from_numpy(model.syn1[below[words]].copy())
    for one, other in ((0, 5), (1, 2), (4, 3)):
        (found,) = model.score([[str(one), str(other)]], total_sentences=1)
        pairs = torch.tensor([[other], [one]])
        ours = layer.log_prob(vectors[[one, other]][:, None], pairs).sum()
        # they look the logarithm of each decision up in a table of steps of 12 / 1000, whose slope is 1 at most, at a
        # place made in whole numbers, 83 steps per unit for 83 1/3: five entries too low at most
        decisions = len(code(model, one)) + len(code(model, other))
        assert abs(float(ours.detach()) - float(found)) < decisions * 5 * 12 / 1000
