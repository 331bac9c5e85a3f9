"""Results of token flow and of the behaviour reports leave the library: as JSON, as frames, in a line of print."""

import json
from typing import Any

import pytest

from glassformer.analysis import run
from glassformer.analysis.attribution import input_gradients
from glassformer.analysis.behaviour import attention_sinks, long_context, rank_of_stream, suppression
from glassformer.analysis.token_flow import (
    alti,
    attention_flow,
    information_flow_routes,
    neuron_shares,
    rollout,
    value_norms,
)
from glassformer.labelled import Result
from glassformer.testing.models import subject

NAMES = (
    "alti", "attention_flow", "attention_sinks", "information_flow_routes", "input_gradients", "long_context",
    "neuron_shares", "rank_of_stream", "rollout", "suppression", "value_norms",
)  # fmt: skip


def results() -> dict[str, Any]:
    found = subject("gpt2", length=9)
    model, ids = found.model, found.inputs[0]
    done = run(model, ids, read=[rollout, "blocks.*.mlp.hidden"])
    return {
        "alti": alti(done),
        "attention_flow": attention_flow(done),
        "attention_sinks": attention_sinks(model, ids, window=4, first=2),
        "information_flow_routes": information_flow_routes(done),
        "input_gradients": input_gradients(model, ids[:1], steps=2),
        "long_context": long_context(model, ids, sink=2, recent=2),
        "neuron_shares": neuron_shares(done, layer=0),
        "rank_of_stream": rank_of_stream(model, ids),
        "rollout": rollout(done),
        "suppression": suppression(model, ids),
        "value_norms": value_norms(done),
    }


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return results()


@pytest.mark.parametrize("name", NAMES)
def test_a_result_exports_itself_and_prints_in_a_few_words(made: dict[str, Any], name: str) -> None:
    result = made[name]
    assert isinstance(result, Result)
    assert json.loads(result.to_json())["result"] == type(result).__name__
    assert "value" in result.to_frame().columns
    assert len(repr(result)) < 1500


def test_progress_is_reported_up_to_the_end() -> None:
    found = subject("gpt2", length=9)
    ids = found.inputs[0]
    for analysis in (attention_sinks, suppression, rank_of_stream, long_context):
        seen: list[tuple[int, int]] = []
        options: dict[str, Any] = {"sink": 2, "recent": 2} if analysis is long_context else {}
        analysis(found.model, ids, report=lambda *x, seen=seen: seen.append(x), **options)
        assert seen and seen[-1][0] == seen[-1][1], analysis.__name__
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
