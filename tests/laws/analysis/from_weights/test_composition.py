"""Composition scores are ratios of Frobenius norms of dense products, however they are computed."""

import dataclasses
from typing import Any

import pytest
import torch

from glassformer import weights
from glassformer.analysis.from_weights import composition
from glassformer.analysis.from_weights._reads_and_writes import comes_before
from glassformer.attention import Lightning, Linear, QueryKeyOnly, Rope
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import DecoderConfig, LayerNorm, Learned, NoNorm, RmsNorm, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, subject

OFFSETS = (1, 2, 5)
BILINEAR = sorted(set(ARCHITECTURES) - {"bare", "linear", "translator_linear", "lightning_hybrid"})


def _dense(layer, kind, offset=1):
    """Return `head stream d_model d_model`, stream only from QK: what reads, as the earlier OV meets it."""
    if kind == "V":
        return layer.ov().dense()[:, None]
    qk = layer.qk(offset).dense()
    qk = qk if qk.ndim == 4 else qk[:, None]
    return qk if kind == "Q" else qk.mT


def _score(ov, reads):
    """Return the score of one earlier OV and several matrices that read: squares add up."""
    met = sum((ov @ read).square().sum() for read in reads)
    return (met / (ov.square().sum() * sum(read.square().sum() for read in reads))).sqrt()


def _expected(w, first, second, kind, g, h, change=lambda ov: ov):
    offsets = OFFSETS if second.module.positions.rotates and kind != "V" else (1,)
    reads = [m for offset in offsets for m in _dense(second, kind, offset)[h]]
    return _score(change(first.ov().dense()[g]), reads)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", [name for name in BILINEAR if "post" not in name])
def test_scores_are_those_of_dense_products(name, exact):
    w = weights.of(subject(name).model, fold=True)
    found = composition(w, offsets=OFFSETS, exact=exact, draws=0)
    defined = found.scores.values.isfinite()
    assert defined.any()
    for i, first in enumerate(w):
        for j, second in enumerate(w):
            for kind in "QKV":
                known = not any(
                    f"{at.path} {what}" in found.left_out for at, what in ((first, "write"), (second, kind))
                )
                follows = comes_before(w.sub_layers[first.path], w.sub_layers[second.path], kind)
                for g, h in ((0, 1), (1, 0)):
                    score = found.scores.select(kind=kind, earlier=first.labels[g], later=second.labels[h]).values
                    assert score.isfinite() == (known and follows), (i, j, kind)
                    if known and follows:
                        # a Gram matrix squares what is compared
                        close(score, _expected(w, first, second, kind, g, h), None if exact else 1e-7)


@pytest.mark.parametrize("name", ["post", "translator_post"])
def test_writes_pass_the_gains_of_the_norms_that_stand_on_the_stream(name):
    model = subject(name).model
    w = weights.of(model, fold=True)
    stack = model.stacks[w.stack]
    first, second = (a for a in w.of_stack() if a.layer < 2)
    found = composition(w, draws=0)

    def passed(ov):
        names = stack.blocks[0].names
        for norm in [stack.blocks[0].norm_after(part) for part in names]:
            ov = (ov - ov.mean(-1, keepdim=True)) * norm.weight
        return ov

    for kind in "QKV":
        score = found.scores.select(kind=kind, earlier=first.labels[1], later=second.labels[0]).values
        close(score, _expected(w, first, second, kind, 1, 0, passed))
    with pytest.raises(AnalysisUnavailable, match="exact=True"):
        composition(w, exact=False)


@pytest.mark.parametrize("name", ["llama", "attention_only", "differential", "sandwich"])
def test_gram_matrices_made_row_by_row_give_the_same(name):
    w = weights.of(subject(name).model, fold=True)
    whole = composition(w, draws=0).scores.values
    close(composition(w, exact=False, budget=1, draws=0).scores.values.nan_to_num(), whole.nan_to_num(), 1e-7)


@pytest.mark.parametrize("name", ["llama", "attention_only"])
def test_matrices_stored_in_half_precision_are_computed_with_in_single(name):
    model = subject(name, dtype=torch.float32).model.bfloat16()
    rounded = composition(weights.of(model), draws=0).scores.values
    exact = composition(weights.of(model.double()), draws=0).scores.values
    assert rounded.dtype == torch.float32
    close(rounded.nan_to_num(), exact.nan_to_num().float(), 1e-4)


def test_grouped_heads_score_as_the_expanded_model():
    grouped = weights.of(subject("llama").model, fold=True)
    layers = [dataclasses.replace(a, K=a.K[a.group], V=a.V[a.group]) for a in grouped]
    expanded = dataclasses.replace(grouped, attention=tuple(layers))
    for exact in (True, False):
        found, expected = (composition(w, exact=exact, draws=0).scores.values for w in (grouped, expanded))
        close(found.nan_to_num(), expected.nan_to_num(), 1e-9 if exact else 1e-7)


def _changed(w, change):
    return dataclasses.replace(w, attention=tuple(change(a) for a in w.attention))


def test_rotating_the_stream_or_reparametrising_heads_changes_nothing():
    w = weights.of(subject("alibi_window").model, fold=True)
    expected = composition(w, draws=0).scores.values.nan_to_num()
    generator = torch.Generator().manual_seed(3)
    rotation = torch.linalg.qr(torch.randn(16, 16, generator=generator, dtype=torch.float64)).Q
    turned = _changed(
        w, lambda a: dataclasses.replace(a, Q=rotation @ a.Q, K=rotation @ a.K, V=rotation @ a.V, O=a.O @ rotation.mT)
    )
    close(composition(turned, draws=0).scores.values.nan_to_num(), expected)
    mixed = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    inside = _changed(
        w,
        lambda a: dataclasses.replace(
            a, Q=a.Q @ mixed, K=a.K @ mixed.inverse().mT, V=a.V @ mixed, O=mixed.inverse() @ a.O
        ),
    )
    close(composition(inside, draws=0).scores.values.nan_to_num(), expected)


def test_augmented_weights_score_the_same():
    model = subject("gpt2").model
    found = [composition(weights.of(model, fold=True, augment=on), draws=0).scores.values for on in (False, True)]
    close(found[1].nan_to_num(), found[0].nan_to_num())


@pytest.mark.parametrize("exact", [True, False])
def test_without_the_largest_singular_direction_scores_are_those_of_deflated_matrices(exact):
    w = weights.of(subject("gpt2").model, fold=True)
    found = composition(w, without_top=True, exact=exact, draws=0).scores

    def deflated(matrix):
        u, s, vh = torch.linalg.svd(matrix)
        return matrix - s[0] * u[:, :1] @ vh[:1]

    for kind in "QKV":
        expected = _score(deflated(w[0].ov().dense()[2]), [deflated(_dense(w[1], kind)[3, 0])])
        close(found.select(kind=kind, earlier="L0H2", later="L1H3").values, expected, 1e-9 if exact else 1e-6)


@pytest.mark.parametrize("exact", [True, False])
def test_a_covariance_weights_what_is_moved_and_the_side_that_is_compared_with(exact):
    w = weights.of(subject("gpt2").model, fold=True)
    rows = torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first, second = rows[0], rows[1]
    found = composition(w, covariance=[first.mT @ first, second.mT @ second], exact=exact, draws=0).scores
    for kind in "QKV":
        read = _dense(w[1], kind)[3, 0] if kind == "V" else _dense(w[1], kind)[3, 0] @ second.mT
        expected = _score(first @ w[0].ov().dense()[2], [read])
        close(found.select(kind=kind, earlier="L0H2", later="L1H3").values, expected, 1e-9 if exact else 1e-6)
    with pytest.raises(ShapeMismatch, match="1 covariances for 2"):
        composition(w, covariance=[first.mT @ first])
    white = composition(w, covariance=torch.eye(16, dtype=torch.float64) * 3, draws=0).scores.values
    close(white.nan_to_num(), composition(w, draws=0).scores.values.nan_to_num())


def test_random_matrices_score_one_over_the_root_of_the_width():
    config = DecoderConfig(7, 64, (block(n_heads=8, norm=NoNorm()),) * 2, max_len=4, final_norm=NoNorm())
    model = randomise(config.build().double(), 1)
    found = composition(model, seed=5)
    scores = found.scores.values[:, :8, 8:]
    assert found.baseline == 64**-0.5
    close(scores.square().mean((1, 2)).sqrt(), torch.full((3,), 0.125, dtype=torch.float64), 0.02)
    close(found.null_mean.values[:, 0, 8], scores.mean((1, 2)), 0.02)
    close(found.null_sd.values[:, 0, 8], scores.std((1, 2)), 0.35)
    # of 192 pairs without any composition none should stand out
    assert found.edges(5.0) == []
    assert composition(model, seed=5).null_sd.values[0, 0, 8] == found.null_sd.values[0, 0, 8]


def test_a_planted_edge_is_found_with_its_kind_and_comes_first():
    config = DecoderConfig(7, 64, (block(n_heads=8, norm=NoNorm()),) * 2, max_len=4, final_norm=NoNorm())
    w = weights.of(randomise(config.build().double(), 1))
    keys = w[1].K.clone()
    keys[5] = w[0].O[2].mT
    planted = dataclasses.replace(w, attention=(w[0], dataclasses.replace(w[1], K=keys)))
    edges = composition(planted).edges(5.0)
    assert [(e.kind, e.earlier, e.later) for e in edges] == [("K", "L0H2", "L1H5")]
    assert edges[0].over_null > 2 and edges[0].deviations > 15
    assert composition(planted).edges(5.0, kind="Q") == []


def test_what_reads_alone_needs_no_offset_and_no_bilinear_scores():
    for name in ("llama", "linear", "bare"):
        w = weights.of(subject(name).model, fold=True)
        for exact in (True, False):
            found = composition(w, form="read", exact=exact, draws=0)
            assert found.offsets == () and found.left_out == {}
            for kind, matrix in (
                ("Q", w[1].looking("query")),
                ("K", w[1].looking("key")[w[1].group]),
                ("V", w[1].V[w[1].group]),
            ):
                expected = _score(w[0].ov().dense()[1], [matrix[2]] if len(matrix) > 2 else [matrix[1]])
                later = "L1H2" if len(matrix) > 2 else "L1H1"
                score = found.scores.select(kind=kind, earlier="L0H1", later=later).values
                close(score, expected, 1e-9 if exact else 1e-7)


def test_mechanisms_without_bilinear_scores_keep_what_is_defined_and_say_why_not_the_rest():
    layers = (block(n_heads=2, norm=NoNorm()), block(Linear(), n_heads=2, norm=NoNorm()))
    model = randomise(DecoderConfig(7, 8, layers, max_len=4).build().double(), 2)
    found = composition(model, draws=0)
    assert found.scores.values[:2].isnan().all() and found.scores.values[2, :2, 2:].isfinite().all()
    assert "bilinear" in found.left_out["blocks.1.attn Q"]
    assert set(found.left_out) == {"blocks.1.attn Q", "blocks.1.attn K"}


def test_undefined_everywhere_is_an_error_that_says_what_would_work():
    gated = subject("lightning_hybrid").model.config.layers[0]
    model = DecoderConfig(7, 16, (gated, gated), max_len=4).build()
    with pytest.raises(AnalysisUnavailable, match="gate"):
        composition(model)
    with pytest.raises(AnalysisUnavailable, match="needs two attention layers"):
        composition(DecoderConfig(7, 8, (block(n_heads=2),), max_len=4).build())


def test_heads_of_one_parallel_block_do_not_compose():
    part = block(n_heads=2, norm=NoNorm()).parts[0]
    twice = dataclasses.replace(block(n_heads=2, norm=NoNorm()), parts=(part, part))
    for wiring, composes in (("pre", True), ("parallel", False)):
        layer = dataclasses.replace(twice, wiring=wiring)
        model = randomise(DecoderConfig(7, 8, (layer, block(n_heads=2)), max_len=4).build().double())
        scores = composition(model, draws=0).scores
        assert scores.select(kind="K", earlier="L0H0", later="L0H1#2").values.isfinite() == composes
        assert scores.select(kind="K", earlier="L0H0#2", later="L1H1").values.isfinite()


def test_cross_attention_reads_two_streams():
    scores = composition(subject("translator_pre").model, draws=0).scores
    finite = {
        (kind, earlier, later): bool(scores.select(kind=kind, earlier=earlier, later=later).values.isfinite())
        for kind in "QKV"
        for earlier, later in (("L0H0", "L0X1"), ("enc L1H0", "L0X1"), ("L0X0", "L1H1"), ("enc L0H0", "L1H0"))
    }
    assert [key for key, there in finite.items() if there] == [
        ("Q", "L0H0", "L0X1"), ("Q", "L0X0", "L1H1"), ("K", "enc L1H0", "L0X1"), ("K", "L0X0", "L1H1"),
        ("V", "enc L1H0", "L0X1"), ("V", "L0X0", "L1H1"),
    ]  # fmt: skip


def test_results_survive_json_and_draw_themselves():
    found = composition(subject("gpt2").model)
    data = found.to_dict()
    assert data["scores"]["values"][0][0][0] is None and data["form"] == "product"
    assert found.to_frame().columns.tolist() == ["kind", "earlier", "later", "value"]


@pytest.mark.parametrize("norm", [LayerNorm(), RmsNorm()])
def test_scores_of_folded_weights_do_not_depend_on_how_a_gain_is_split(norm):
    layers = (block(n_heads=2, norm=norm, positions=QueryKeyOnly()), block(n_heads=2, norm=norm))
    config = DecoderConfig(7, 16, layers, max_len=4, tied=False, positions=Learned())
    model: Any = randomise(config.build().double(), 4)
    before = composition(model, draws=0).scores.values
    with torch.no_grad():
        for part in model.stack.blocks:
            gain = part.attn_norm.weight
            part.attn.projection.qkv.weight *= gain
            # a mean that every reader subtracts is no part of what it reads
            if isinstance(norm, LayerNorm):
                part.attn.projection.qkv.weight += torch.randn(len(part.attn.projection.qkv.weight), 1).double()
            gain.fill_(1.0)
    close(composition(model, draws=0).scores.values.nan_to_num(), before.nan_to_num())


def test_lightning_heads_compose_by_values():
    model = randomise(
        DecoderConfig(7, 16, (block(Lightning(), n_heads=2, positions=Rope()),) * 2, max_len=4).build().double()
    )
    found = composition(model, draws=0)
    assert found.scores.select(kind="V", earlier="L0H0", later="L1H1").values.isfinite()
