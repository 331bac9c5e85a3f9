"""The guard of all analyses of pairs: nothing is called found of a task not done, nor of prompts that do not differ."""

import json
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer import analysis
from glassformer.analysis.cards import cards
from glassformer.analysis.guard import _difference_notes, beyond_spread, guard
from glassformer.analysis.sweep import kl_divergence
from glassformer.data import Contrast, induction
from glassformer.handmade import induction_model
from glassformer.labelled import Result
from glassformer.render.page.results import results_document
from glassformer.render.terminal import largest, lines
from glassformer.testing.calls import right_call
from glassformer.testing.layers import randomise
from glassformer.testing.models import subject

N = 8


def _asked() -> Any:
    return induction(range(1, 21), N, unit=8, again=4)


def _random() -> Any:
    return randomise(induction_model(max_len=24), seed=1, std=0.5)


def test_a_model_that_does_the_task_is_not_denied_and_one_at_random_is() -> None:
    assert guard(induction_model(max_len=24), _asked()) == ()
    notes = guard(_random(), _asked())
    assert notes and all(note.denies for note in notes) and f"of {N} clean prompts" in notes[0].seen


def test_a_model_that_prefers_the_wrong_answer_does_not_do_the_task() -> None:
    model, pairs = induction_model(max_len=24), _asked().encode(induction_model(max_len=24))
    swapped = Contrast(pairs.clean, pairs.corrupt, pairs.wrong, pairs.answer)
    (note,) = guard(model, swapped)
    assert note.denies and f"on 0 of {N} clean prompts" in note.seen
    found = analysis.circuits.path_patching(model, swapped)
    assert found.denied and found.notes[0] == note


def test_the_distribution_alone_does_not_make_a_difference_of_a_task_that_is_not_done() -> None:
    model = _random()
    pairs = _asked().encode(model)
    reference = kl_divergence(analysis.run(model, pairs.clean))
    assert analysis.circuits.acdc(model, pairs, reference, threshold=0.01).denied
    assert analysis.circuits.acdc(model, pairs, threshold=0.01).denied


def test_prompts_that_differ_by_less_than_they_vary_do_not_differ() -> None:
    steady, wide = torch.tensor([1.0, 1.1, 0.9, 1.0] * 2), torch.tensor([3.0, -2.0, 2.5, -1.5] * 2)
    assert beyond_spread(torch.stack([steady, -steady, wide])).tolist() == [True, True, False]
    # of two and three pairs chance makes such differences often, of one nothing is known
    assert beyond_spread(torch.tensor([[1.0, 0.7], [0.0, 0.0]])).tolist() == [False, False]
    assert beyond_spread(torch.tensor([[1.0], [0.0]])).tolist() == [True, False]
    # at random, one in a hundred of few and none of many
    drawn = torch.randn(4000, 16, generator=torch.Generator().manual_seed(0))
    shares = [float(beyond_spread(drawn[:, :n]).double().mean()) for n in (2, 3, 4, 5, 8, 10, 16)]
    assert all(0.004 < share < 0.02 for share in shares[:6]) and shares[6] < 0.003


def test_pairs_too_few_to_tell_a_difference_are_said_to_be_too_few() -> None:
    model = gf.load("attn-only-2l")
    few, many = (induction(range(200, 400), n, unit=8, again=4) for n in (2, N))
    (note,) = guard(model, few)
    assert note.denies and note.seen.startswith("By 2 pairs, ") and "pairs would tell" in note.advice
    assert not guard(model, many)


def test_as_many_pairs_as_are_said_to_tell_do_and_one_less_do_not() -> None:
    for n, mean, deviation, enough in ((4, 12.2, 4.8, 5), (3, 5.0, 1.0, 4), (2, 3.0, 2.0, 7), (8, 1.1, 1.0, 10)):
        few = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        few = mean + deviation * (few - few.mean()) / few.std()
        (note,) = _difference_notes({"logit difference": None}, few[None])
        assert note.advice == f"At this mean and deviation {enough} pairs would tell: give more."
        for size, tells in ((enough - 1, False), (enough, True)):
            more = torch.linspace(-1, 1, size, dtype=torch.float64)
            assert bool(beyond_spread(mean + deviation * more / more.std())) is tells


def test_every_analysis_of_pairs_asks_the_guard() -> None:
    found = subject("gpt2")
    for card in cards():
        if card.of != "pairs of prompts" or card.name == "answered":
            continue
        call = right_call(card.function, found)
        # answers that the model prefers in no prompt
        logits = analysis.run(found.model, found.inputs[0]).predictions()[:, -1]
        best, worst = (logits.argsort(-1)[:, at].tolist() for at in (-1, 0))
        asked = call.arguments["pairs"]
        denied = call(pairs=Contrast(asked.clean, asked.corrupt, worst, best))
        assert isinstance(denied, Result) and denied.denied, card.name
        assert denied.notes[0].denies and f"0 of {len(best)}" in denied.notes[0].seen


@pytest.mark.parametrize("of", ["patch", "path_patching", "attribute_edges", "acdc", "sender_effects"])
def test_what_denies_is_said_first_and_nothing_is_ranked(of: str) -> None:
    room: Any = analysis.causal if of == "patch" else analysis.circuits
    more = {"threshold": 0.01} if of == "acdc" else {}
    known, unknown = (getattr(room, of)(model, _asked(), **more) for model in (induction_model(max_len=24), _random()))
    assert not known.denied and "denied" not in known.to_dict()
    shown = list(lines(unknown))
    assert shown[0].startswith("Nothing found: The model prefers the right answer")
    text = "\n".join(shown)
    assert not any(word in text for word in ("largest", "carried", "goes", "█"))
    assert largest(unknown, 3) is not None and json.loads(unknown.to_json())["denied"]
    page = results_document([unknown])
    assert page["notes"][0]["denies"] and page["results"][0]["denied"]
