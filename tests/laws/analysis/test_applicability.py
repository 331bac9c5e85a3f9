"""What applies to what: the table is what asking gives, and nothing answers that assumes what a mechanism lacks."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from glassformer import weights
from glassformer.analysis.cards import cards
from glassformer.analysis.vocabulary import crossed_cost
from glassformer.applicability import Outcome, Row, applied
from glassformer.attention import MixerConfig, Traits
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled
from glassformer.testing import applies, close
from glassformer.testing.applies import Undecided, as_kind, built, first_sentence, made, mechanisms, outcome, outcomes
from glassformer.testing.calls import right_call
from glassformer.testing.judges import JUDGES, Judge, Pair
from glassformer.testing.models import Subject, subject
from made_up_mechanisms import MADE_UP
from one_pass import in_one_pass

MADE = {(group, name): model for group, of_group in made().items() for name, model in of_group.items()}
KINDS = {name: kind for name, (kind, _) in mechanisms().items()}
# each refused for reasons of its own; a row takes some seconds
QUICK = {
    ("mechanism", "differential"),
    ("sub-layer", "gru"),
    ("model", "masked_post"),
    ("model", "module with a spec"),
}
EVERY = [
    pytest.param(*key, id=" ".join(key), marks=[] if key in QUICK else [pytest.mark.full]) for key in MADE
]  # fmt: skip
ANEW = "\nIf that is meant, make the table anew: make applies"


def row_of(group: str, name: str) -> Row:
    found = [row for row in applied().rows if row.group == group and name in (row.name, *row.also)]
    assert found, f'the table has no {group} "{name}".{ANEW}'
    return found[0]


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_the_table_says_what_asking_every_analysis_gives(group: str, name: str) -> None:
    row, model = row_of(group, name), MADE[group, name]()
    found = outcomes(model)
    # a variant that stands in its mechanism's row is called by another name in reasons
    found = as_kind(found, name, KINDS[name]) if name in row.also else found
    changed = [
        f"{analysis} of {name}: the table says {row.outcomes.get(analysis)}, asking gives {one}"
        for analysis, one in found.items()
        if row.outcomes.get(analysis) != one
    ]
    assert not changed, "\n".join(changed) + ANEW
    assert row.about == applies.about(group, model), ANEW


def test_the_table_has_every_analysis_and_every_model_and_no_other() -> None:
    asked = [(card.name, card.room, card.question, card.judge) for card in cards()]
    assert [dataclasses.astuple(one) for one in applied().analyses] == asked, ANEW
    rows = [(row.group, name) for row in applied().rows for name in (row.name, *row.also)]
    assert sorted(rows) == sorted(MADE), ANEW


def test_the_file_of_the_table_is_what_it_writes() -> None:
    table = applied()
    assert type(table).from_json(table.to_json()) == table


def lacking(needed: tuple[str, ...], traits: Traits) -> list[str]:
    """Return which of the traits that an analysis assumes are not there."""
    has = {"linear_in_value": traits.has_patterns}
    return [name for name in needed if not has.get(name, getattr(traits, name))]


@pytest.mark.full
@in_one_pass
@pytest.mark.parametrize(("group", "name"), list(MADE))
def test_no_analysis_answers_where_every_layer_lacks_a_trait_it_assumes(group: str, name: str) -> None:
    model = MADE[group, name]().model
    parts = [] if name == "module with a spec" else [layer.attention for layer in model.sub_layers()]
    # of the mechanism: what else makes keys is not what a card speaks of
    traits = [part.mixer.traits for part in parts if part is not None]
    for card in cards():
        without = [set(lacking(card.traits, one)) for one in traits]
        if without and set.intersection(*without):
            assert row_of(group, name).outcomes[card.name].status == "refused", card.name


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[MixerConfig]:
    """A made-up mechanism, in the registry as long as a test takes."""
    registry: Any = MixerConfig.registry
    mixer = request.param
    registry[mixer.kind] = type(mixer)
    yield mixer
    del registry[mixer.kind]


@pytest.mark.full
@pytest.mark.parametrize("registered", MADE_UP, ids=lambda mixer: mixer.kind, indirect=True)
def test_a_mechanism_made_elsewhere_has_a_row_in_which_nothing_answers_that_assumes_what_it_lacks(
    registered: MixerConfig,
) -> None:
    found = outcomes(built(registered.described, mixer=registered))
    for card in cards():
        if lacking(card.traits, registered.traits):
            assert found[card.name].status == "refused", card.name
    assert found["logit_lens"] == Outcome("exact", compared=True)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets a call of any analysis end in some way."""

    def end(found: Any) -> None:
        def call() -> Any:
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(applies, "right_call", lambda *_: call)

    return end


def test_what_is_neither_a_right_answer_nor_a_refusal_is_a_mistake_that_names_both(
    answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, model = cards()[0], Subject("mine", subject("gpt2").model, ())
    answering(RuntimeError("einsum()"))
    with pytest.raises(Undecided, match=rf"{card.name} of mine ends in RuntimeError: einsum"):
        outcome(card, model)
    answering(Labelled(torch.full((2,), torch.nan), ("head",)))
    with pytest.raises(Undecided, match=rf"{card.name} of mine answers with nothing but NaN"):
        outcome(card, model)
    monkeypatch.setitem(JUDGES, card.name, Judge(lambda asked: iter([Pair("shares", 1.0, 2.0)]), ()))
    answering(Labelled(torch.ones(2), ("head",)))
    with pytest.raises(Undecided, match=rf"{card.name} of mine and its judge differ; shares: error 0\.5"):
        outcome(card, model)
    answering(AnalysisUnavailable("mine: it is so. It is.\n    Ask another."))
    assert outcome(card, model) == Outcome("refused", reason="mine: it is so.")


def test_the_first_sentence_is_what_stands_before_what_would_work() -> None:
    assert first_sentence("a: needs b; found c\n    Give b.") == "a: needs b; found c"
    assert first_sentence('a: layer 0 cuts off at 0.7 (clip), et al. so. Read "z".') == (
        "a: layer 0 cuts off at 0.7 (clip), et al. so."
    )


def test_what_is_held_is_what_the_model_has() -> None:
    card = {card.name: card for card in cards()}
    held = {
        (name, model): card[name].held(subject(model).model)
        for name in ("direct_logit_attribution", "source_effects", "logit_lens")
        for model in ("gpt2", "bare", "lightning_hybrid", "masked_pre")
    }
    assert held["direct_logit_attribution", "gpt2"] == ("norm scales",)
    assert held["direct_logit_attribution", "bare"] == ()
    assert held["direct_logit_attribution", "masked_pre"] == ("norm scales", "readout")
    assert held["source_effects", "bare"] == ("patterns",)
    assert held["source_effects", "lightning_hybrid"] == ("patterns", "norm scales", "gates")
    assert {held["logit_lens", model] for model in ("gpt2", "bare")} == {()}


def test_an_analysis_that_reads_scales_of_norms_says_that_it_holds_them_or_has_another_use_for_them() -> None:
    model = subject("gpt2").model
    for card in cards():
        if card.sites is not None and any(name.endswith(".scale") for name in card.reads(model)):
            assert "norm scales" in card.holds or card.name == "explain", card.name


def test_cells_cost_what_they_cost_in_a_decoder_alone() -> None:
    crossed = right_call(crossed_cost, subject("gpt2")).arguments["crossed"]
    with pytest.raises(AnalysisUnavailable, match="next token of one text; EncoderDecoder is none"):
        crossed_cost(subject("translator_relative").model, crossed, torch.zeros(1, 4, dtype=torch.long))


def test_matrices_of_heads_with_several_values_give_the_logits_of_the_model() -> None:
    doubled = next(mixer for mixer in MADE_UP if mixer.kind == "doubled")
    model = built("doubled", mixer=doubled)
    close(weights.logits(weights.of(model.model), model.inputs[0]), model.model(model.inputs[0]))
