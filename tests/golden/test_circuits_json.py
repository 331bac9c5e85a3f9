"""The circuits report's JSON document: its stored form, and the page that describes it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from one_pass import in_one_pass
from reports import SAMPLES, sample

STORED = Path(__file__).with_name("circuits.json")
DOCS = Path(__file__).parents[2] / "docs"
# what a report shares with an explanation is described there
PAGES = [DOCS / "circuits-json.md", DOCS / "explain-json.md"]


def document() -> Any:
    """Return the report on a model set by hand, with numbers rounded."""
    found = json.loads(sample("hand").to_json(), parse_float=lambda text: round(float(text), 4) + 0.0)
    # versions are those of the machine
    del found["provenance"]
    for listed in (head[side] for head in found["pairs"] for side in ("ov", "qk")):
        # which of equal pairs make the end of a list is for the library's sort to say
        for pair in listed:
            if pair["value"] == listed[-1]["value"]:
                pair |= {"first": "…", "second": "…"}
    return found


def fields(value: Any) -> set[str]:
    """Return the names of all fields; keys of `roles` are data."""
    if isinstance(value, dict):
        return set(value) | {name for key, item in value.items() if key != "roles" for name in fields(item)}
    return {name for item in value for name in fields(item)} if isinstance(value, list) else set()


def test_the_document_of_a_known_model_is_the_stored_one() -> None:
    assert document() == json.loads(STORED.read_text(encoding="utf-8"))


@in_one_pass
@pytest.mark.parametrize("name", SAMPLES)
def test_the_document_is_plain_finite_json(name: str) -> None:
    text = sample(name).to_json()
    read = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    assert list(read.items())[:2] == [("format", "glassformer.circuits"), ("version", 1)]


def test_every_field_is_described_on_the_page() -> None:
    described = {name for page in PAGES for name in re.findall(r"`(\w+)`", page.read_text(encoding="utf-8"))}
    found = {name for sampled in SAMPLES for name in fields(json.loads(sample(sampled).to_json()))}
    assert found - described == set()
    assert {"change", "series", "ov_caption", "ablation_icl"} <= found


if __name__ == "__main__":
    STORED.write_text(json.dumps(document(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
