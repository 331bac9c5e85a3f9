"""Cards of shipped models: they say what the data were made of, and what was measured on what."""

import json

import pytest
import torch

import glassformer
from glassformer.cli import main
from glassformer.data import bytes_tokenizer
from glassformer.errors import UnknownModel
from glassformer.models import GREEDY, generate
from glassformer.models.accounting import state_bytes
from glassformer.training.recipes import recipe
from glassformer.zoo import card, cards
from glassformer.zoo.assignments import N_ASSIGNMENTS, pairs_beside, words_beside
from glassformer.zoo.build import even_attention, repeated_spans
from glassformer.zoo.examples import example_of
from glassformer.zoo.held_out import HeldOut
from glassformer.zoo.shares import share_interval
from one_pass import in_one_pass

NAMES = ("attn-only-1l", "attn-only-2l", "encoder-4l", "gpt-4l", "hybrid-4l", "prose-4l", "zh-en")


def test_the_list_of_models_shows_every_figure_of_every_card(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["models"]) == 0
    told = capsys.readouterr().out
    for found in cards().values():
        assert found.name in told and f"{found.parameters / 1e6:.3g} M" in told
        assert all(f"{value:.4g}" in told for value in found.figures.values())


@in_one_pass
@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_its_recipe_makes_up(name):
    found = card(name)
    assert found.synthetic == recipe(name).data.synthetic()
    assert found.synthetic or "made up: nothing, every row is text that somebody wrote" in found.to_markdown()
    for about in found.synthetic:
        assert about in found.to_markdown()
    assert json.loads(found.to_json())["synthetic"] == found.synthetic


def test_the_list_of_models_says_what_was_made_up(capsys):
    assert main(["models"]) == 0
    assert capsys.readouterr().out.count("made up:") == sum(bool(found.synthetic) for found in cards().values())


@in_one_pass
@pytest.mark.parametrize("name", NAMES)
def test_a_score_on_random_tokens_never_stands_alone(name):
    figures = card(name).figures
    for role in ("prefix_matching", "previous_token", "duplicate_token"):
        assert (role in figures) == (f"{role}_on_text" in figures) == (name not in ("encoder-4l", "zh-en"))


def test_even_attention_scores_what_one_key_among_those_seen_is_worth():
    # the third token repeats the first: of three keys one follows the earlier copy, one is it, one is the token before
    found = even_attention(torch.tensor([[5, 7, 5]]))
    assert found["induction"] == pytest.approx(1 / 3)
    assert found["duplicate_token"] == pytest.approx(1 / 3)
    assert found["previous_token"] == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_repeated_spans_repeat_and_spread_over_the_documents():
    documents = [list(range(1000 * d, 1000 * d + 600)) for d in range(30)]
    spans = repeated_spans(documents, 99)
    assert (spans[:, 0] == 99).all()
    assert len(spans) == 64 and spans[0, 1] == 0 and spans[-1, 1] > 20_000
    one, *others = spans[:, 1:].chunk(3, 1)
    assert all(one.equal(other) for other in others)
    assert (one.diff() == 1).all()


@in_one_pass
@pytest.mark.parametrize(("hits", "of"), [(0, 50), (9, 50), (25, 50), (50, 50)])
def test_the_interval_of_a_share_holds_it_and_solves_wilsons_equation(hits, of):
    low, high = share_interval(hits, of)
    assert 0 <= low <= hits / of <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:
            assert (hits / of - bound) ** 2 == pytest.approx(1.96**2 * bound * (1 - bound) / of)
    mirrored = share_interval(of - hits, of)
    assert mirrored == pytest.approx((1 - high, 1 - low))


def test_assignments_seen_in_training_text_are_not_asked_for():
    text = "self.handler = handler\n    self.version = version\nself.crane = crane\n    self.port = pattern\n"
    pairs, words = pairs_beside(text), words_beside(text)
    assert len(set(pairs)) == len(set(words)) == N_ASSIGNMENTS
    assert ("handler", "version") not in pairs and ("version", "offset") in pairs
    assert all("crane" not in pair for pair in words)
    # each word is asked for once, so that no few words make up the share
    assert len({second for _, second in words}) == N_ASSIGNMENTS


@in_one_pass
@pytest.mark.parametrize("name", ["attn-only-1l", "attn-only-2l"])
def test_a_card_says_how_much_of_what_is_held_out_training_had(name):
    (told,) = (note for note in card(name).notes if note.startswith("overlap: "))
    figures = card(name).figures
    overlap = not told.startswith("overlap: 0 ")
    assert ("heldout_loss_with_overlap" in figures) == ("bits_per_byte_with_overlap" in figures) == overlap


def test_held_out_tokens_count_where_no_run_of_them_is_in_training_text():
    tokenizer = bytes_tokenizer()
    shared, own = tokenizer.encode("a licence for all"), [tokenizer.encode(text) for text in ("This is ", " to read.")]
    held_out = HeldOut.beside([own[0] + shared + own[1], tokenizer.encode("short")], [shared, own[0]])
    assert held_out.text(tokenizer) == b"This is  to read.short"
    assert held_out.counted.tolist() == [True] * 8 + [False] * 17 + [True] * 14
    assert held_out.said().startswith("overlap: 17 of 39 held-out tokens (43.6 %) lie in a run of 13 tokens")
    # windows lie within a document, and only new targets count
    (batch,) = held_out.rows(10, 4, 8)
    first = own[0] + shared + own[1]
    assert batch.tokens.tolist() == [first[:10], first[10:20], first[20:30]]
    assert batch.targets.tolist() == [first[1:11], first[11:21], first[21:31]]
    assert batch.weight.tolist() == [[True] * 7 + [False] * 3, [False] * 10, [False] * 4 + [True] * 6]
    assert [len(part.tokens) for part in held_out.rows(10, 3, 2)] == [2, 1]


def test_cards_are_of_the_shipped_models():
    assert sorted(cards()) == sorted(NAMES)
    with pytest.raises(UnknownModel, match='Nearest: "gpt-4l"'):
        card("gpt-4")


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_how_long_a_text_may_be_and_what_was_trained_on(name, capsys):
    model, found = glassformer.load(name), card(name)
    assert (found.max_len, found.trained_length) == (model.config.max_len, model.trained_length)
    assert main(["models", name]) == 0
    assert f"context: {found.max_len} tokens, trained on {found.trained_length}" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize(("name", "answer"), [("attn-only-2l", "B"), ("gpt-4l", " y"), ("prose-4l", " green")])
def test_a_model_knows_how_the_text_it_begins_with_goes_on(name, answer):
    model = glassformer.load(name)
    made = generate(model, example_of(name), GREEDY, max_new_tokens=1)
    assert made.texts == (answer,)


def test_a_bare_animal_acts_in_what_the_translator_says():
    model = glassformer.load("zh-en")
    made = generate(model, source=["猫吃鱼", "老师看书", "我吃了一个苹果"], sampling=GREEDY, max_new_tokens=12)
    assert made.texts == ("The cat eats fish", "The teacher reads books", "I ate an apple")


def test_a_card_beside_another_shows_the_figures_that_both_have_and_where_the_model_was_trained():
    found = card("hybrid-4l")
    lines = found.to_markdown().splitlines()
    assert "| figure | value | gpt-4l |" in lines
    both = found.beside["gpt-4l"]
    assert {name: both[name] for name in ("heldout_loss", "prefix_matching")} == {
        name: card("gpt-4l").figures[name] for name in ("heldout_loss", "prefix_matching")
    }
    assert set(both) <= set(found.figures)
    assert f"| heldout loss | {found.figures['heldout_loss']:.4g} | {both['heldout_loss']:.4g} |" in lines
    assert any(line.endswith(f"minutes on {found.device}") for line in lines)
    config = glassformer.load("hybrid-4l").config
    assert found.figures["state_bytes_at_4096"] == state_bytes(config, 4096)
