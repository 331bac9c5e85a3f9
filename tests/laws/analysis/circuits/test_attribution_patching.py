"""Attribution patching: exact where all is linear, complete everywhere, wrong where attention is saturated."""

import pytest
import torch

from circuit_pairs import Compared, pair, repetition
from glassformer.analysis.circuits import attribute_edges, attribute_nodes
from glassformer.analysis.circuits._circuit_runs import CircuitRuns
from glassformer.analysis.sweep import answer_rank, kl_divergence, log_probability, logit
from glassformer.errors import AnalysisUnavailable
from glassformer.handmade import induction_model, repeated, virtual_head_model
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject

every = pytest.mark.parametrize("name", ARCHITECTURES)


@every
def test_edges_out_of_a_sender_sum_to_its_node_attribution(name: str) -> None:
    found = pair(name)
    nodes = attribute_nodes(*found.args)
    edges = attribute_edges(*found.args)
    close(edges.effect.values.nan_to_num(0.0).sum(0), nodes.effect.values.mean(-1))


@pytest.mark.parametrize("name", ["gpt2", "attention_only", "parallel", "lightning_hybrid", "translator_pre"])
def test_edges_into_a_receiver_sum_to_the_attribution_of_what_it_reads(name: str) -> None:
    found = pair(name)
    edges, runs = attribute_edges(*found.args), found.runs()
    last = runs.graph.receiver("logits")
    # what the logits read can be differentiated by itself
    clean, corrupt = (run.sites[runs.read_at(len(runs.steps))] for run in (runs.clean, runs.corrupt))
    x = clean.clone().requires_grad_()
    logits = found.model.unembed.logits(runs.stack.final(x))
    ids = found.metric.ids(found.model, len(x), x.device)
    (gradient,) = torch.autograd.grad(found.metric.function(logits[None, :, -1], *ids).sum(), x)
    expected = ((corrupt - clean) * gradient).sum() / len(x)
    close(edges.effect.values[last].nan_to_num(0.0).sum(), expected)


@every
def test_gradients_agree_with_small_patches(name: str) -> None:
    found = pair(name)
    edges = attribute_edges(*found.args)
    runs, step = found.runs(), 1e-5
    places = runs.graph.allowed.values.nonzero()[::7]
    cut = torch.zeros(2 * len(places), *runs.graph.allowed.values.shape, dtype=torch.float64)
    for i, (r, u) in enumerate(places.tolist()):
        cut[2 * i, r, u], cut[2 * i + 1, r, u] = step, -step
    values = runs.evaluate(cut).mean(-1).unflatten(0, (-1, 2))
    slope = (values[:, 0] - values[:, 1]) / (2 * step)
    # differences of logits over a step this small keep about nine digits
    close(edges.effect.values[places[:, 0], places[:, 1]], slope, 1e-6)


def _without_looking(name: str) -> Compared:
    """Return an attention-only pair whose patterns do not depend on the text, without norms: everything is linear."""
    found = Compared(subject(name))
    with torch.no_grad():
        for block in found.model.stack.blocks:
            block.attn.projection.matrix("query").zero_()
    return found


def test_it_is_exact_where_everything_is_linear() -> None:
    found = _without_looking("bare")
    edges = attribute_edges(*found.args).verified(1000)
    close(edges.estimate.values, edges.exact.values)
    assert edges.largest == len(edges.estimate.values) == 29
    nodes = attribute_nodes(*found.args).verified(1000)
    close(nodes.estimate.values, nodes.exact.values)
    assert nodes.error < 1e-12 and nodes.rank_correlation > 0.999


def test_it_is_exact_through_a_virtual_head() -> None:
    generator = torch.Generator().manual_seed(0)
    clean, corrupt = (torch.randint(1, 10, (4, 8), generator=generator) for _ in range(2))
    found = attribute_edges(virtual_head_model(), (clean, corrupt), logit(clean[:, -3].tolist()))
    checked = found.verified(1000)
    assert checked.worst < 1e-9
    assert {edge for edge, effect in found.top(3)} == {
        ("embed", "L0H0.v"), ("L0H0", "L1H0.v"), ("L1H0", "logits"),
    }  # fmt: skip


def _previous_token_lost(gamma: float) -> tuple[object, object, object]:
    """Return the hand-made induction model, a row it completes, the row without the match, and the answer's logit."""
    row = repeated(21, 2, 0)
    clean = row[:, :31]
    corrupt = clean.clone()
    match = int((clean[0, 1:21] == clean[0, 30]).nonzero()[0, 0]) + 1
    corrupt[0, match] = clean[0, 1 if match != 1 else 2]
    return induction_model(gamma=gamma), (clean, corrupt), logit(int(row[0, 31]))


@pytest.mark.parametrize(
    ("gamma", "exact", "at_clean", "at_corrupt"),
    [(30.0, 50.0, 4.6e-4, 4.6e-4), (6.0, 43.6, 29.0, 5.87), (1.0, 2.493, 3.741, 1.530)],
)
def test_saturated_attention_hides_an_effect_from_gradients_and_not_from_paths_between(
    gamma: float, exact: float, at_clean: float, at_corrupt: float
) -> None:
    args = _previous_token_lost(gamma)

    def estimate(**kwargs: object) -> tuple[float, float, float]:
        found = attribute_nodes(*args, **kwargs).verified(5)  # type: ignore[arg-type]
        pair = [side.select(component="L0H0").values for side in (found.estimate, found.exact)]
        return float(pair[0]), float(pair[1]), found.worst

    for kwargs, expected in (({}, at_clean), ({"gradient_at": "corrupt"}, at_corrupt)):
        first_order, patched, worst = estimate(**kwargs)
        assert patched == pytest.approx(-exact, rel=2e-3)
        assert first_order == pytest.approx(-expected, rel=5e-3)
        # the result says how wrong it is
        assert worst >= abs(patched - first_order) * (1 - 1e-9)
    first_order, patched, _ = estimate(gradient_at="activations", steps=50)
    assert first_order == pytest.approx(patched, rel=1e-3)
    first_order, patched, _ = estimate(gradient_at="inputs", steps=50)
    assert first_order == pytest.approx(patched, rel=1e-2)


@pytest.mark.full
def test_edges_find_the_saturated_path_only_between_the_inputs() -> None:
    args = _previous_token_lost(30.0)
    plain, between = (attribute_edges(*args, gradient_at=at, steps=50) for at in ("clean", "inputs"))  # type: ignore[arg-type]
    edge = {"sender": "L0H0", "receiver": "L1H0.k"}
    assert abs(float(plain.effect.select(**edge).values)) < 1e-3
    assert float(between.effect.select(**edge).values) == pytest.approx(-50.0, rel=1e-3)


@pytest.mark.parametrize("name", ["gpt2", "sandwich", "post", "differential", "llama"])
def test_averaged_along_the_activation_it_converges_to_the_exact_effect(name: str) -> None:
    found = pair(name)
    errors = [
        attribute_nodes(*found.args, gradient_at="activations", steps=steps).verified(100).error for steps in (4, 16)
    ]
    # the midpoint rule errs with the square of the step
    assert errors[1] < errors[0] / 8


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_blocks_of_receivers_give_the_same_scores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pair(name)
    whole = attribute_edges(*found.args).effect.values
    monkeypatch.setattr(CircuitRuns, "at_once", property(lambda self: 1))
    close(attribute_edges(*found.args).effect.values.nan_to_num(0.0), whole.nan_to_num(0.0))


def test_any_differentiable_metric_will_do() -> None:
    found = pair("gpt2")
    for metric in (log_probability(3), lambda z: z[:, :, -1].logsumexp(-1)):
        edges = attribute_edges(*found.prompts, metric)
        assert bool(edges.effect.values.nan_to_num(0.0).any())


def test_a_divergence_has_no_gradient_at_its_own_reference_and_one_on_the_way() -> None:
    found = pair("gpt2")
    metric = kl_divergence(found.model(*found.clean)[:, -1].detach())
    at_clean, between = (
        attribute_edges(*found.prompts, metric, gradient_at=at).effect.values.nan_to_num(0.0)
        for at in ("clean", "inputs")
    )  # type: ignore[arg-type]
    assert float(at_clean.abs().max()) < 1e-12 < 1e-6 < float(between.abs().max())


def test_a_rank_cannot_be_differentiated() -> None:
    found = pair("gpt2")
    with pytest.raises(AnalysisUnavailable, match='"rank" cannot'):
        attribute_nodes(*found.prompts, answer_rank(1))


def test_edges_have_no_activation_of_their_own() -> None:
    with pytest.raises(AnalysisUnavailable, match='gradient_at="activations" is for nodes'):
        attribute_edges(*pair("gpt2").args, gradient_at="activations")  # type: ignore[arg-type]


def test_results_export_without_the_runs_they_came_from() -> None:
    pairs, metric = repetition()
    found = attribute_edges(induction_model(), pairs, metric)
    assert found.to_dict()["runs"] is None
    assert found.to_dict()["effect"]["axes"] == ["receiver", "sender"]
