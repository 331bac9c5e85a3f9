"""Analyses of weights on every architecture: a finite result, or an error that says what is missing."""

import pytest
import torch

import glassformer as gf
from glassformer import analysis, weights
from glassformer.analysis.cards import card_of
from glassformer.errors import AnalysisUnavailable
from glassformer.testing.models import ARCHITECTURES, subject
from one_pass import in_one_pass

WEIGHTS = {
    "copying": lambda w: analysis.from_weights.copying(w).ratio,
    "copying_rates": lambda w: analysis.from_weights.copying_rates(w).z,
    "OV pairs": lambda w: analysis.vocabulary.token_pairs(w, "OV", k=3).values,
    "QK pairs": lambda w: analysis.vocabulary.token_pairs(w, "QK", k=3).values,
    "token_circuits": lambda w: analysis.vocabulary.token_circuits(w, 3, k=2).raised,
    "skip_trigrams": lambda w: analysis.vocabulary.skip_trigrams(w, k=3).contribution,
    "crossed_trigrams": lambda w: analysis.vocabulary.crossed_trigrams(w, [[1, 2, 3]], [1], [2], [3, 4]).contribution,
    "positional_heads": lambda w: analysis.from_weights.positional_heads(w, offsets=3).scores,
    "offset_profile": lambda w: analysis.from_weights.offset_profile(w, offsets=5),
    "bigrams": lambda w: analysis.vocabulary.bigrams(w, k=2).probability,
    "virtual_weights": lambda w: analysis.from_weights.virtual_weights(w).strength.select(
        writer="token", reader=slice(-1, None)
    ),
    "bandwidth": lambda w: analysis.subspaces.bandwidth(w).dimensions,
    "overlaps": lambda w: analysis.subspaces.overlaps(w).overlap,
    "erasers": lambda w: analysis.subspaces.erasers(w).head_ratio,
    "joint_pca": lambda w: analysis.subspaces.joint_pca(w).variance,
}
RUNS = {
    "offset_scores": (
        card_of(analysis.from_weights.offset_scores).reads,
        lambda run: analysis.from_weights.offset_scores(run, offsets=3).scores,
    ),
    "erasure": (card_of(analysis.subspaces.erasure).reads, lambda run: analysis.subspaces.erasure(run).cosine),
    "kurtosis": (card_of(analysis.subspaces.kurtosis).reads, lambda run: analysis.subspaces.kurtosis(run).coordinates),
    "stream_dimensions": (
        card_of(analysis.subspaces.kurtosis).reads,
        lambda run: analysis.subspaces.stream_dimensions(run).participation_ratio,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
@pytest.mark.parametrize("what", sorted(WEIGHTS))
def test_every_analysis_of_weights_is_defined_or_says_why(what, name):
    model = subject(name).model
    for fold in (True, False):
        try:
            found = WEIGHTS[what](weights.of(model, fold=fold))
        except AnalysisUnavailable as error:
            # what was asked, what was found, and where to go from here
            assert len(str(error).splitlines()) >= 2 or "Heads:" in str(error), error
            continue
        assert found.values.numel() > 0
        assert found.values.isfinite().all()


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
@pytest.mark.parametrize("what", sorted(RUNS))
def test_every_analysis_of_a_run_beside_weights_is_defined_or_says_why(what, name):
    model = subject(name)
    needs, analyse = RUNS[what]
    run = gf.run(model.model, *model.inputs, read=needs(model.model))
    try:
        found = analyse(run)
    except AnalysisUnavailable:
        return
    assert found.values.numel() > 0
    assert found.values.isfinite().all()


@in_one_pass
@pytest.mark.parametrize("what", sorted(WEIGHTS))
def test_half_precision_weights_give_what_full_ones_do(what):
    model = subject("llama", dtype=torch.float32).model
    full = WEIGHTS[what](model)
    half = WEIGHTS[what](model.bfloat16())
    assert half.values.shape == full.values.shape
    assert float((half.values.float() - full.values.float()).abs().mean()) < 0.2 * (1 + float(full.values.abs().mean()))
