"""Induction from weights: small matrices have the eigenvalues of the large ones, and wired circuits are found."""

from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer import weights
from glassformer.analysis.from_weights import composition, copying, induction_circuits, matching_trace
from glassformer.analysis.heads import head_scores
from glassformer.attention import QueryKeyOnly, Rope
from glassformer.errors import AnalysisUnavailable
from glassformer.handmade import induction_model, pointer_model, rotated, virtual_head_model
from glassformer.models import DecoderConfig, LayerNorm, Learned, Mlp, RmsNorm, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject


def _ratio(matrix):
    values = torch.linalg.eigvals(matrix)
    return values.real.sum() / values.abs().sum()


def _model(norm=None, n_layers=2, mlp=None, **attention):
    part = block(n_heads=4, n_kv_heads=2, norm=norm or LayerNorm(), mlp=mlp, **attention)
    return randomise(DecoderConfig(11, 16, (part,) * n_layers, max_len=24, tied=False).build().double().eval(), 7, 0.3)


@pytest.mark.parametrize("positions", [QueryKeyOnly(), Rope(), Rope(fraction=0.5)])
@pytest.mark.parametrize("norm", [LayerNorm(), RmsNorm()])
def test_ratios_are_those_of_vocabulary_by_vocabulary_matrices(positions, norm):
    w = weights.of(_model(norm, positions=positions), fold=True)
    found = induction_circuits(w, through="token", offsets=(1, 2), draws=4)
    rows = w.normed(w.E, w.norm_before(w[0]), bias=False)
    qk, ov = w[1].qk((1, 2)).dense(), w[0].ov().dense()
    for g, h in ((0, 1), (3, 2)):
        big = rows @ qk[h] @ ov[g].mT @ rows.mT * w[1].scale
        at = {"earlier": f"L0H{g}", "later": f"L1H{h}"}
        close(found.match.select(**at).values, _ratio(big), 1e-6)
        close(found.trace.select(**at).values, big.trace())
        close(found.duplicate.select(head=f"L1H{h}").values, _ratio(rows @ qk[h] @ rows.mT), 1e-6)
    close(found.copy.values, copying(w).ratio.values, 1e-6)
    weighted = torch.einsum("h,hab->ab", found.previous.values[:4].nan_to_num(), ov)
    expected = _ratio(rows @ qk[1] @ weighted.mT @ rows.mT)
    if positions != QueryKeyOnly():
        assert found.offsets == (1, 2)
    if weighted.any():
        close(found.combined.select(head="L1H1").values, expected, 1e-6)
    assert found.match.values[4:].isnan().all() and found.match.values[:, :4].isnan().all()


@pytest.mark.parametrize("norm", [LayerNorm(), RmsNorm()])
def test_the_stream_of_a_token_holds_what_was_written_where_it_stands(norm):
    model: Any = _model(norm, positions=QueryKeyOnly(2.0), mlp=Mlp(8, "silu", gated=True, bias=False))
    w = weights.of(model, fold=True)
    found = induction_circuits(w, draws=0)
    assert not any(u.values.requires_grad for u in (found.match, found.copy, found.trace))
    current = found.current.values[:4]
    assert (current > 0.02).all()
    layer = model.stack.blocks[0]
    first = w.normed(w.E, w.norm_before(w[0]), bias=False)
    x = w.E + torch.einsum("h,nd,hde->ne", current, first, w[0].ov().dense())
    x = x + layer.mlp.write(layer.mlp_norm(x[None]))[0]
    second = w.normed(x, w.norm_before(w[1]), bias=False)
    big = second @ w[1].qk().dense()[1] @ w[0].ov().dense()[2].mT @ first.mT
    close(found.match.select(earlier="L0H2", later="L1H1").values, _ratio(big), 1e-6)
    close(found.copy.select(head="L1H1").values, _ratio(second @ w[1].ov().dense()[1] @ w.U), 1e-6)


@pytest.mark.parametrize("seed", [None, 3])
def test_the_wired_circuit_is_found_with_every_number_known(seed):
    model = induction_model()
    model = model if seed is None else rotated(model, seed)
    found = induction_circuits(model)
    circuits = found.circuits()
    assert [(c.kind, c.earlier, c.later) for c in circuits] == [("K", "L0H0", "L1H0")]
    best = circuits[0]
    exact = torch.tensor([1.0, 1.0, 1.0, (1.25 * 21) ** -0.5], dtype=torch.float64)
    close(torch.tensor([best.role, best.match, best.copy, best.composition], dtype=torch.float64), exact, 1e-6)
    # gamma for each of the tokens but <bos>, which no previous-token head copies off
    trace = float(found.trace.select(earlier="L0H0", later="L1H0").values)
    assert trace == pytest.approx(30.0 * 21, rel=1e-6)
    assert float(found.combined.select(head="L1H0").values) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_pointer_is_told_from_a_previous_token_circuit(seed):
    model = pointer_model() if seed is None else rotated(pointer_model(), seed)
    circuits = induction_circuits(model).circuits()
    assert [(c.kind, c.earlier, c.later) for c in circuits] == [("Q", "L0H0", "L1H0")]
    assert circuits[0].match == pytest.approx(1.0, abs=1e-6)


def test_a_virtual_head_is_no_induction_circuit():
    assert induction_circuits(virtual_head_model()).circuits() == []


def test_wired_models_compose_as_wired_and_not_otherwise():
    n, t = 21, 41
    for model, kind, score in (
        (induction_model(), "K", (1.25 * n) ** -0.5),
        (pointer_model(), "Q", ((t - 2) / ((t - 1) * (t - 1 + n / 4))) ** 0.5),
        (virtual_head_model(10), "V", 10**-0.5),
    ):
        for exact in (True, False):
            scores = composition(model, exact=exact, draws=0).scores
            for other in "QKV":
                found = float(scores.select(kind=other, earlier="L0H0", later="L1H0").values)
                assert found == pytest.approx(score if other == kind else 0.0, abs=1e-9), (kind, other, exact)
        edges = composition(model).edges(3.0)
        assert [(e.kind, e.earlier, e.later) for e in edges] == [(kind, "L0H0", "L1H0")]


@pytest.mark.full
def test_the_shipped_two_layer_model_is_read_off_its_weights():
    model = gf.load("attn-only-2l")
    scores = head_scores(model).scores
    measured = {str(label): value for (label, *_), value in scores.select(role="induction").top(2)}
    assert min(measured.values()) > 0.6
    circuits = induction_circuits(model).circuits(2)
    assert {c.later for c in circuits} == set(measured)
    (previous, *_), _ = scores.select(role="previous_token").top(1)[0]
    assert {(c.kind, c.earlier) for c in circuits} == {("K", previous)}
    trace = matching_trace(model)
    assert trace.correlation["trace"] > 0.9
    assert {str(label) for (label,), _ in trace.trace.select(head=slice(8, 16)).top(2)} == set(measured)
    # the token's vector alone misses it: a head of the first layer rewrites every token before it is compared
    assert matching_trace(model, through="token").correlation["trace"] < 0


def test_all_pairs_have_a_trace_but_only_the_likeliest_eigenvalues():
    model = _model(positions=QueryKeyOnly())
    few, all_ = induction_circuits(model, most=1, draws=0), induction_circuits(model, draws=0)
    close(few.trace.values.nan_to_num(), all_.trace.values.nan_to_num())
    assert int(few.match.values.isfinite().sum()) == 4 and int(all_.match.values.isfinite().sum()) == 16


def test_some_tokens_stand_for_the_vocabulary():
    w = weights.of(_model(positions=QueryKeyOnly()), fold=True)
    found = induction_circuits(w, through="token", tokens=[1, 3, 4, 9], draws=0)
    rows = w.normed(w.E[[1, 3, 4, 9]], w.norm_before(w[0]), bias=False)
    big = rows @ w[1].qk().dense()[0] @ w[0].ov().dense()[0].mT @ rows.mT
    close(found.match.select(earlier="L0H0", later="L1H0").values, _ratio(big), 1e-6)
    assert found.n_tokens == 4


def test_pointers_need_position_vectors_in_the_stream():
    assert induction_circuits(_model(positions=QueryKeyOnly()), draws=0).pointer.values.isnan().all()
    learned = DecoderConfig(11, 16, (block(n_heads=2),) * 2, max_len=9, positions=Learned()).build().double()
    w = weights.of(randomise(learned, 2), fold=True)
    found = induction_circuits(w, draws=0)
    read = w.source_rows(w[0], "value", "position")
    big = read[:-1] @ w[0].ov().dense()[1] @ w[1].qk().dense()[0] @ w.source_rows(w[1], "key", "position")[1:].mT
    close(found.pointer.select(earlier="L0H1", later="L1H0").values, _ratio(big), 1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [("post", "post-norm"), ("linear", "bilinear"), ("differential", "two maps")],
)
def test_models_without_composable_circuits_are_told_what_would_work(name, message):
    with pytest.raises(AnalysisUnavailable, match=message):
        induction_circuits(subject(name).model)


@pytest.mark.parametrize("name", ["gpt2", "llama", "alibi_window", "parallel", "sandwich", "translator_pre"])
def test_every_other_architecture_gives_finite_ratios(name):
    found = induction_circuits(subject(name).model, draws=4)
    assert found.match.values.isfinite().any() and found.copy.values.isfinite().all()
    assert (found.match.values.nan_to_num().abs() <= 1 + 1e-9).all()
    with pytest.raises(AnalysisUnavailable, match="augment=False"):
        induction_circuits(weights.of(subject(name).model, fold=True, augment=True))


def test_heads_of_one_layer_alone_compose_with_none() -> None:
    # the first layer's gate leaves it out
    with pytest.raises(AnalysisUnavailable, match=r"no two heads of this model compose; found .* of L1H0 to L1H3"):
        matching_trace(subject("lightning_hybrid").model)
