"""A model without layers is its direct path, and its loss on the chain it knows is the chain's entropy rate."""

import pytest
import torch

from glassformer import analysis, handmade, weights
from glassformer.data.tasks.chains import stationary
from glassformer.data.text.counts import BigramModel
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import DecoderConfig, Learned
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject
from one_pass import in_one_pass


def _table(n=6, seed=0):
    return torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(-1)


@in_one_pass
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("fields", [{}, {"positions": Learned()}, {"logit_cap": 0.5}, {"unembed_bias": True}])
def test_a_model_without_layers_is_its_direct_path(fields, fold):
    config = DecoderConfig(7, 8, (), max_len=5, **fields)
    model = randomise(config.build().double().eval(), 2)
    w = weights.of(model, fold=fold)
    at = 0 if "positions" in fields else None
    expected = model(torch.arange(7)[:, None])[:, 0].softmax(-1).topk(3)
    found = analysis.vocabulary.bigrams(w, k=3, position=at)
    close(found.probability.values, expected.values)
    assert torch.equal(found.outputs.values, expected.indices)
    assert found.layers == 0


@pytest.mark.parametrize("d_model", [None, 5])
def test_the_bigram_model_reaches_the_entropy_rate(d_model):
    table = _table()
    model = handmade.bigram_model(table, d_model=d_model)
    pi = stationary(table)
    found = analysis.vocabulary.bigrams(model, text=table, frequency=pi)
    close(found.kl_nats.values, torch.zeros(6, dtype=torch.float64), 1e-9)
    rate = float(-(pi[:, None] * table * table.log()).sum())
    assert found.loss_nats == pytest.approx(rate, abs=1e-9)
    assert found.entropy_nats == pytest.approx(rate, abs=1e-9)


def test_too_narrow_a_model_loses_what_its_divergence_says():
    table = _table(8)
    found = analysis.vocabulary.bigrams(handmade.bigram_model(table, d_model=2), text=table)
    assert found.loss_nats - found.entropy_nats == pytest.approx(float(found.kl_nats.values.mean()), abs=1e-9)
    assert found.loss_nats > found.entropy_nats + 1e-6


def test_counted_bigrams_compare_too():
    counted = BigramModel([[0, 1, 2, 1, 2, 3]], 4)
    model = handmade.bigram_model(counted.log_probs[:4].double().softmax(-1))
    found = analysis.vocabulary.bigrams(model, text=counted)
    assert float(found.kl_nats.values.abs().max()) < 1e-6
    assert found.table(1, 1)[0][0] == "2:s2"


def test_what_does_not_fit_says_so():
    with pytest.raises(AnalysisUnavailable, match="no position vectors"):
        analysis.vocabulary.bigrams(subject("llama").model, position=0)
    with pytest.raises(ShapeMismatch, match="vocabulary has 11"):
        analysis.vocabulary.bigrams(subject("llama").model, text=_table())
