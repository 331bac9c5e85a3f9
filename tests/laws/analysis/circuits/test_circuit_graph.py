"""The graph of a model: how many edges, and who reads whom."""

import dataclasses
from typing import Any

import pytest

from glassformer.analysis.circuits import circuit_graph
from glassformer.attention import Merge
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, Learned, Mlp, block
from glassformer.testing.models import ARCHITECTURES, subject


def _model(*layers: Any, **kwargs: Any) -> Any:
    return DecoderConfig(vocab_size=11, d_model=24, layers=layers, max_len=8, **kwargs).build()


@pytest.mark.parametrize(("n_layers", "n_heads"), [(0, 1), (1, 2), (3, 4), (12, 12)])
def test_a_model_shaped_like_gpt2_has_the_edges_of_the_closed_form(n_layers: int, n_heads: int) -> None:
    layer = block(n_heads=n_heads, mlp=Mlp(8), bias=True)
    found = circuit_graph(_model(*[layer] * n_layers, positions=Learned()))
    h = n_heads
    expected = sum(3 * h * (1 + i * (h + 1)) + 1 + i * (h + 1) + h for i in range(n_layers)) + 1 + n_layers * (h + 1)
    assert found.n_edges == len(found.edges) == expected
    if (n_layers, n_heads) == (12, 12):
        assert found.n_edges == 32491


def test_grouped_query_heads_share_the_receivers_of_their_key_head() -> None:
    found = circuit_graph(_model(block(n_heads=4, n_kv_heads=2)))
    assert [r.label for r in found.receivers] == [
        "L0H0.q", "L0H1.q", "L0H2.q", "L0H3.q", "L0H0-1.k", "L0H2-3.k", "L0H0-1.v", "L0H2-3.v", "logits",
    ]  # fmt: skip
    assert found.receiver("L0H3.k") == found.receiver("L0H2-3.k")


def test_a_gate_reads_the_stream_too() -> None:
    found = circuit_graph(_model(block(n_heads=2, merge=Merge(gate="silu"))))
    assert [r.label for r in found.receivers if r.slot == "gate"] == ["L0H0.gate", "L0H1.gate"]


def test_in_a_parallel_block_the_mlp_does_not_read_the_heads_beside_it() -> None:
    serial, parallel = (circuit_graph(_model(block(n_heads=2, mlp=Mlp(8), wiring=w))) for w in ("pre", "parallel"))
    assert ("L0H0", "L0 mlp.in") in serial.edges
    assert ("L0H0", "L0 mlp.in") not in parallel.edges


def test_token_and_position_can_be_two_senders() -> None:
    found = circuit_graph(_model(block(n_heads=2), positions=Learned()), split_embedding=True)
    assert [s.label for s in found.senders] == ["token", "position", "L0H0", "L0H1"]


def test_keys_and_values_of_cross_attention_read_the_encoder_and_nothing_else() -> None:
    found = circuit_graph(subject("translator_pre").model)
    for r, receiver in enumerate(found.receivers):
        crossed = "X" in receiver.label and receiver.slot in ("k", "v")
        assert (found.read_by(r) == ["source"]) == crossed
        assert crossed or "source" not in found.read_by(r)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_mask_of_edges_names_the_same_edges(name: str) -> None:
    found = circuit_graph(subject(name).model)
    some = found.edges[::3]
    assert found.named(found.mask(some)) == some


def test_an_edge_against_the_order_of_the_forward_pass_is_refused() -> None:
    found = circuit_graph(_model(*[block(n_heads=2)] * 2))
    with pytest.raises(AnalysisUnavailable, match=r'no edge "L1H0" -> "L0H0.q": .* it reads embed'):
        found.mask([("L1H0", "L0H0.q")])


def test_an_unknown_name_gets_the_nearest() -> None:
    found = circuit_graph(_model(block(n_heads=2)))
    with pytest.raises(AnalysisUnavailable, match=r'no receiver "L0H1.o". Nearest: "L0H1'):
        found.receiver("L0H1.o")
    with pytest.raises(AnalysisUnavailable, match='no sender "L9H0"'):
        found.sender("L9H0")


def test_a_mechanism_without_values_is_refused() -> None:
    model = _model(block(n_heads=2))
    mixer = model.stack.blocks[0].attn.mixer
    mixer.traits = dataclasses.replace(mixer.traits, linear_in_value="no")
    with pytest.raises(AnalysisUnavailable, match=r'circuit_graph: layer 0 uses "softmax" \(linear_in_value="no"\)'):
        circuit_graph(model)
