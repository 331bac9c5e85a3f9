"""Interchange interventions and alignment search, on a model whose variables are known and on random weights."""

from functools import cache
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.analysis.causal import Interchanged, alignment_search, interchange
from glassformer.analysis.dictionaries import Relu, attach
from glassformer.data import Contrast, Counterfactuals
from glassformer.errors import AnalysisUnavailable, DataError, ShapeMismatch, UnknownSite
from glassformer.handmade import rotated, variable_counterfactuals, variable_directions, variables_model
from glassformer.models import Decoder
from glassformer.testing import close
from glassformer.testing.models import subject
from glassformer.trace import At, Interchange, Set

SITE, LAST = "blocks.0.resid_post", At(pos=-1)
N = 24


@cache
def model() -> Decoder:
    return variables_model(3)


def exchanged(variable: str, *blocks: str, n: int = N) -> Interchanged:
    directions = variable_directions(model(), *blocks) if blocks else None
    return interchange(model(), variable_counterfactuals(model(), variable, n), SITE, directions, at=LAST)


def shares(found: Interchanged) -> dict[str, float]:
    return dict(zip(map(str, found.right.labels("exchanged")), found.accuracy.values.tolist()))


def effects(found: Interchanged) -> dict[str, float]:
    return dict(zip(map(str, found.right.labels("exchanged")), found.effect.values.tolist()))


def test_the_hand_built_model_answers_with_its_first_two_words() -> None:
    pairs = variable_counterfactuals(model(), "second", N)
    logits = gf.run(model(), pairs.base).predictions()[:, -1]
    assert torch.equal(logits.argmax(-1), pairs.before)
    assert gf.run(model(), "a1 b0 c2 ?").predictions()[0, -1].argmax() == 3


def test_the_subspace_a_variable_lies_in_gives_every_counterfactual_answer() -> None:
    found = exchanged("second", "second")
    got = shares(found)
    assert not found.denied and got["subspace"] == got["read part"] == 1 and got["unread part"] == got["nothing"]
    # the logits of the base with the other's word: c up from one, c down from the other
    assert effects(found)["subspace"] == pytest.approx(8) == effects(found)["read part"]
    assert found.read_share == pytest.approx(1) and found.illusion == pytest.approx(0, abs=1e-9)
    assert found.bounds.select(exchanged="subspace").values[0] > got["random subspace"]
    # exchanging all that lies there gives other variables too, which this site holds of none but the second
    assert shares(exchanged("second"))["whole place"] == 1


@pytest.mark.parametrize(("variable", "block"), [("third", "third"), ("first", "stored"), ("first", "dormant")])
def test_what_is_stored_and_not_used_or_used_and_not_stored_passes_for_nothing(variable: str, block: str) -> None:
    """In `third` and `stored` a probe would read the word from any prompt."""
    found = exchanged(variable, block)
    got = shares(found)
    assert found.denied and got["subspace"] == got["nothing"]
    assert found.change.values[1:3].nan_to_num().abs().max() < 1e-9
    assert "cannot be told from that it does not" in str(found.notes[0])


def test_a_subspace_that_works_through_dormant_directions_is_called_an_illusion() -> None:
    found = exchanged("first", "stored", "dormant")
    assert shares(found)["subspace"] == 1 and found.denied
    # gain c / 2 up and as much down, by no part alone
    assert effects(found)["subspace"] == pytest.approx(12)
    assert found.illusion == pytest.approx(1)
    assert "It is an illusion" in str(found.notes[0])
    parts = found.moved.select(exchanged=["read part", "unread part"]).values
    assert parts[0] < 1e-9 < 0.1 < parts[1]


def test_exchange_is_what_plain_passes_under_the_edit_give() -> None:
    pairs, directions = variable_counterfactuals(model(), "second", 6), torch.randn(2, model().config.d_model).double()
    found = interchange(model(), pairs, SITE, directions, at=LAST)
    source = gf.run(model(), pairs.source, read=[SITE])
    for name, edits in {
        "nothing": [], "whole place": [Set(SITE, source, at=LAST)],
        "subspace": [Interchange(SITE, source, directions, at=LAST)],
    }.items():  # fmt: skip
        logits = gf.run(model(), pairs.base, edit=edits).predictions()[:, -1]
        gaps = logits.gather(1, pairs.answer[:, None]) - logits.gather(1, pairs.before[:, None])
        gaps = gaps[:, 0].masked_fill(pairs.answer == pairs.before, torch.nan)
        close(found.difference.select(exchanged=name).values.nan_to_num(-9.0), gaps.nan_to_num(-9.0), 1e-10)


def test_a_contrast_is_taken_with_its_clean_prompts_as_sources() -> None:
    pairs = variable_counterfactuals(model(), "second", N)
    alike = (pairs.base[:, 1] == pairs.source[:, 1]) & (pairs.answer != pairs.before)
    base, source, answer, before = (x[alike] for x in (pairs.base, pairs.source, pairs.answer, pairs.before))
    directions = variable_directions(model(), "second")
    one = interchange(model(), Contrast(source, base, answer, before), SITE, directions, at=LAST)
    other = interchange(model(), Counterfactuals(base, source, answer, before), SITE, directions, at=LAST)
    close(one.difference.values, other.difference.values, 1e-12)


def test_a_feature_of_a_dictionary_is_exchanged_like_a_subspace_of_the_stream() -> None:
    whole = variables_model(2)
    direction = variable_directions(whole, "second")
    config = Relu(whole.config.d_model, 3)
    dictionary = config.build().double()
    with torch.no_grad():
        rows = torch.cat((direction, -direction, torch.zeros_like(direction)))
        dictionary.W_enc.copy_(rows.mT)
        dictionary.W_dec.copy_(rows)
        dictionary.b_enc.zero_()
        dictionary.b_dec.zero_()
    pairs = variable_counterfactuals(whole, "second", N)
    split, features = attach(whole, dictionary, site=SITE), f"{SITE}.features"
    found = interchange(split, pairs, features, at=At(pos=-1, feature=[0, 1]))
    stream = interchange(whole, pairs, SITE, direction, at=LAST)
    close(found.difference.values[2].nan_to_num(), stream.difference.values[2].nan_to_num(), 1e-9)
    # the third feature never fires
    assert shares(found)["random subspace"] == shares(found)["nothing"] < 1 == shares(found)["subspace"]


def test_weights_at_random_are_denied_whatever_is_exchanged() -> None:
    found = subject("gpt2")
    ids = torch.randint(11, (12, 5), generator=torch.Generator().manual_seed(3))
    others = ids.flip(0)
    answers = torch.arange(12) % 11, (torch.arange(12) + 4) % 11
    pairs = Counterfactuals(ids, others, *answers)
    for seed in range(3):
        directions = torch.randn(2, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert interchange(found.model, pairs, SITE, directions, at=LAST).denied
    assert alignment_search(found.model, pairs, SITE, at=LAST, steps=3).denied


def without_copy(values: int) -> Decoder:
    """Return the model without what stores the first word: all that varies at the site is used, or of no use."""
    found = variables_model(values, c=2.0)
    with torch.no_grad():
        layer: Any = found.stack.blocks[0].attn
        layer.merge.matrix()[0] = 0
    return found


def test_a_search_finds_the_subspace_that_is_known() -> None:
    found = without_copy(2)
    pairs = variable_counterfactuals(found, "second", 60)
    search = alignment_search(found, pairs, SITE, at=LAST, steps=30, lr=0.1, draws=2)
    assert search.cosines(variable_directions(found, "second")).min() > 0.95
    assert shares(search.held_out)["subspace"] == 1 and not search.denied
    assert search.losses.values[-1] < search.losses.values[0] / 2
    assert search.fitted + search.unused + search.held_out.right.size("batch") == 60
    own = search.directions.values
    close(own @ own.mT, torch.eye(1, dtype=torch.float64), 1e-9)


@pytest.mark.full
def test_a_search_finds_a_plane_in_a_stream_turned_by_any_rotation() -> None:
    found = without_copy(3)
    pairs = variable_counterfactuals(found, "second", 400)
    search = alignment_search(rotated(found), pairs, SITE, 2, at=LAST, steps=60)
    known = interchange(found, pairs, SITE, variable_directions(found, "second"), at=LAST)
    assert shares(search.held_out)["subspace"] == shares(known)["subspace"] == 1
    assert alignment_search(found, pairs, SITE, 2, at=LAST, steps=60).cosines(
        variable_directions(found, "second")
    ).min() > 0.95  # fmt: skip


@pytest.mark.full
def test_a_search_for_a_variable_that_no_one_reads_there_ends_in_an_illusion_that_is_denied() -> None:
    found = variables_model(3)
    search = alignment_search(found, variable_counterfactuals(found, "first", 200), SITE, 2, at=LAST, steps=60)
    assert shares(search.held_out)["subspace"] > 0.95 and search.denied
    assert search.illusion == pytest.approx(1, abs=0.01)
    # the words that are stored and of no use are not found by any search
    other = alignment_search(found, variable_counterfactuals(found, "third", 200), SITE, 2, at=LAST, steps=20)
    assert other.denied


def test_pairs_that_are_held_out_share_no_prompt_with_those_that_are_fitted_to() -> None:
    found = without_copy(2)
    pairs = variable_counterfactuals(found, "second", 8)
    shared = Counterfactuals(pairs.base[:1].expand(4, -1), pairs.source[:4], pairs.answer[:4], pairs.before[:4])
    with pytest.raises(AnalysisUnavailable, match=r"leave 0 to fit to(.|\n)*Give more pairs"):
        alignment_search(found, shared, SITE, at=LAST, steps=1)


def test_what_cannot_be_exchanged_is_refused_in_words() -> None:
    pairs = variable_counterfactuals(model(), "second", 4)
    width = model().config.d_model
    with pytest.raises(ShapeMismatch, match=f'directions are 1x3; "d_model" of "{SITE}" has {width}'):
        interchange(model(), pairs, SITE, torch.ones(3))
    with pytest.raises(ShapeMismatch, match="span nothing"):
        interchange(model(), pairs, SITE, torch.zeros(width))
    with pytest.raises(ShapeMismatch, match="leave directions out"):
        interchange(model(), pairs, SITE, torch.ones(width), at=At(d_model=[1]))
    with pytest.raises(UnknownSite, match=r'"blocks\.\*\.resid_post" is 2 sites'):
        interchange(model(), pairs, "blocks.*.resid_post")
    with pytest.raises(AnalysisUnavailable, match="the base prompt's own"):
        interchange(model(), Contrast(pairs.source, pairs.base, pairs.answer), SITE)
    with pytest.raises(DataError, match="compares pairs of prompts"):
        interchange(model(), "no pairs", SITE)  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match=f"a subspace of up to as many dimensions(.|\n)*k={width + 1}"):
        alignment_search(model(), pairs, SITE, width + 1)
