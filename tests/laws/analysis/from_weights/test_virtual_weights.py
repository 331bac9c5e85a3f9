"""Virtual weights are products of writes and reads; turning the stream changes nothing that a model does."""

import math

import pytest
import torch

import glassformer as gf
from glassformer import analysis, handmade, weights
from glassformer.analysis.cards import card_of
from glassformer.analysis.from_weights._virtual_weights import product_norms
from glassformer.analysis.subspaces._basis import _kurtosis
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.testing import close
from glassformer.testing.models import subject


@pytest.mark.parametrize("name", ["gpt2", "llama", "parallel", "sandwich", "differential", "translator_pre"])
def test_strengths_are_norms_of_products_over_products_of_norms(name):
    w = weights.of(subject(name).model, fold=True)
    found = analysis.from_weights.virtual_weights(w)
    seen = 0
    for i, writer in enumerate(found.strength.labels("writer")):
        for j, reader in enumerate(found.strength.labels("reader")):
            value = found.strength.values[i, j]
            if value.isnan():
                with pytest.raises(AnalysisUnavailable, match="does not come after"):
                    analysis.from_weights.virtual(w, str(writer), str(reader))
                continue
            seen += 1
            m = analysis.from_weights.virtual(w, str(writer), str(reader))
            close(value, m.dense().norm() / (m.left.norm() * m.right.norm()))
    assert seen > 0
    assert found.baseline == 1 / math.sqrt(16)


def test_what_norms_of_queries_and_keys_multiply_by_is_part_of_what_reads():
    model = subject("bare").model
    layer = weights.matrices(model)[0]
    for norm, matrix, name in ((layer.norm("query"), layer.Q, "Q"), (layer.norm("key"), layer.K, "K")):
        gain = None if norm is None else norm.gain
        assert gain is not None and not torch.equal(gain, torch.ones_like(gain))
        found = analysis.from_weights.virtual(model, "token", f"L0H0 {name}")
        close(found.right, matrix[0] * gain.detach())


def test_the_direct_path_is_the_virtual_weight_from_token_to_unembedding():
    model = handmade.bigram_model(torch.full((3, 3), 1 / 3, dtype=torch.float64))
    w = weights.of(model, fold=True)
    close(analysis.from_weights.virtual(w, "token", "unembed").dense(), w.direct().dense())


def test_parts_of_a_parallel_block_do_not_read_each_other():
    parallel = analysis.from_weights.virtual_weights(subject("parallel").model).strength
    assert parallel.select(writer="L0H0", reader="L0 mlp in").values.isnan()
    assert not parallel.select(writer="L0H0", reader="L1 mlp in").values.isnan()
    one_by_one = analysis.from_weights.virtual_weights(subject("gpt2").model).strength
    assert not one_by_one.select(writer="L0H0", reader="L0 mlp in").values.isnan()


def test_the_induction_model_is_wired_as_it_was_built():
    found = analysis.from_weights.virtual_weights(handmade.induction_model())
    edges = {(a, b) for a, b, _ in found.edges(1.5)}
    assert ("L0H0", "L1H0 K") in edges and ("L1H0", "unembed") in edges
    # keys alone read what the first head writes
    assert ("L0H0", "L1H0 Q") not in edges and ("L0H0", "L1H0 V") not in edges and ("L0H0", "unembed") not in edges
    assert {a for a, b in edges if b == "L0H0 K"} == {"position"}
    turned = analysis.from_weights.virtual_weights(handmade.rotated(handmade.induction_model()))
    close(turned.strength.values.nan_to_num(-1), found.strength.values.nan_to_num(-1), 1e-8)


def test_random_directions_are_at_the_baseline():
    left, right = torch.randn(8, 20, 256), torch.randn(8, 20, 256)
    ratio = product_norms(list(left), list(right)) / (left.norm(dim=(1, 2))[:, None] * right.norm(dim=(1, 2)))
    assert abs(float(ratio.mean()) * 16 - 1) < 0.05


def test_post_norm_stacks_and_unknown_components_say_so():
    with pytest.raises(AnalysisUnavailable, match="post-norm"):
        analysis.from_weights.virtual_weights(subject("post").model)
    with pytest.raises(AnalysisUnavailable, match='no component "L0H9"'):
        analysis.from_weights.virtual_weights(subject("gpt2").model, ["L0H9"])


FOLDING = ["gpt2", "llama", "attention_only", "alibi_window", "parallel", "bare", "differential", "lightning_hybrid"]


@pytest.mark.parametrize("name", [*FOLDING, "linear", "translator_pre"])
def test_a_rotation_changes_nothing_once_norms_are_folded(name):
    model = subject(name)
    found = analysis.subspaces.rotation_test(model.model, *model.inputs[::-1])
    assert found.folded < (1e-7 if "linear" in name else 1e-10)
    assert found.gains_left == ()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_rotation_breaks_what_is_not_folded(name):
    model = subject(name)
    assert analysis.subspaces.rotation_test(model.model, *model.inputs).unfolded > 0.01


@pytest.mark.parametrize("name", ["post", "sandwich"])
def test_gains_that_stay_are_named(name):
    model = subject(name)
    found = analysis.subspaces.rotation_test(model.model, *model.inputs)
    assert found.gains_left and found.folded > 1e-6


@pytest.mark.parametrize("keep_mean", [False, True])
def test_rotations_are_orthogonal_and_keep_the_mean_if_asked(keep_mean):
    turn = analysis.subspaces.rotation(9, 3, keep_mean=keep_mean)
    close(turn @ turn.mT, torch.eye(9, dtype=torch.float64))
    ones = torch.ones(9, dtype=torch.float64)
    assert torch.allclose(ones @ turn, ones) is keep_mean


def test_augmented_weights_are_not_turned():
    with pytest.raises(ShapeMismatch, match="augment"):
        analysis.subspaces.rotate(weights.of(subject("gpt2").model, augment=True))


def test_tails_are_those_of_the_coordinates_after_the_first_position():
    model = subject("gpt2").model
    ids = torch.randint(0, 11, (40, 20), generator=torch.Generator().manual_seed(0))
    found = analysis.subspaces.kurtosis(gf.run(model, ids, read=[analysis.subspaces.kurtosis]))
    assert found.tokens == 40 * 19
    assert found.coordinates.labels("site") == ["blocks.0.resid_pre", "blocks.1.resid_pre", "blocks.1.resid_post"]
    x = gf.run(model, ids, read=["blocks.0.resid_pre"])["blocks.0.resid_pre"].values[:, 1:].flatten(0, 1)
    x = x - x.mean(0)
    close(found.coordinates.values[0], (x.pow(4).mean(0) / x.square().mean(0).square()).mean())


def test_a_stream_with_a_basis_of_its_own_has_heavier_tails_than_the_same_stream_turned():
    model = handmade.induction_model()
    ids = handmade.repeated(batch=30)
    read = card_of(analysis.subspaces.kurtosis).reads(model)
    plain = analysis.subspaces.kurtosis(gf.run(model, ids, read=read))
    assert (plain.coordinates.values > 3 * plain.rotated.values).all()
    hidden = analysis.subspaces.kurtosis(gf.run(handmade.rotated(model, 7), ids, read=read))
    assert (hidden.coordinates.values < 2 * hidden.rotated.values).all()


def test_a_gaussian_has_a_kurtosis_of_three():
    gaussian = torch.randn(4000, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    close(_kurtosis(gaussian), torch.tensor(3.0, dtype=torch.float64), 0.05)
