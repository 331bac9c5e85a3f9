"""Count models: proper distributions, agreeing with the formulas written out as loops."""

import math
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.data import BigramModel, Markov, NGramModel

VOCAB = 5
DOCUMENTS = st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=12), min_size=1, max_size=5).filter(any)
CONTEXTS = st.lists(st.integers(0, VOCAB - 1), max_size=6)


@given(documents=DOCUMENTS, context=CONTEXTS, order=st.integers(1, 4))
def test_ngram_probabilities_sum_to_one_and_are_never_zero(documents, context, order):
    probabilities = NGramModel(documents, VOCAB, order).probabilities(context)
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-12)
    assert (probabilities > 0).all()


@given(documents=DOCUMENTS, context=CONTEXTS)
def test_bigram_probabilities_sum_to_one_and_are_never_zero(documents, context):
    probabilities = BigramModel(documents, VOCAB).probabilities(context)
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-5)
    assert (probabilities > 0).all()


@given(documents=DOCUMENTS, ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8), order=st.integers(1, 4))
def test_losses_are_minus_log_of_the_probabilities(documents, ids, order):
    for model in (NGramModel(documents, VOCAB, order), BigramModel(documents, VOCAB)):
        expected = [-float(model.probabilities(ids[:i])[token].log()) for i, token in enumerate(ids)]
        assert model.loss(ids).tolist() == pytest.approx(expected, rel=1e-5)


@given(documents=DOCUMENTS, context=CONTEXTS, order=st.integers(1, 4))
def test_kneser_ney_equals_its_formula_written_as_loops(documents, context, order):
    padded = [[VOCAB] * (order - 1) + ids for ids in documents]
    full = [tuple(ids[i - order + 1 : i + 1]) for ids in padded for i in range(order - 1, len(ids))]
    counts = {order: Counter(full)}
    for k in range(order - 1, 0, -1):
        # the set holds each (k+1)-gram once: counting its ends counts different left neighbours
        counts[k] = Counter(gram[1:] for gram in {gram[-k - 1 :] for gram in full})

    def probability(token, before, k):
        if k == 0:
            return 1 / VOCAB
        lower = probability(token, before[1:], k - 1)
        inside = {gram: n for gram, n in counts[k].items() if gram[:-1] == before}
        if not inside:
            return lower
        once, twice = (sum(n == m for n in counts[k].values()) for m in (1, 2))
        discount = min(0.95, once / (once + 2 * twice)) if once else 0.5
        total = sum(inside.values())
        kept = max(counts[k][(*before, token)] - discount, 0) / total
        return kept + discount * len(inside) / total * lower

    before = tuple(([VOCAB] * (order - 1) + context)[len(context) :])
    expected = [probability(token, before, order) for token in range(VOCAB)]
    assert NGramModel(documents, VOCAB, order).probabilities(context).tolist() == pytest.approx(expected, abs=1e-12)


@given(documents=DOCUMENTS)
def test_the_bigram_table_equals_its_formula_written_as_loops(documents):
    after, single = defaultdict(Counter), Counter()
    for ids in documents:
        for before, token in zip([VOCAB, *ids], ids):
            after[before][token] += 1
            single[token] += 1
    model, total = BigramModel(documents, VOCAB), sum(single.values())
    for before in range(VOCAB + 1):
        followers, seen = max(1, len(after[before])), sum(after[before].values())
        for token in range(VOCAB):
            unigram = (single[token] + 1) / (total + VOCAB)
            expected = (after[before][token] + followers * unigram) / (seen + followers)
            assert math.exp(model.log_probs[before, token]) == pytest.approx(expected, rel=1e-5)


def test_an_ngram_model_learns_a_markov_chain_to_near_its_entropy_rate():
    config = Markov(order=2, n_symbols=6, batch_size=100, length=100)
    data = config.build()
    train, test = ([(row[1:] - 1).tolist() for row in data.batch(s).tokens] for s in (0, 1))
    models = {order: NGramModel(train, 6, order) for order in (1, 2, 3)}
    losses = {order: float(torch.cat([m.loss(ids)[2:] for ids in test]).mean()) for order, m in models.items()}
    assert losses[1] > losses[2] > losses[3]
    assert config.optimal_loss() - 0.03 < losses[3] < config.optimal_loss() + 0.06


def test_samples_follow_the_model_and_the_generator():
    documents = [[0, 1, 2, 3, 4] * 20]
    for model in (BigramModel(documents, VOCAB), NGramModel(documents, VOCAB, 3)):
        one, two = (model.sample(50, torch.Generator().manual_seed(1)) for _ in range(2))
        assert one == two and len(one) == 50
        follows = sum(b == (a + 1) % 5 for a, b in pairwise(one))
        assert follows > 40
