"""ACDC: the greedy loop's own result, limits of the threshold, and planted wirings found exactly."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer as gf
from circuit_pairs import Compared, novelty, pair, repetition
from glassformer import data
from glassformer.analysis.circuits import Acdc, Edge, acdc, acdc_curve, faithfulness
from glassformer.analysis.sweep import kl_divergence, logit
from glassformer.errors import AnalysisUnavailable, CheckpointError
from glassformer.handmade import (
    induction_model,
    keep_in_mind,
    plant,
    pointer_model,
    random_head,
    resting_copier,
    rotated,
    skip_trigram_model,
    virtual_head_model,
)
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES

every = pytest.mark.parametrize("name", ARCHITECTURES)


def _one_by_one(
    found: Compared, threshold: float, absolute: bool = False, among: Sequence[Edge] | None = None
) -> tuple[Tensor, list[float]]:
    """Prune as the paper says: one edge, one pass."""
    runs = found.runs()
    allowed = runs.graph.allowed.values
    tried = allowed if among is None else runs.graph.mask(among)
    cut = allowed & ~tried

    def cost(cut: Tensor) -> float:
        return -float(runs.evaluate(cut[None]).mean())

    current, changes = cost(cut), []
    for r in range(len(allowed) - 1, -1, -1):
        for u in range(allowed.shape[1] - 1, -1, -1):
            if not tried[r, u]:
                continue
            cut[r, u] = True
            change = cost(cut) - current
            changes.append(change)
            if (abs(change) if absolute else change) < threshold:
                current += change
            else:
                cut[r, u] = False
    return allowed & ~cut, changes


@pytest.mark.parametrize(("name", "absolute"), [("attention_only", False), ("differential", True), ("sandwich", False)])
def test_chains_of_worlds_give_what_one_pass_per_edge_gives(name: str, absolute: bool) -> None:
    found = pair(name)
    kept, changes = _one_by_one(found, 0.004, absolute)
    result = acdc(*found.args, threshold=0.004, absolute=absolute)
    assert torch.equal(result.in_circuit.values, kept)
    close(torch.tensor([step.change for step in result.log]), torch.tensor(changes), 1e-6)
    assert 0 < len(result.edges) < len(result.log)


@pytest.mark.parametrize(
    ("name", "candidates"), [("gpt2", 12), ("post", 7), ("sandwich", 7), ("parallel", 12), ("translator_pre", 30)]
)
def test_behind_a_prefilter_the_loop_is_that_of_one_pass_per_edge_too(name: str, candidates: int) -> None:
    found = pair(name)
    graph = found.runs().graph
    result = acdc(*found.args, threshold=0.001, candidates=candidates)
    # what the last norm reads has lost edges, too, before the first is tried
    assert 0 < sum(step.edge.receiver == "logits" for step in result.log) < len(graph.read_by(len(graph.receivers) - 1))
    kept, changes = _one_by_one(found, 0.001, among=[step.edge for step in result.log])
    assert torch.equal(result.in_circuit.values, kept)
    close(torch.tensor([step.change for step in result.log]), torch.tensor(changes), 1e-6)
    assert 0 < len(result.edges) < len(result.log)


def test_every_candidate_is_decided_and_logged_even_where_nothing_may_be_gained() -> None:
    found = pair("parallel")
    result = acdc(*found.args, threshold=0.0, candidates=21)
    kept = [step.edge for step in result.log if not step.removed]
    assert len(result.log) == 21 and kept[::-1] == list(result.edges)


@every
def test_a_threshold_of_minus_infinity_keeps_all_and_of_infinity_nothing(name: str) -> None:
    found = pair(name)
    metric = kl_divergence(found.model(*found.clean)[:, -1].detach())
    args = found.prompts
    everything = acdc(*args, threshold=math.inf)
    assert everything.edges == () and everything.faithfulness == pytest.approx(0.0, abs=1e-9)
    expected = float(metric.function(found.model(*found.corrupt)[None, :, -1].detach()).mean())
    assert everything.cost == pytest.approx(expected)
    if name in ("attention_only", "post", "differential"):
        whole = acdc(*args, threshold=-math.inf)
        assert len(whole.edges) == found.runs().graph.n_edges
        assert whole.cost == pytest.approx(0.0, abs=1e-12) and whole.faithfulness == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["gpt2", "sandwich", "post", "translator_pre"])
def test_running_the_circuit_again_gives_the_logged_cost(name: str) -> None:
    found = pair(name)
    result = acdc(*found.args, threshold=0.003)
    again = faithfulness(*found.prompts, result.edges, found.metric)
    assert -float(again.circuit.values.mean()) == pytest.approx(result.cost, rel=1e-9)
    assert again.faithfulness == pytest.approx(result.faithfulness, rel=1e-6)
    assert [step.edge for step in result.log if not step.removed][::-1] == list(result.edges)


def test_higher_thresholds_leave_smaller_circuits_on_the_planted_model() -> None:
    found = acdc_curve(induction_model(gamma=6.0), *repetition(), thresholds=[1e-3, 1.0, 100.0])
    assert found.n_edges.values.tolist() == sorted(found.n_edges.values.tolist(), reverse=True)
    assert found.n_edges.values[-1] == 0 and float(found.faithfulness.values[0]) == pytest.approx(1.0, abs=1e-3)


def test_a_circuit_of_a_curve_is_compared_and_splits_the_embedding_as_one_found_alone() -> None:
    found = pair("gpt2")
    (of_curve,) = acdc_curve(*found.args, thresholds=[0.01], split_embedding=True, compare=True).circuits
    alone = acdc(*found.args, threshold=0.01, split_embedding=True, compare=True)
    assert of_curve.compared is not None and of_curve.compared == alone.compared
    assert of_curve.edges == alone.edges and {"token", "position"} <= set(of_curve.in_circuit.labels("sender"))
    one = data.Contrast(found.clean[0][:1], found.corrupt[0][:1])
    with pytest.raises(AnalysisUnavailable, match="acdc_curve: compare=True prunes for each half"):
        acdc_curve(found.model, one, thresholds=[0.01], compare=True)


INDUCTION = {
    ("embed", "L0H0.v"), ("L0H0", "L1H0.k"), ("embed", "L1H0.q"), ("embed", "L1H0.v"), ("L1H0", "logits"),
}  # fmt: skip


TRAINED = {
    ("L0H0", "L1H6.v"), ("L0H2", "L1H6.v"), ("L0H6", "L1H6.v"), ("L1H6", "logits"), ("embed", "L0H0.v"),
    ("embed", "L0H2.v"), ("embed", "L0H6.k"), ("embed", "L0H6.q"), ("embed", "L0H6.v"),
}  # fmt: skip


def _edges(result: Acdc) -> set[tuple[str, str]]:
    return set(result.edges)


def test_induction_by_keys_is_returned_exactly() -> None:
    result = acdc(induction_model(), *repetition(), threshold=1e-3)
    assert _edges(result) == INDUCTION
    assert result.faithfulness == pytest.approx(1.0) and result.nodes == ["embed", "L0H0", "L1H0"]


@pytest.mark.parametrize("candidates", [5, 8])
def test_edges_that_attribution_leaves_hold_the_planted_wirings(candidates: int) -> None:
    pairs, metric = novelty()
    for args in ((induction_model(), *repetition()), (pointer_model(vocab=25), pairs, metric)):
        assert _edges(acdc(*args, threshold=1e-3, candidates=candidates)) == _edges(acdc(*args, threshold=1e-3))


@pytest.mark.full
def test_a_trained_model_keeps_its_circuit_behind_attribution() -> None:
    # the keys of its induction heads are saturated: their gradients at the clean run are next to nothing
    model = gf.load("attn-only-2l")
    pairs = data.induction(model.require_tokenizer(), 8, seed=0)
    exact = acdc(model, pairs, threshold=0.3)
    assert set(exact.edges) == TRAINED
    assert set(acdc(model, pairs, threshold=0.3, candidates=120).edges) == TRAINED


def test_divergence_finds_the_same_wiring_as_the_logit() -> None:
    pairs, _ = repetition()
    assert _edges(acdc(induction_model(), pairs, threshold=1e-3)) == INDUCTION


def test_decoys_and_a_hidden_basis_do_not_change_the_wiring() -> None:
    model = rotated(induction_model(), seed=3)
    model = plant(model, 1, resting_copier(model, 1))
    model = plant(model, 0, random_head(model, 0))
    assert _edges(acdc(model, *repetition(), threshold=1e-3)) == INDUCTION


def test_induction_by_queries_is_returned_exactly() -> None:
    pairs, metric = novelty()
    result = acdc(pointer_model(vocab=25), pairs, metric, threshold=1e-3)
    # queries and keys of the first head must agree: with one of them corrupt, the other is of no use either
    assert _edges(result) == {
        ("embed", "L0H0.q"), ("embed", "L0H0.k"), ("L0H0", "L1H0.q"), ("embed", "L1H0.v"), ("L1H0", "logits"),
    }  # fmt: skip


def test_a_virtual_head_is_returned_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    clean, corrupt = (torch.randint(1, 10, (4, 12), generator=generator) for _ in range(2))
    result = acdc(virtual_head_model(), (clean, corrupt), logit(clean[:, -3].tolist()), threshold=1e-3)
    assert _edges(result) == {("embed", "L0H0.v"), ("L0H0", "L1H0.v"), ("L1H0", "logits")}


def test_a_skip_trigram_is_returned_exactly() -> None:
    model = skip_trigram_model(keep_in_mind(2))
    keys_only = acdc(model, ([[0, 1, 5, 2]], [[0, 5, 5, 2]]), logit("mind"), threshold=1e-3)
    assert _edges(keys_only) == {("embed", "L0H0.k"), ("embed", "L0H0.v"), ("L0H0", "logits")}
    both = acdc(model, ([[0, 1, 5, 2]], [[0, 5, 5, 4]]), logit("mind"), threshold=1e-3)
    assert _edges(both) == _edges(keys_only) | {("embed", "L0H0.q")}


def test_redundant_heads_are_both_found() -> None:
    result = acdc(induction_model(redundant=True), *repetition(), threshold=1e-3)
    twins = {(a.replace("L1H0", "L1H1"), b.replace("L1H0", "L1H1")) for a, b in INDUCTION}
    assert _edges(result) == INDUCTION | twins


def test_a_prefilter_takes_edges_away_beforehand() -> None:
    pairs, metric = repetition()
    # unsaturated, so that the gradient sees the wiring
    model = induction_model(gamma=3.0)
    result = acdc(model, pairs, metric, threshold=1e-3, candidates=6)
    assert result.prefiltered == 29 - 6 and len(result.log) == 6
    assert _edges(result) == INDUCTION
    assert _edges(acdc(model, pairs, threshold=1e-3, candidates=6)) == INDUCTION


def test_few_passes_serve_many_edges() -> None:
    result = acdc(induction_model(), *repetition(), threshold=1e-3)
    assert result.passes < len(result.log) / 2


def test_progress_counts_edges() -> None:
    seen: list[tuple[int, int]] = []
    acdc(induction_model(), *repetition(), threshold=1e-3, report=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (29, 29) and all(total == 29 for _, total in seen)


def test_a_prefilter_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(AnalysisUnavailable, match="candidates=0"):
        acdc(induction_model(), *repetition(), threshold=1e-3, candidates=0)


def test_where_both_prompts_cost_the_same_no_share_of_the_way_between_them_is_defined() -> None:
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    found = acdc_curve(induction_model(), (ids, ids), thresholds=[1e-3, 1.0])
    assert found.faithfulness.values.isnan().all()
    assert [circuit.cost_full - circuit.cost_empty for circuit in found.circuits] == [0, 0]


class _Stopped(Exception):
    pass


@pytest.mark.parametrize("candidates", [None, 40])
def test_a_search_that_was_interrupted_goes_on_to_the_same_circuit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, candidates: int | None
) -> None:
    monkeypatch.setattr("glassformer.analysis.saved.SECONDS", 0.0)
    given, file = (induction_model(), *repetition()), tmp_path / "search.safetensors"
    asked: dict[str, Any] = {"threshold": 1e-3, "candidates": candidates}
    whole, tried = acdc(*given, **asked), list[int]()

    def stop(done: int, _: int) -> None:
        tried.append(done)
        if len(tried) in (2, 4):
            raise _Stopped

    for _ in range(2):
        with pytest.raises(_Stopped):
            acdc(*given, **asked, save_to=file, report=stop)
    found = acdc(*given, **asked, save_to=file, report=stop)
    # nothing was decided twice
    assert tried == sorted(set(tried))
    assert (found.log, found.edges, found.cost, found.passes) == (whole.log, whole.edges, whole.cost, whole.passes)
    with pytest.raises(CheckpointError, match="another search"):
        acdc(*given, threshold=2e-3, candidates=candidates, save_to=file)
    with pytest.raises(CheckpointError, match="another search"):
        with torch.no_grad():
            given[0].unembed.stored.mul_(1.5)
        acdc(*given, **asked, save_to=file)
