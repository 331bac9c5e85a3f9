"""Cards of shipped models: they say what the data were made of, and what was measured on what."""

import json

import pytest
import torch

import glassformer
from glassformer.cli import main
from glassformer.data import TextConfig
from glassformer.errors import UnknownModel
from glassformer.training.recipes import recipe
from glassformer.zoo import card, cards
from glassformer.zoo.build import assignments, even_attention, repeated_spans, share_interval
from one_pass import in_one_pass

NAMES = ("attn-only-1l", "attn-only-2l", "gpt-4l", "prose-4l", "zh-en")


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
        assert (role in figures) == (f"{role}_on_text" in figures) == (name != "zh-en")


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


@pytest.mark.full
def test_assignments_seen_in_training_text_are_not_asked_for(tmp_path):
    model = glassformer.load("gpt-4l")
    (tmp_path / "one.py").write_text("self.crane = crane\n    self.port = port\n    self.pattern = 3\n")
    data = TextConfig(sources=(str(tmp_path),)).build(model.tokenizer)
    found = assignments(model, data)
    assert all(0 <= share <= 1 for share in found.figures.values())
    pairs, words, in_class = found.notes
    assert "pattern ->" not in pairs and "thread ->" in pairs
    assert all("crane ->" not in note and "fence ->" in note for note in (words, in_class))


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
