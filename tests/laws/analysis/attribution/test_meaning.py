"""Meaning from context: the split of a word's movement leaves nothing over, and finds what was planted."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.analysis import run
from glassformer.analysis.attribution import meaning_shift
from glassformer.analysis.attribution._meaning_shift import find_word
from glassformer.data import Batch, Senses, phrases
from glassformer.errors import AnalysisUnavailable, NoPattern, ShapeMismatch, TextError, UnknownSite
from glassformer.handmade import rotated, senses_model
from glassformer.labelled import Labelled
from glassformer.models import DecoderConfig, Learned
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, subject
from one_pass import in_one_pass

every = pytest.mark.parametrize("name", ARCHITECTURES)


def contexts(name: str) -> tuple[Any, Any, Any]:
    """Return a model and two contexts of unequal length."""
    found = subject(name)
    if len(found.inputs) == 1:
        return found.model, found.inputs[0][:1], found.inputs[0][1:, :5]
    rows = []
    for i, length in ((0, 7), (1, 5)):
        ids = found.inputs[1][i : i + 1, :length]
        rows.append(Batch(ids, ids, ids > -1, source=found.inputs[0][i : i + 1, : length + 1]))
    return found.model, rows[0], rows[1]


def stream(model: Any, given: Any, site: str, position: int) -> torch.Tensor:
    return run(model, given, read=[site])[site].values[0, position]


@every
def test_components_sum_to_the_movement_at_every_place(name: str) -> None:
    model, first, second = contexts(name)
    shift = meaning_shift(model, first, second, (6, 3))
    moved = torch.stack(
        [stream(model, second, s, 3) - stream(model, first, s, 6) for s in map(str, shift.distance.labels("site"))]
    )
    close(shift.distance.values, moved.norm(dim=-1))
    close(shift.along.values.sum(-1), moved.norm(dim=-1), 1e-8)


@every
def test_components_sum_to_the_movement_along_any_direction(name: str) -> None:
    model, first, second = contexts(name)
    direction = torch.arange(16.0, dtype=torch.float64).sin()
    shift = meaning_shift(model, first, second, (-1, 0), direction=direction)
    moved = torch.stack(
        [stream(model, second, s, 0) - stream(model, first, s, 6) for s in map(str, shift.distance.labels("site"))]
    )
    close(shift.along.values.sum(-1), moved @ direction / direction.norm(), 1e-8)


@every
def test_tokens_of_both_contexts_sum_to_what_each_head_adds(name: str) -> None:
    model, first, second = contexts(name)
    whole = meaning_shift(model, first, second, (6, 3))
    places = whole.distance.labels("site")
    for site in map(str, (places[0], places[2], places[-1])):
        shift = meaning_shift(model, first, second, (6, 3), site=site)
        pairs = [(shift.first_tokens, shift.second_tokens), (shift.first_cross, shift.second_cross)]
        for of_first, of_second in pairs:
            if of_first is None or of_second is None:
                assert of_first is of_second
                continue
            for label in map(str, of_first.labels("head")):
                taken = of_second.select(head=label).values.sum() - of_first.select(head=label).values.sum()
                close(taken, shift.along.select(site=site, component=label).values, 1e-8)


@every
def test_a_word_does_not_move_between_a_context_and_itself(name: str) -> None:
    model, first, _ = contexts(name)
    shift = meaning_shift(model, first, first, 4)
    assert not shift.distance.values.any() and not shift.along.values.any() and not shift.size.values.any()
    close(shift.cosine.values, torch.ones_like(shift.cosine.values))


@pytest.mark.parametrize("name", [name for name, config in ARCHITECTURES.items() if config.kind == "decoder"])
def test_only_tokens_that_can_be_seen_move_a_word(name: str) -> None:
    found = subject(name)
    first = found.inputs[0][:1]
    second = first.clone()
    second[0, -1] = (first[0, -1] + 1) % 11
    assert not meaning_shift(found.model, first, second, 3).distance.values.any()
    assert meaning_shift(found.model, first, second, -1).distance.values.all()


def test_sizes_are_lengths_of_the_components_differences() -> None:
    model, first, second = contexts("gpt2")
    shift = meaning_shift(model, first, second, (6, 3))
    site = "blocks.0.attn.head_out"
    wrote = [run(model, given, read=[site])[site].values[0, :, at] for given, at in ((first, 6), (second, 3))]
    for head in range(4):
        size = shift.size.select(site=shift.site, component=f"L0H{head}").values
        close(size, (wrote[1][head] - wrote[0][head]).norm())
    assert shift.size.select(site="blocks.0.resid_pre", component="L0H0").values == 0


def test_a_word_is_found_whole_or_in_pieces_at_its_last_occurrence() -> None:
    assert find_word(["a", " model", " of", " a", " mod", "el", "."], "model") == 5
    assert find_word(["model", " b", "model"], "model") == 2
    assert find_word(["un", "happy"], "happy") == 1
    with pytest.raises(TextError, match=r"no \"cat\" among the tokens 'a' ' dog'\.\n.*Give positions"):
        find_word(["a", " dog"], "cat")


def test_what_cannot_be_followed_is_refused_with_what_can() -> None:
    model, first, second = contexts("gpt2")
    with pytest.raises(UnknownSite, match=r'"blocks.0.attn.z" is no place in the stream'):
        meaning_shift(model, first, second, 1, site="blocks.0.attn.z")
    with pytest.raises(ShapeMismatch, match="one row of text; found 2"):
        meaning_shift(model, subject("gpt2").inputs[0], second, 1)
    with pytest.raises(ShapeMismatch, match=r"the direction has shape \(3,\); the stream has d_model=16"):
        meaning_shift(model, first, second, 1, direction=torch.ones(3))
    with pytest.raises(ShapeMismatch, match="position 9"):
        meaning_shift(model, first, second, 9)
    bare = randomise(DecoderConfig(7, 6, (), positions=Learned(), max_len=4).build())
    with pytest.raises(AnalysisUnavailable, match="no attention"):
        meaning_shift(bare, [1, 2], [2, 1], 1)


def test_a_mechanism_without_a_pattern_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.attention.mixer import Traits

    model, first, second = contexts("gpt2")
    monkeypatch.setattr(model.stack.blocks[1].attn.mixer, "traits", Traits(linear_in_value="no"))
    with pytest.raises(NoPattern, match="layer 1"):
        meaning_shift(model, first, second, 1)


# the verb is not given: what the noun has become is what predicts it
PAIRS = [
    ("a fashion model", "a language model", "model", "L0H0", ("fashion", "language")),
    ("the river bank", "the savings bank", "bank", "L0H0", ("river", "savings")),
    ("a fluffy blue creature", "a scaly blue creature", "creature", "L0H0", ("fluffy", "scaly")),
    ("a fluffy blue creature", "a blue slimy creature", "creature", "L0H0", ("fluffy", "slimy")),
    ("a fluffy blue creature", "a fluffy red creature", "creature", "L0H1", ("blue", "red")),
]


@in_one_pass
@pytest.mark.parametrize(("first", "second", "word", "head", "deciding"), PAIRS)
@pytest.mark.parametrize("turned", [False, True])
def test_in_the_model_made_by_hand_one_head_and_one_token_of_each_context_move_the_word(
    first: str, second: str, word: str, head: str, deciding: tuple[str, str], turned: bool
) -> None:
    model = rotated(senses_model()) if turned else senses_model()
    shift = meaning_shift(model, first, second, word)
    assert shift.word == (word, word)
    # e^-30 of the attention is elsewhere
    close(shift.distance.values, torch.tensor([0.0, math.sqrt(2)], dtype=torch.float64), 1e-7)
    for component in map(str, shift.along.labels("component")):
        expected = math.sqrt(2) if component == head else 0.0
        for split in (shift.along, shift.size):
            found = split.select(site=shift.site, component=component).values
            assert float(found) == pytest.approx(expected, abs=1e-7)
    for tokens, name, sign in zip(shift.by_token(), deciding, (-1, 1)):
        for label, value in zip(map(str, tokens.labels("key")), tokens.values.tolist()):
            assert value == pytest.approx(sign * math.sqrt(0.5) if label.endswith(f":{name}") else 0.0, abs=1e-7)


def test_the_model_made_by_hand_says_every_verb_of_the_grammar() -> None:
    model = senses_model()
    for phrase in phrases():
        done = run(model, " ".join(phrase.words[: phrase.verb]))
        assert done.logits is not None
        top = done.logits[0, -1].topk(2)
        assert model.require_tokenizer().token(int(top.indices[0])) == phrase.words[phrase.verb]
        assert top.values.tolist() == pytest.approx([20.0, 10.0], abs=1e-6)


@pytest.mark.full
def test_a_trained_model_moves_nouns_by_the_word_that_decides_their_sense(tmp_path: Path) -> None:
    from glassformer.training import train
    from glassformer.training.recipes import recipe

    config = recipe("senses")
    model = train(config.replace(steps=100, evaluate_every=100, save_every=100), tmp_path)
    for first, second, word, _, deciding in PAIRS[:4]:
        shift = meaning_shift(model, f". {first}", f". {second}", word)
        close(shift.along.values.sum(-1), shift.distance.values, 1e-4)
        for tokens, name, sign in zip(shift.by_token(), deciding, (-1, 1)):
            # counted towards the side of its own context
            (label, *_), share = Labelled(sign * tokens.values, tokens.axes, tokens.coords).top(1)[0]
            assert str(label).endswith(f":{name}") and share > 0
    # the colour decides nothing, and moves its noun less than the texture does
    texture, colour = (meaning_shift(model, *pair[:2], pair[2]).relative.values[-1] for pair in (PAIRS[2], PAIRS[4]))
    assert colour < texture


def test_the_grammars_rows_count_verbs_and_every_verb_is_determined() -> None:
    data = Senses(batch_size=4).build()
    batch = data.batch(0)
    deciding = {(p.words[p.noun], p.words[p.decided_by]): p.words[p.verb] for p in phrases()}
    assert len({words for words, *_ in phrases()}) == len(phrases())
    for tokens, targets, weight in zip(batch.tokens.tolist(), batch.targets.tolist(), batch.weight.tolist()):
        names = data.tokenizer.tokens(tokens)
        for at in [i for i, counts in enumerate(weight) if counts]:
            start = max(i for i in range(at) if names[i] in ("a", "the"))
            verb = data.tokenizer.token(targets[at])
            assert verb in [deciding.get((names[at], word)) for word in names[start:at]]
        assert sum(weight) >= 6
