"""The induction circuit of the shipped two-layer model, as the page about it says."""

from pathlib import Path
from typing import Any

import pytest

# the page itself runs with the documentation
pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs/how-to/prove-a-circuit.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """Run the page's code and return its variables."""
    blocks = PAGE.read_text(encoding="utf-8").split("```python\n")[1:]
    names: dict[str, Any] = {}
    exec("\n".join(block.split("```")[0] for block in blocks), names)  # our own page
    return names


def test_patching_finds_the_two_heads_of_induction(page: dict[str, Any]) -> None:
    found = page["found"]["z"].carried
    assert found.values[0, 1, 6] == pytest.approx(0.88, abs=0.02)
    assert found.values[0, 0, 1] == pytest.approx(0.54, abs=0.02)


def test_path_patching_finds_how_they_are_wired(page: dict[str, Any]) -> None:
    analysis = page["analysis"]
    shares = {
        receiver: analysis.circuits.path_patching(page["model"], page["pairs"], receivers=receiver).share
        for receiver in ("logits", "L1H6.k", "L1H6.v", "L1H6.q")
    }
    assert shares["logits"].select(sender="L1H6").values.item() == pytest.approx(0.88, abs=0.02)
    assert shares["L1H6.k"].select(sender="L0H1").values.item() == pytest.approx(0.45, abs=0.02)
    assert shares["L1H6.v"].select(sender="L0H6").values.item() == pytest.approx(0.22, abs=0.02)
    assert shares["L1H6.q"].values.abs().max() < 0.005


def test_pruning_leaves_that_circuit_and_says_what_it_is_worth(page: dict[str, Any]) -> None:
    circuit = page["circuit"]
    assert len(circuit.edges) == 14
    assert {("L0H1", "L1H6.k"), ("L0H6", "L1H6.v"), ("L1H6", "logits")} <= set(circuit.edges)
    assert circuit.faithfulness == pytest.approx(0.97, abs=0.01)
    assert page["worth"].faithfulness == pytest.approx(0.85, abs=0.02)


def test_gradients_at_the_clean_prompt_miss_the_key_of_a_saturated_head(page: dict[str, Any]) -> None:
    analysis = page["analysis"]
    shares = {
        where: analysis.circuits.attribute_edges(page["model"], page["pairs"], gradient_at=where).share
        for where in ("clean", "inputs")
    }
    edge = {"receiver": "L1H6.k", "sender": "L0H1"}
    assert shares["clean"].select(**edge).values.item() < 0.05
    assert shares["inputs"].select(**edge).values.item() == pytest.approx(0.41, abs=0.02)


def test_the_weights_name_the_same_pair(page: dict[str, Any]) -> None:
    pair = {"earlier": "L0H1", "later": "L1H6"}
    keys = page["scores"].select(kind="K")
    assert keys.select(**pair).values.item() == keys.values.nan_to_num(0.0).max().item()
    assert page["match"].select(**pair).values.item() > 0.99
