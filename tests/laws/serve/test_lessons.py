"""The tour: numbers of each chapter are those of the library, found another way, and both wordings of a claim occur."""

from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.testing.models import subject
from lessons import Found
from served import Served, agree, values_of

CHAPTERS = range(1, 9)
TWICE = "def add(first, second):\n    return first + second\n\ndef add("
ONCE = "def f(x, yz): return"
IDS = [3, 1, 4, 1, 5, 3, 1]
TINY = ("lightning_hybrid", "linear", "masked_pre", "translator_pre", "differential", "gpt2")


def served(*names: str) -> Served:
    models = {
        name: gf.load(name) if "-" in name else subject(name, batch=1, dtype=torch.float32).model for name in names
    }
    return Served(models)


def lesson(client: Served, name: str, given: str | list[int], chapter: int) -> dict[str, Any]:
    """Return what a chapter says of a run."""
    return client.ask(f"runs/{client.run(name, given)['id']}/lesson", chapter=chapter)["facts"]


@pytest.mark.parametrize("name", ["attn-only-2l", pytest.param("hybrid-4l", marks=pytest.mark.full)])
def test_every_number_of_every_chapter_is_what_the_library_gives(name: str) -> None:
    client = served(name)
    for given in (TWICE, ONCE):
        found = Found(client.models[name], given)
        for chapter in CHAPTERS:
            told = lesson(client, name, given, chapter)["numbers"]
            assert told == pytest.approx(found.numbers(chapter), rel=2e-4, abs=2e-4), (name, chapter)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "given"), [("gpt-4l", TWICE), ("gpt2", IDS), ("linear", IDS), ("gpt2", [5, 4, 3]), ("prose-4l", "The cat")]
)
def test_so_it_is_of_other_architectures(name: str, given: str | list[int]) -> None:
    client = served(name)
    found = Found(client.models[name], given)
    for chapter in CHAPTERS:
        told = lesson(client, name, given, chapter)["numbers"]
        assert told == pytest.approx(found.numbers(chapter), rel=2e-4, abs=2e-4), (name, chapter)


@pytest.mark.full
def test_a_claim_says_what_the_numbers_say_and_each_has_another_wording() -> None:
    client = served("attn-only-1l", "attn-only-2l", "hybrid-4l", "gpt2", "lightning_hybrid", "linear")
    seen = dict[tuple[int, str], set[bool]]()
    for name, given in (
        ("attn-only-2l", TWICE), ("attn-only-2l", ONCE), ("hybrid-4l", TWICE), ("gpt2", IDS), ("linear", IDS),
        ("attn-only-1l", TWICE), ("lightning_hybrid", IDS),
    ):  # fmt: skip
        for chapter in CHAPTERS:
            facts = lesson(client, name, given, chapter)
            for claim, holds in facts["claims"].items():
                seen.setdefault((chapter, claim), set()).add(holds)
            numbers, claims = facts["numbers"], facts["claims"]
            if chapter == 2 and claims["repeats"]:
                assert claims["same"] == (numbers["apart"] < 1e-4 * numbers["size"]) == (not claims["adds_positions"])
            if chapter == 3 and claims["by_softmax"]:
                assert numbers["sum"] == pytest.approx(1, abs=1e-5)
            if chapter == 3 and claims["is_scaled"]:
                assert numbers["factor"] * numbers["product"] == pytest.approx(numbers["score"], rel=1e-3)
            if chapter == 6:
                assert claims["repeats"] == (numbers["places"] > 0)
                assert claims["induces"] == (numbers.get("induction", 0) >= numbers["named"])
            if chapter == 8:
                assert claims["falls"] == (numbers["after"] < numbers["before"])
                assert claims["more"] == (numbers["drop"] > numbers["direct"])
    both = {claim for (_, claim), values in seen.items() if values == {True, False}}
    assert both >= {
        "is_text", "adds", "has_bytes", "repeats", "adds_positions", "same", "has_scores", "by_softmax", "is_mass",
        "has_mlps", "induces", "has_lower", "previous", "composes", "is_likeliest", "stays", "more",
    }, seen  # fmt: skip


@pytest.mark.parametrize("name", TINY)
def test_every_chapter_is_told_of_every_kind_of_model_or_refused_with_the_reason(name: str) -> None:
    client, told = served(name), 0
    more = {"target_ids": [1, 4, 7, 2]} if "translator" in name else {}
    run = client.run(name, IDS, **more)["id"]
    for chapter in CHAPTERS:
        found = client.get(f"runs/{run}/lesson", params={"chapter": chapter})
        assert found.status_code in (200, 422), found.text
        if found.status_code == 422:
            continue
        told += 1
        copied = client.copied(found.json()["python"])["found"]
        for array, sent in client.arrays(f"runs/{run}/lesson", chapter=chapter).items():
            agree(sent, values_of(copied, array))
        assert found.json()["facts"]["formula"]
    assert told >= 7


def test_a_chapter_that_does_not_exist_and_a_difference_of_two_are_refused() -> None:
    client = served("gpt2")
    run, other = (client.run("gpt2", ids)["id"] for ids in (IDS, IDS[::-1]))
    found = client.get(f"runs/{run}/lesson", params={"chapter": 9})
    assert found.status_code == 400 and "there are 8 chapters" in found.json()["fault"]["message"]
    found = client.get(f"runs/{run}/lesson", params={"minus": other})
    assert found.status_code == 400 and "look at each" in found.json()["fault"]["message"]
