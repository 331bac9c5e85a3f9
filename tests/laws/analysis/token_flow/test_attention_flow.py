"""Largest flows: those an independent solver finds, never below rollout."""

import pytest
import torch

from glassformer.analysis import Run, run
from glassformer.analysis.token_flow import attention_flow, rollout
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES, subject

networkx = pytest.importorskip("networkx")

SHARES = [name for name in ARCHITECTURES if "lightning" not in name and name not in ("differential", "bounded")]


def passed(name: str) -> Run:
    found = subject(name)
    return run(found.model, *found.inputs, read=[rollout])


@pytest.mark.parametrize("name", ["gpt2", "alibi_window", "parallel", "translator_pre"])
def test_flows_are_those_of_an_independent_solver(name: str) -> None:
    done = passed(name)
    graph, n_source, top = networkx.DiGraph(), 0, 0
    if name.startswith("translator"):
        encoder = rollout(done, stack="encoder").layers.values
        n_source = encoder.shape[1]
        for i, layer in enumerate(encoder):
            for q, k in layer.nonzero().tolist():
                graph.add_edge(("enc", i + 1, q), ("enc", i, k), capacity=float(layer[q, k]))
        top = len(encoder)
    for i, layer in enumerate(rollout(done).layers.values):
        for q, k in layer.nonzero().tolist():
            below = ("enc", top, k) if k < n_source else ("own", i, k - n_source)
            graph.add_edge(("own", i + 1, q), below, capacity=float(layer[q, k]))
    found = attention_flow(done, position=4)
    start = ("own", len(rollout(done).layers.values), 4)
    for key, flow in enumerate(found.flow.values.tolist()):
        end = ("enc", 0, key) if key < n_source else ("own", 0, key - n_source)
        expected = networkx.maximum_flow_value(graph, start, end) if key - n_source <= 4 else 0.0
        assert abs(flow - expected) < 1e-9


@pytest.mark.parametrize("name", SHARES)
def test_flow_is_at_least_what_rollout_gives_and_at_most_one(name: str) -> None:
    found = attention_flow(passed(name))
    assert (found.flow.values >= found.rollout.values - 1e-9).all()
    assert (found.flow.values <= 1 + 1e-9).all()
    close(found.rollout.values, rollout(passed(name)).final.values[-1])


def test_where_layers_keep_everything_nothing_flows_between_positions() -> None:
    found = attention_flow(passed("translator_pre"), position=2, stack="encoder", kept=1.0)
    close(found.flow.values, torch.eye(9, dtype=torch.float64)[2])


def test_what_rollout_refuses_flow_refuses() -> None:
    with pytest.raises(AnalysisUnavailable, match="rows_sum_to_one=False"):
        attention_flow(passed("differential"))
    assert attention_flow(passed("differential"), signed="absolute").method == "attention flow of absolute weights"
    with pytest.raises(ShapeMismatch, match="position 9: the text has 7 tokens"):
        attention_flow(passed("gpt2"), position=9)
