"""Direct logit attribution, lenses and words in context as text and as figures."""

from typing import Any

import pytest
import torch
from rich.console import Console

from glassformer.analysis import run
from glassformer.analysis.attribution import direct_logit_attribution, meaning_shift
from glassformer.analysis.lens import TunedLens, lens_divergence, lens_grid
from glassformer.handmade import senses_model
from glassformer.labelled import Labelled
from glassformer.render.terminal import lines
from glassformer.render.terminal.lens import depth
from glassformer.testing.models import ENCODERS, drawn, subject


@pytest.fixture(scope="module")
def done() -> Any:
    model = senses_model()
    return run(model, "a fluffy blue creature", read=[direct_logit_attribution, lens_grid])


def test_a_word_in_two_contexts_reads_as_a_story() -> None:
    shift = meaning_shift(senses_model(), "a fluffy blue creature", "a scaly red creature", "creature")
    text = "\n".join(lines(shift, 80))
    assert "creature at 4 in the first context, creature at 4 in the second" in text
    assert "0 post     2.000     1.155   0.333  L0H0 +1.00  L0H1 +1.00" in text
    assert all(f"{token}" in text for token in ("2:fluffy", "3:blue", "2:scaly", "3:red"))
    assert "1:a" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_lens_shows_the_likeliest_token_by_place_and_from_where_it_stays(done: Any) -> None:
    text = "\n".join(lines(lens_grid(done), 80))
    assert "Logit lens, likeliest by place: Next token" in text
    # before the layer all verbs that fit the noun are alike, after it one leads
    assert "0 post" in text and "purrs 100" in text and "stays from" in text


@pytest.mark.parametrize(
    ("name", "answer"),
    [(None, "The token there"), ("text", "Class of the text"), ("tokens", "Class of this token")],
)
def test_a_lens_says_what_the_model_answers(name: Any, answer: str) -> None:
    classes = {} if name is None else {"classifies": name, "output_vocab_size": 3, "tied": False}
    found = drawn("encoder", ENCODERS["masked_pre"].replace(**classes))
    grid = lens_grid(run(found.model, *found.inputs, read=[lens_grid]))
    assert answer in next(iter(lines(grid, 80))) and answer in grid._title()
    console = Console(width=80)
    with console.capture() as shown:
        console.print(depth(grid, 0))
    assert "At " in shown.get() and "After" not in shown.get()
    assert grid.to_dict()["logits_of"] == found.model.logits_of


def test_a_lens_without_likeliest_tokens_says_nothing_of_them(done: Any) -> None:
    text = "\n".join(lines(lens_grid(done, measures=["kl"]), 80))
    assert "purrs" not in text and " - " in text


@pytest.mark.parametrize("norm", ["frozen", "live"])
def test_attributions_of_a_batch_name_their_norm_and_the_largest_first(norm: Any, done: Any) -> None:
    text = list(lines(direct_logit_attribution(done, position=None, row=None, norm=norm), 80))
    assert text[0] == f"Direct logit attribution over 5 places, norm {norm} (mean size in logits)"
    # the noun names its verbs and the texture picks one, by 10 logits each; colours say nothing
    assert {text[2].split()[0], text[3].split()[0]} == {"token", "L0H0"}
    assert text[4].split()[:2] == ["L0H1", "0.000"]


def test_divergences_show_their_error_if_there_is_one() -> None:
    model = subject("gpt2").model
    tuned = TunedLens.identity(model)
    one, two = (lens_divergence(model, tuned, [[[1, 2, 3]]] * n) for n in (1, 2))
    assert "±" not in "\n".join(lines(one, 80)).split("\n", 1)[1]
    assert "± 0.000" in "\n".join(lines(two, 80))


def test_results_draw_themselves_and_export(done: Any) -> None:
    shift = meaning_shift(senses_model(), "a fashion model", "a language model", "model")
    grid = lens_grid(done)
    assert len(shift.plot().axes) >= 4 and len(grid.plot().axes) >= 3
    for result in (shift, grid, direct_logit_attribution(done)):
        data = result.to_dict()
        found = [Labelled.from_dict(value) for value in data.values() if isinstance(value, dict) and "axes" in value]
        assert found and result.to_json()
    assert grid.to_dict()["words"]
    assert torch.equal(
        Labelled.from_dict(shift.to_dict()["along"]).values.double(), shift.along.values.float().double()
    )
