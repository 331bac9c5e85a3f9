"""Circuit evaluation: limits, planted circuits, and members that are not needed."""

import pytest
import torch

from circuit_pairs import pair, repetition
from glassformer.analysis.circuits import faithfulness
from glassformer.errors import AnalysisUnavailable
from glassformer.handmade import induction_model
from glassformer.testing import close
from glassformer.testing.models import ARCHITECTURES

every = pytest.mark.parametrize("name", ARCHITECTURES)

CIRCUIT = ["embed", "L0H0", "L1H0"]


@every
def test_the_whole_model_is_faithful_and_complete_and_nothing_is_neither(name: str) -> None:
    found = pair(name)
    senders = [s.label for s in found.runs().graph.senders]
    whole = faithfulness(*found.prompts, senders, found.metric, knockouts=2)
    assert whole.faithfulness == pytest.approx(1.0) and float(whole.incompleteness.values.max()) < 1e-12
    nothing = faithfulness(*found.prompts, [], found.metric)
    assert nothing.faithfulness == pytest.approx(0.0, abs=1e-12)
    close(nothing.empty.values, found.value(found.model(*found.corrupt)))


@pytest.mark.parametrize("off", ["corrupt", "mean"])
def test_a_planted_circuit_is_faithful_complete_and_minimal(off: str) -> None:
    found = faithfulness(induction_model(), repetition()[0], CIRCUIT, off=off, knockouts=4)  # type: ignore[arg-type]
    assert found.faithfulness == pytest.approx(1.0, abs=1e-6)
    assert float(found.incompleteness.values.max()) < 1e-6
    assert float(found.needed.values.min()) > 10.0
    close(found.by_prompt.values, torch.ones(4, dtype=torch.float64), 1e-6)
    assert found.faithfulness_spread < 1e-6


def test_without_positions_the_planted_circuit_is_lost() -> None:
    # zeroed edges take positions with them, which corrupt prompts share with the clean ones
    found = faithfulness(induction_model(), repetition()[0], ["L0H0", "L1H0"], off="zero")
    assert found.faithfulness < 0.5


def test_a_bystander_is_not_needed() -> None:
    found = faithfulness(induction_model(), repetition()[0], [*CIRCUIT, "L0H1"])
    assert found.needed.select(member="L0H1").values == 0.0
    assert found.faithfulness == pytest.approx(1.0)


def test_a_circuit_without_its_twin_is_faithful_by_half_and_incomplete() -> None:
    found = faithfulness(induction_model(redundant=True), repetition()[0], CIRCUIT, knockouts=[["L1H0"]])
    assert found.faithfulness == pytest.approx(0.5, abs=1e-6)
    # without L1H0 the model still has the twin, the circuit nothing
    assert float(found.incompleteness.values[0]) == pytest.approx(25.0, abs=1e-3)


def test_nodes_are_all_edges_from_them() -> None:
    found = pair("gpt2")
    graph = found.runs().graph
    nodes = ["embed", "L0H1", "L1H2"]
    edges = [edge for edge in graph.edges if edge.sender in nodes]
    by_node, by_edge = (faithfulness(*found.prompts, circuit, found.metric, knockouts=0) for circuit in (nodes, edges))
    close(by_node.circuit.values, by_edge.circuit.values)


def test_kinds_that_belong_to_it_need_no_listing() -> None:
    found = pair("gpt2")
    listed = faithfulness(*found.prompts, ["embed", "L0 mlp", "L1 mlp", "L0H0"], found.metric, knockouts=0)
    short = faithfulness(*found.prompts, ["L0H0"], found.metric, always=["embed", "mlp"], knockouts=0)
    close(listed.circuit.values, short.circuit.values)
    assert short.members == ("L0H0",)


def test_nodes_and_edges_do_not_mix() -> None:
    found = pair("gpt2")
    with pytest.raises(AnalysisUnavailable, match="nodes and edges"):
        faithfulness(*found.prompts, ["L0H0", ("L0H0", "logits")], found.metric)
