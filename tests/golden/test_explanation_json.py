"""The JSON document of an explanation: its fields, its numbers, and what its page in the documentation promises.

After a deliberate change, `PYTHONPATH=src:tests python tests/golden/test_explanation_json.py` rewrites the stored file;
raise `VERSION` if a field went away or changed its meaning.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, strategies as st

from explanations import SAMPLES, sample, weights
from glassformer.analysis.reports import explain
from glassformer.analysis.reports.explanation import Pattern
from glassformer.handmade import induction_model
from one_pass import in_one_pass

STORED = Path(__file__).with_name("explanation.json")
PAGE = Path(__file__).parents[2] / "docs" / "explain-json.md"


def document() -> Any:
    """Return the explanation of a model set by hand, with numbers rounded."""
    found = explain(induction_model(vocab=6, max_len=12), "t1 t2 t3 t1", against="t1").to_dict()
    # most tokens are equally likely in this model, and which of them come first is up to the machine
    del found["lens_map"]["top"], found["lens_map"]["words"]
    # versions are those of the machine
    del found["provenance"]
    return json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 4) + 0.0)


def decode(pattern: dict[str, Any]) -> torch.Tensor:
    """Read a pattern as the page describes it."""
    rows = [[0.0 if weight is None else weight for weight in row] for row in weights(pattern)]
    return torch.tensor(rows, dtype=torch.float64)


def fields(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {name for item in value.values() for name in fields(item)}
    return {name for item in value for name in fields(item)} if isinstance(value, list) else set()


def test_the_document_of_a_known_model_is_the_stored_one() -> None:
    assert document() == json.loads(STORED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_document_is_plain_finite_json(name: str) -> None:
    text = sample(name).to_json()
    read = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    assert (read["format"], read["version"]) == ("glassformer.explanation", 3)
    assert list(read)[:2] == ["format", "version"]
    assert len(text) < 6e6


@in_one_pass
@pytest.mark.parametrize("name", SAMPLES)
def test_patterns_survive_their_encoding_within_the_stated_error(name: str) -> None:
    found = sample(name)
    for pattern in found.patterns[:: 8 if name == "long" else 1]:
        stored = pattern.to_dict()
        decoded, step = decode(stored), stored["scale"] / stored["steps"]
        assert (decoded - pattern.weights).abs().max() <= 1.01 * step
        assert (decoded.sum(-1) - pattern.weights.double().sum(-1)).abs().max() <= 0.51 * step + 1e-6


@example(large=[1e-194], n=1, signed=False)
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40), st.integers(1, 600), st.booleans())
def test_rows_of_many_small_weights_sum_to_what_they_did(large: list[float], n: int, signed: bool) -> None:
    row = torch.tensor([*large, *[1e-6 * (i % 7) for i in range(n)]], dtype=torch.float64)
    row = row if signed else row.abs()
    made = Pattern(
        label="L0H0", stack="", part="attn", layer=0, head=0, query="tokens", key="tokens", weights=row[None]
    )
    decoded, step = decode(stored := made.to_dict()), stored["scale"] / stored["steps"]
    assert abs(decoded.sum() - row.sum()) <= 0.51 * step and (decoded - row).abs().max() <= 1.01 * step


def test_causal_patterns_are_stored_as_triangles_and_others_whole() -> None:
    layouts = {p["label"]: p["layout"] for p in sample("translation").to_dict()["patterns"]}
    assert (layouts["L0H0"], layouts["enc L0H0"], layouts["L0X0"]) == ("lower", "full", "full")


def test_every_field_is_described_on_the_page() -> None:
    # keys of these are data, not fields: axes, quantities, ids
    free = {"shape", "numbers", "words"}
    documents = [sample(name).to_dict() for name in SAMPLES]
    described = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    found = {name for doc in json.loads(json.dumps(documents)) for name in fields(strip(doc, free))}
    assert found - described == set()


def strip(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: None if key in names else strip(item, names) for key, item in value.items()}
    return [strip(item, names) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    STORED.write_text(json.dumps(document(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
