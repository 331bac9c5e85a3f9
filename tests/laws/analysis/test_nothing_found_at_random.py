"""Weights at random, and a trained model's with the entries of each tensor shuffled: nothing is stated as found.

Every analysis that has a card is asked here, with the call that `glassformer.testing.calls` knows, and every command
that reads a model's name and no more than a text. What is said is what is printed, and all strings in the document.
"""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.analysis.behaviour import LongContext
from glassformer.analysis.cards import cards
from glassformer.analysis.causal import causal_trace
from glassformer.analysis.drawn_anew import drawn_anew
from glassformer.analysis.heads import head_scores
from glassformer.analysis.heads.roles import NAMED, repeats_for
from glassformer.cli import main
from glassformer.cli.options import Placement
from glassformer.errors import GlassformerError
from glassformer.labelled import Result
from glassformer.render.terminal import lines
from glassformer.testing.calls import right_call
from glassformer.testing.models import Subject, subject
from one_pass import in_one_pass
from verbs import taking

# how results say that something was found, whatever found it
CLAIMS = re.compile(
    r"[Ss]trongest|is an induction head|matches prefixes: |copies: it raises|[1-9]\d* of \d+ heads copy"
    r"|share of the difference[^.]{0,60}carried|brought back|goes \d+ % of the way|circuit that pruning leaves"
    r"|attends to .*, measured|^largest\b|could copy",
    re.MULTILINE,
)
# what a result calls a token of the vocabulary by, which may be one of these words: "1441: carried"
TOKEN = re.compile(r"\d+:")
SHIPPED = ("attn-only-1l", "attn-only-2l", "gpt-4l", "prose-4l")


def claims(result: Any) -> list[str]:
    """Return what a result states as found, on the terminal and in its document; of a denied one the print alone."""
    printed = "\n".join(lines(result))
    said = [] if result.denied else [text for text in _strings(result.to_dict()) if not TOKEN.match(text)]
    return [found[0] for words in (printed, *said) for found in CLAIMS.finditer(words)]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        # provenance repeats what was read
        yield from (text for name, held in value.items() if name != "provenance" for text in _strings(held))
    elif isinstance(value, list):
        yield from (text for held in value for text in _strings(held))


def _asked(found: Subject) -> Iterator[tuple[str, Result]]:
    for card in cards():
        try:
            result = right_call(card.function, found)()
        except GlassformerError:
            # it has no answer for this kind of model
            continue
        if isinstance(result, Result):
            yield card.name, result


def _checked(found: Subject) -> None:
    asked = dict(_asked(found))
    assert {"patch", "acdc", "attribute_edges", "causal_trace", "circuits", "attention_sinks",
            "long_context"} <= set(asked)  # fmt: skip
    stated = {name: said for name, result in asked.items() if (said := claims(result))}
    if "causal_trace" in stated:
        # noise on a subject moves the answer of a model with sharp logits, random or not; so must other noise
        again = causal_trace(found.model, found.inputs[0][:1], [1], samples=16, seed=1)
        lowered = again.total_effect.values / again.total_error.values
        assert bool((lowered > 3).all()), lowered
        del stated["causal_trace"]
    assert stated == {}
    # a long text's classes of heads say so too; what chance hardly ever reaches, one of a hundred sharp heads does
    long = asked["long_context"]
    assert isinstance(long, LongContext) and long.sink_rate * len(long.classes) <= 1
    assert sum(kind in ("V", "sink only") for kind in long.classes.values()) <= 1
    assert {name for name, result in asked.items() if getattr(result, "sink_rate", 0)} <= {"long_context"}
    # the count itself is no finding, and is of two pairs
    pairs = {card.name for card in cards() if card.of == "pairs of prompts"} - {"answered"}
    assert all(asked[name].denied for name in pairs & set(asked))


def shuffled(name: str, seed: int = 0) -> Subject:
    """Return a shipped model with its weights drawn anew, and ids it may read."""
    model = drawn_anew(gf.load(name), seed)
    ids = torch.randint(4, 500, (2, 12), generator=torch.Generator().manual_seed(seed))
    return Subject(name, model, (ids,))


def test_of_weights_at_random_no_analysis_states_a_finding() -> None:
    _checked(subject("gpt2"))


@pytest.mark.full
@in_one_pass
@pytest.mark.parametrize("name", ["gpt2", "llama", "parallel", "differential", "experts"])
def test_of_many_weights_at_random_no_analysis_states_a_finding(name: str) -> None:
    for seed in range(1, 6):
        _checked(subject(name, seed=seed))


@pytest.mark.full
@pytest.mark.parametrize("name", SHIPPED)
def test_of_shuffled_weights_no_analysis_states_a_finding(name: str) -> None:
    for seed in range(2):
        _checked(shuffled(name, seed))


def named(model: Any) -> int:
    """Return how many roles heads are called by, whatever the rows are repeated random tokens of."""
    return sum(
        int((head_scores(model, repeats=n).scores.values.abs().nan_to_num(0.0) >= NAMED).sum())
        for n in {4, repeats_for(model)}
    )


@pytest.mark.full
@in_one_pass
@pytest.mark.parametrize("name", ["gpt2", "llama", "parallel", "attention_only", "post"])
def test_no_head_of_many_models_with_random_weights_is_called_by_a_role(name: str) -> None:
    assert sum(named(subject(name, seed=seed).model) for seed in range(1, 9)) == 0


@pytest.mark.full
@in_one_pass
@pytest.mark.parametrize("name", SHIPPED)
def test_heads_called_by_a_role_are_called_by_none_with_their_weights_shuffled(name: str) -> None:
    model = gf.load(name)
    assert named(model) > 0
    assert sum(named(drawn_anew(model, seed)) for seed in range(3)) == 0


TEXT = "def read(path, mode):\n    return open(path, mode)"
# what is asked of each verb that opens a model
VERBS = {
    "patch": ["--n", "8"], "paths": ["--n", "8"], "edges": ["--n", "8", "--verify", "2"],
    "prune": ["--n", "4", "--threshold", "0.5"], "circuits": [], "explain": [TEXT],
    "behaviour": [TEXT], "attribute": [TEXT], "lens": [TEXT], "route": [TEXT], "attention": [TEXT],
    "backward": [TEXT],
    "trace": [TEXT, "--subject", "path", "--samples", "4"],
    "probe": ["--label", "copies.seen", "--length", "16"],
}  # fmt: skip
# verbs of a model that have nothing to state as found of its weights, and what they give instead
STATES_NOTHING = {
    "generate": "a text",
    "serve": "a page",
    "features": "a dictionary, and what it is worth",
    "heads": "sentences that other text was asked about",
}


def test_every_command_that_computes_with_a_model_is_asked_or_known_to_state_nothing() -> None:
    assert set(taking(Placement)) == VERBS.keys() | STATES_NOTHING.keys()


def _said(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, Any]:
    out = folder / f"{verb}.json"
    assert main([verb, str(folder / "model"), *VERBS[verb], "--json", str(out)]) == 0
    return capsys.readouterr().out, json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.full
@pytest.mark.parametrize("name", SHIPPED[1:])
def test_of_shuffled_weights_no_command_states_a_finding(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gf.save(drawn_anew(gf.load(name), 1), tmp_path / "model")
    for verb in VERBS:
        out, document = _said(verb, tmp_path, capsys)
        assert CLAIMS.search(out) is None, (verb, CLAIMS.findall(out))
        if "--n" in VERBS[verb]:
            assert out.startswith("Nothing found: ") and document["denied"]


@pytest.mark.full
def test_what_stands_for_a_finding_is_seen_where_there_is_one() -> None:
    model = gf.load("attn-only-2l")
    found = dict(_asked(dataclasses.replace(shuffled("attn-only-2l"), model=model)))
    assert claims(found["circuits"])


def test_blocks_drawn_anew_alone_leave_the_others_where_they_are() -> None:
    model = gf.load("attn-only-2l")
    found = drawn_anew(model, 1, layers=[0])
    own = {name: value.data_ptr() for name, value in model.named_parameters()}
    for name, value in found.named_parameters():
        assert (value.data_ptr() == own[name]) == name.startswith("stack.blocks.1."), name
    # what comes before the first block that is left out is drawn as in the whole
    whole = dict(drawn_anew(model, 1).named_parameters())
    for name, value in found.named_parameters():
        if name.startswith("stack.blocks.0."):
            assert torch.equal(value, whole[name])
