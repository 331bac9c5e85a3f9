"""Routes: a node's parts are all of it, importance is conserved, and a higher threshold keeps a part of the graph."""

from collections import defaultdict
from itertools import pairwise

import pytest
import torch

from glassformer.analysis import Run, run
from glassformer.analysis.token_flow import FlowRoutes, information_flow_routes, rollout
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.handmade import induction_model, repeated
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject

every = pytest.mark.parametrize("name", ARCHITECTURES)


def passed(name: str) -> Run:
    found = subject(name)
    return run(found.model, *found.inputs, read=[rollout])


def keys(found: FlowRoutes) -> set[tuple[str, str, str]]:
    return {(edge.above, edge.below, edge.via) for edge in found.edges}


@every
def test_shares_of_a_node_sum_to_one_before_and_after_anything_is_dropped(name: str) -> None:
    done = passed(name)
    for threshold in (0.0, 0.05):
        found = information_flow_routes(done, threshold=threshold, row=1)
        kept, whole = defaultdict(float), defaultdict(float)
        for edge in found.edges:
            kept[edge.above] += edge.share
            whole[edge.above] += edge.whole_share
        assert all(abs(total - 1) < 1e-9 for total in kept.values())
        if threshold == 0:
            assert all(abs(total - 1) < 1e-9 for total in whole.values())


@every
def test_importance_is_conserved_down_to_tokens_and_constants(name: str) -> None:
    for threshold in (0.0, 0.1):
        found = information_flow_routes(passed(name), positions=(-1, 2), threshold=threshold)
        total = found.inputs.values.sum() + found.constants + found.dropped
        close(total, torch.tensor(2.0, dtype=torch.float64))
    assert found.dropped == 0 or threshold > 0


@every
def test_importance_of_nodes_and_heads_is_what_their_edges_carry(name: str) -> None:
    found = information_flow_routes(passed(name), threshold=0.01)
    importance = {node.label: node.importance for node in found.nodes}
    nodes, heads = defaultdict(float), defaultdict(float)
    for edge in found.edges:
        carried = importance[edge.above] * edge.share
        nodes[edge.below] += carried
        heads[edge.via] += carried
    top = found.nodes[0].label
    assert all(abs(nodes[label] - value) < 1e-9 for label, value in importance.items() if label != top)
    for (head,), value in found.heads.top(99):
        assert abs(heads[str(head)] - value) < 1e-9


@every
def test_a_higher_threshold_keeps_a_part_of_the_graph(name: str) -> None:
    done = passed(name)
    graphs = [keys(information_flow_routes(done, threshold=threshold)) for threshold in (0.0, 0.02, 0.1, 0.3)]
    assert all(more >= fewer for more, fewer in pairwise(graphs))
    assert len(graphs[0]) > len(graphs[-1])


def test_without_a_threshold_every_head_has_an_edge_to_every_key_it_may_see() -> None:
    found = information_flow_routes(passed("gpt2"), threshold=0.0)
    at_top = [edge for edge in found.edges if edge.above.startswith("L1 |") and "| 6:" in edge.above]
    assert len([edge for edge in at_top if edge.via.startswith("L1H")]) == 4 * 7
    # however far a part is from the stream, it counts a little
    assert all(edge.whole_share > 0 for edge in found.edges)
    # the position itself is reached twice over: by the stream, and by each head
    own = [edge.via for edge in at_top if edge.below == at_top[0].below]
    assert own == ["stream", "L1H0", "L1H1", "L1H2", "L1H3"]


def test_a_share_is_the_nearness_of_its_part() -> None:
    done = passed("gpt2")
    found = information_flow_routes(done, threshold=0.0)
    w = done["blocks.1.resid_post"].values[0, 6]
    parts = [done["blocks.1.resid_mid"].values[0, 6], done["blocks.1.mlp.out"].values[0, 6]]
    near = torch.stack([(w.abs().sum() - (w - part).abs().sum()).clamp_min(1e-5) for part in parts])
    top = {edge.via: edge.share for edge in found.edges if edge.above.startswith("L1 mlp |")}
    close(torch.tensor([top["stream"], top["L1 mlp"]], dtype=torch.float64), near / near.sum())


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name.startswith("translator")])
def test_routes_of_a_decoder_lead_through_cross_attention_to_source_tokens(name: str) -> None:
    found = information_flow_routes(passed(name), threshold=0.0)
    assert found.inputs.shape == (16,)
    assert (found.inputs.values > 0).all()
    assert any(edge.via.startswith("L1X") and edge.below.startswith("enc L1 mlp") for edge in found.edges)
    assert any(node.place == "enc embed" for node in found.nodes)


def test_on_the_induction_model_the_routes_are_the_wiring() -> None:
    model = induction_model()
    done = run(model, repeated(), read=[rollout])
    found = information_flow_routes(done, positions=(30,), threshold=0.05)
    labels = found.inputs.labels("key")
    reached = {labels.index(key) for (key,), value in found.inputs.top(41) if value > 0}
    assert reached == {30, 29, 11, 10}
    assert set(found.heads.labels("head")) == {"L0H0", "L1H0"}
    assert found.constants == found.dropped == 0


def test_positions_and_thresholds_that_make_no_sense_are_refused() -> None:
    done = passed("gpt2")
    with pytest.raises(ShapeMismatch, match="position 7: the text has 7 tokens"):
        information_flow_routes(done, positions=(7,))
    with pytest.raises(AnalysisUnavailable, match="a share lies between 0 and 1"):
        information_flow_routes(done, threshold=1.5)
