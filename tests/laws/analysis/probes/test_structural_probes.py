"""Structural probes: planted trees are found, guesses are counted as they should be, and order alone is told apart."""

from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from glassformer.analysis.probes import structural_probe
from glassformer.analysis.probes._structural import CHAIN, MEASURES, SITE, TOKENS, _Fit
from glassformer.analysis.probes._trees import Words, attached, chain, ordered, shortest_edges, spanning_tree
from glassformer.data import bytes_tokenizer
from glassformer.data.grammar import ZhEnConfig, zh_en_tokenizer
from glassformer.data.labels import LabelledDocument, LabelledText, Node, Tree, copy_labels, python_labels, zh_en_labels
from glassformer.errors import AnalysisUnavailable, DataError
from glassformer.models import DecoderConfig, block
from glassformer.testing import close


def planted(n: int, words: int = 9, seed: int = 0) -> LabelledText:
    """Return documents whose characters are the nodes of random trees: each hangs on one before, or after."""
    random, found = Random(seed), list[LabelledDocument]()
    for _ in range(n):
        parents = [-1, *(random.randrange(i) for i in range(1, words))]
        # nodes over one character each, whose parents hold them: the root holds all
        nodes = [Node("root", 0, words, -1)] + [Node("node", i, i + 1, parents[i]) for i in range(1, words)]
        ids = tuple(random.randrange(1, 9) for _ in range(words))
        spans = tuple((i, i + 1) for i in range(words))
        found.append(LabelledDocument("x" * words, ids, spans, {}, {}, Tree(tuple(nodes))))
    return LabelledText(found)


def codes(tree: Tree, width: int) -> Tensor:
    """Return a vector for each node, with a one for each edge on its way from the root."""
    found = torch.zeros(len(tree.nodes), width)
    for place in range(len(tree.nodes)):
        found[place, [node for node in tree.path(place) if node]] = 1.0
    return found


def test_codes_of_edges_are_as_far_apart_as_their_nodes() -> None:
    (document,) = planted(1)
    assert document.tree is not None
    code = codes(document.tree, 9).double()
    close(torch.cdist(code, code).square(), document.distances().double())
    close(code.square().sum(-1), torch.tensor(document.depths).double())


def test_planted_trees_are_found_in_documents_left_out_and_chance_is_not() -> None:
    documents = planted(40)
    words = Words.of(documents)
    turn = torch.linalg.qr(torch.randn(20, 20, generator=torch.Generator().manual_seed(1)))[0]
    vectors = [codes(one.tree, 20) @ (3 * turn) for one in documents if one.tree is not None]
    fit = _Fit(words, [*range(30)], [*range(30, 40)], rank=16, steps=150, lr=0.02, seed=0)
    edges, distances, depths = fit.tried(vectors, *fit.maps(vectors)).mean(-1)
    assert edges > 0.95 and distances > 0.9 and depths > 0.9
    random = [torch.randn(one.shape, generator=torch.Generator().manual_seed(i)) for i, one in enumerate(vectors)]
    edges, distances, depths = fit.tried(random, *fit.maps(random)).nanmean(-1)
    # two of nine words chosen at random are an edge once in 4.5 times
    assert edges < 0.4 and abs(distances) < 0.25 and abs(depths) < 0.4


def test_a_spanning_tree_is_as_short_as_any_and_edges_of_every_shortest_one_count() -> None:
    random = torch.Generator().manual_seed(0)
    for _ in range(6):
        upper = torch.randint(1, 4, (5, 5), generator=random).float().triu(1)
        distances = upper + upper.mT
        pairs = torch.combinations(torch.arange(5))
        trees = [tree for tree in torch.combinations(torch.arange(10), 4).tolist() if _spans(pairs[tree])]
        lengths = [float(distances[pairs[tree][:, 0], pairs[tree][:, 1]].sum()) for tree in trees]
        best = {tuple(edge) for tree, n in zip(trees, lengths) if n == min(lengths) for edge in pairs[tree].tolist()}
        found = spanning_tree(distances)
        assert sum(float(distances[edge]) for edge in found) == min(lengths)
        assert {*map(tuple, shortest_edges(distances).triu().nonzero().tolist())} == best


def _spans(edges: Tensor) -> bool:
    reached = {0}
    for _ in range(5):
        reached |= {b for a, b in [*edges.tolist(), *edges.flip(1).tolist()] if a in reached}
    return len(reached) == 5


def test_the_true_tree_is_attached_whole_and_correlations_are_spearmans() -> None:
    (document,) = planted(1)
    true = document.distances().float()
    assert attached(true.square() + 1, shortest_edges(true)) == 1.0
    values, other = torch.tensor([1.0, 2.0, 2.0, 7.0]), torch.tensor([3.0, 1.0, 4.0, 9.0])
    # ranks 0 1.5 1.5 3 and 1 0 2 3
    ranks = torch.tensor([[0.0, 1.5, 1.5, 3.0], [1.0, 0.0, 2.0, 3.0]])
    assert ordered(values, other) == pytest.approx(float(torch.corrcoef(ranks)[0, 1]))
    assert ordered(values, -values) == pytest.approx(-1) and ordered(values, values**3) == pytest.approx(1)
    assert torch.tensor(ordered(values, torch.ones(4))).isnan()
    assert chain(3).tolist() == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]


def test_words_are_runs_of_tokens_under_one_node() -> None:
    text = python_labels(["total = price * 12\n"], bytes_tokenizer())
    words = Words.of(text)
    kinds = [text[0].text[text[0].spans[i][0]] for i in words.column.token.tolist()]
    starts = [i for i, n in enumerate(words.column.label.tolist()) if i == 0 or n != words.column.label[i - 1]]
    assert [kinds[i] for i in starts] == ["t", "=", "p", "*", "1"]
    assert words.distances[0][0].tolist() == [0, 1, 3, 2, 3] and words.depths[0].tolist() == [2, 1, 3, 2, 3]


def test_random_weights_hold_no_more_of_a_tree_than_an_untrained_model_and_a_chain_is_told_apart() -> None:
    tokenizer = zh_en_tokenizer()
    config = DecoderConfig(vocab_size=tokenizer.vocab_size, d_model=8, max_len=40, layers=(block(n_heads=2),))
    model = config.build(0)
    model.tokenizer = tokenizer
    text = zh_en_labels(ZhEnConfig().build().pairs("heldout", 16), tokenizer, "en")
    seen: list[tuple[int, int]] = []
    found = structural_probe(model, text, steps=20, rank=4, untrained=config.build(1), report=lambda *n: seen.append(n))
    assert found.found.axes == ("site", "told_by", "measure") and found.documents == 16 and seen[-1] == (1, 1)
    own, untrained = (found.found.values[0, i, 0] for i in (0, 1))
    low, high = found.bounds.select(site="blocks.0.resid_post", told_by=SITE, measure=MEASURES[0]).values
    assert abs(own - untrained) < 0.2 and low <= own <= high
    in_order = found.found.select(site="blocks.0.resid_post", told_by=CHAIN, measure=MEASURES[0]).values
    close(found.above_chain.values[0], own - in_order)
    assert found.projection[0].values.shape == (4, 8) and TOKENS in found.found.coords["told_by"]


def test_what_has_no_tree_is_refused() -> None:
    config = DecoderConfig(vocab_size=9, d_model=8, max_len=40, layers=(block(n_heads=2),))
    model, text = config.build(0), planted(4)
    with pytest.raises(AnalysisUnavailable, match="folds is 2 or more"):
        structural_probe(model, text, folds=1)
    with pytest.raises(AnalysisUnavailable, match="8 folds of documents, and 4 have three words"):
        structural_probe(model, text, folds=8)
    with pytest.raises(DataError, match="no tree"):
        structural_probe(model, copy_labels(torch.ones(3, 5, dtype=torch.long)))
    two = LabelledText(replace(one, ids=one.ids[:2], spans=one.spans[:2]) for one in text)
    with pytest.raises(AnalysisUnavailable, match="and 0 have three words"):
        structural_probe(model, two)
