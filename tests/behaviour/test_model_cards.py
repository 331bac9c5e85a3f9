"""Cards of shipped models: they say what the data were made of, and what was measured on what."""

import json

import pytest
import torch

import glassformer
from glassformer.cli import main
from glassformer.errors import UnknownModel
from glassformer.training.recipes import recipe
from glassformer.zoo import card, cards
from glassformer.zoo.build import even_attention

NAMES = ("attn-only-1l", "attn-only-2l", "gpt-4l", "zh-en")


def test_the_list_of_models_shows_every_figure_of_every_card(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["models"]) == 0
    told = capsys.readouterr().out
    for found in cards().values():
        assert found.name in told and f"{found.parameters:,}" in told
        assert all(f"{value:.4g}" in told for value in found.figures.values())


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
