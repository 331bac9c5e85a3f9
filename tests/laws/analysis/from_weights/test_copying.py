"""Copying scores from small matrices are those of the vocabulary-sized ones, and hand-made models get what they are."""

from typing import Any

import pytest
import torch

from glassformer import analysis, handmade, weights
from glassformer.errors import AnalysisUnavailable
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject
from one_pass import in_one_pass

PLAIN = ["gpt2", "llama", "attention_only", "alibi_window", "parallel", "sandwich", "post", "bare", "translator_pre"]


def _ratio(values):
    return values.real.sum(-1) / values.abs().sum(-1)


@pytest.mark.parametrize("name", [*PLAIN, "linear", "differential", "capped"])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("tokens", [None, [1, 2, 5, 7, 10]])
def test_eigenvalues_are_those_of_the_full_circuit(name, fold, tokens):
    w = weights.of(subject(name).model, fold=fold)
    found = analysis.from_weights.copying(w, tokens=tokens)
    for i, label in enumerate(found.ratio.labels("head")):
        dense = w.full_ov(str(label)).dense()[0]
        dense = dense if tokens is None else dense[tokens][:, tokens]
        big = torch.linalg.eigvals(dense)
        close(found.trace.values[i], big.real.sum(), 1e-7)
        close(found.ratio.values[i], _ratio(big), 1e-6)
        assert abs(found.ratio.values[i]) <= 1 + 1e-9


def test_every_head_is_scored_or_said_to_be_left_out():
    for name in ARCHITECTURES:
        w = weights.of(subject(name).model, fold=True)
        try:
            found = analysis.from_weights.copying(w)
        except AnalysisUnavailable:
            continue
        assert sorted([*found.ratio.labels("head"), *found.left_out]) == sorted(w.labels), name


@in_one_pass
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_biases_play_no_part(name, augment):
    model = subject(name).model
    close(
        analysis.from_weights.copying(weights.of(model, fold=True, augment=augment)).ratio.values,
        analysis.from_weights.copying(model).ratio.values,
        1e-7,
    )


@pytest.mark.parametrize("name", ["gpt2", "llama", "sandwich"])
def test_heads_of_several_layers_are_summed_before_the_eigenvalues_are_taken(name):
    for fold in (True, False):
        w = weights.of(subject(name).model, fold=fold)
        found = analysis.from_weights.copying(w, sums=[("L0H1", "L1H0")])
        dense = w.full_ov("L0H1").dense()[0] + w.full_ov("L1H0").dense()[0]
        close(found.ratio.select(head="L0H1+L1H0").values, _ratio(torch.linalg.eigvals(dense)), 1e-6)


@in_one_pass
@pytest.mark.parametrize("name", ["gpt2", "llama", "attention_only"])
@pytest.mark.parametrize("tokens", [None, [1, 2, 5, 7, 10]])
def test_rates_count_where_the_diagonal_stands_in_its_row(name, tokens):
    w = weights.of(subject(name).model, fold=True)
    found = analysis.from_weights.copying_rates(w, tokens=tokens, k=(1, 3))
    dense = torch.cat([w.full_ov(i).dense() for i in range(len(w))])
    dense = dense if tokens is None else dense[:, tokens][:, :, tokens]
    own = dense.diagonal(dim1=-2, dim2=-1)
    place = (dense > own[..., None]).sum(-1)
    close(found.rate.select(k=0).values, (place == 0).double().mean(-1))
    close(found.rate.select(k=1).values, (place < 3).double().mean(-1))
    close(found.suppressed.select(k=0).values, (dense >= own[..., None]).all(-1).double().mean(-1))
    close(found.positive.values, (own > dense.mean(-1)).double().mean(-1))
    close(found.z.values, ((own - dense.mean(-1)) / dense.std(-1, correction=0)).mean(-1))


def test_the_induction_head_copies_and_its_negative_suppresses():
    model: Any = handmade.induction_model()
    found = analysis.from_weights.copying(model)
    close(found.ratio.select(head="L1H0").values, torch.tensor(1.0, dtype=torch.float64))
    # what the previous-token head writes is read by no unembedding: nothing to copy with
    assert float(found.trace.select(head="L0H0").values) == 0
    assert [label for label, _ in found.heads()] == ["L1H0"]
    with torch.no_grad():
        model.stack.blocks[1].attn.merge.output.weight.neg_()
    close(analysis.from_weights.copying(model, ["L1H0"]).ratio.values, -torch.ones(1, dtype=torch.float64))
    rates = analysis.from_weights.copying_rates(model, ["L1H0"])
    # token 0 is not moved at all
    close(rates.suppressed.select(k=0).values, torch.tensor([20 / 21], dtype=torch.float64))
    close(rates.rate.select(k=0).values, torch.zeros(1, dtype=torch.float64))


def test_a_random_head_of_large_norm_does_not_copy():
    model: Any = handmade.induction_model()
    model = handmade.plant(model, 1, handmade.random_head(model, 1, silent=False))
    found = analysis.from_weights.copying(model)
    decoy = model.config.layers[1].parts[0].n_heads - 1
    assert abs(float(found.ratio.select(head=f"L1H{decoy}").values)) < 0.4
    assert found.heads()[0][0] == "L1H0"


def test_weights_alone_cannot_tell_a_copying_head_that_never_looks():
    model: Any = handmade.induction_model()
    model = handmade.plant(model, 1, handmade.resting_copier(model, 1))
    label = f"L1H{model.config.layers[1].parts[0].n_heads - 1}"
    assert float(analysis.from_weights.copying(model).ratio.select(head=label).values) > 0.9


def test_a_rotation_of_the_stream_changes_nothing():
    model = handmade.induction_model()
    before, after = (
        analysis.from_weights.copying(model, ["L1H0"]),
        analysis.from_weights.copying(handmade.rotated(model), ["L1H0"]),
    )
    close(after.ratio.values, before.ratio.values)
    close(after.trace.values, before.trace.values)


@in_one_pass
@pytest.mark.parametrize(
    ("name", "heads", "match"),
    [
        ("lightning_hybrid", ["L0H0"], "gate"),
        ("translator_pre", ["enc L0H0"], "no unembedding reads"),
        ("translator_pre", ["L0X0"], "encoder's output"),
        ("gpt2", ["L7H0"], "no head"),
    ],
)
def test_heads_without_a_copying_score_say_why(name, heads, match):
    with pytest.raises(AnalysisUnavailable, match=match):
        analysis.from_weights.copying(subject(name).model, heads)
