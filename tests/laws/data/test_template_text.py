"""Sentences from templates: answers stand in their place, and what is asked about is never shown."""

import re
from random import Random

import pytest
import torch

from glassformer.data import MixtureConfig, TemplateText, TextConfig, bytes_tokenizer, pairs, train_bpe
from glassformer.data.batch import SPLITS, Split
from glassformer.data.pairs._frames import NICKNAMES
from glassformer.data.pairs.templates import TEMPLATES, New, draw, heldout_words
from glassformer.errors import ConfigError, DataError
from glassformer.zoo.sentences import KINDS
from one_pass import in_one_pass

# of each template the roles whose words decide its answer
DECIDING = {
    "indirect_objects": ("indirect_object", "first_subject", "subject"),
    "greater_than": ("year",),
    "subject_verb_agreement": ("subject",),
    "repeated_arguments": ("first", "second", "again"),
    "colours_of_things": ("one", "other", "asked"),
    "word_senses": ("place", "noun"),
}
TRAINED = tuple(name for name in TEMPLATES if name != "repeated_arguments")
# a thing and its colour
COLOURED = (("one", "colour"), ("other", "second"))


def sentences(config: TemplateText, split: Split, rows: int = 40) -> list[str]:
    """Return what rows hold, sentence by sentence; the last of a row may have been cut."""
    data = config.build(bytes_tokenizer())
    found = []
    for step in range(rows):
        batch = data.batch(step, split)
        for row in torch.cat([batch.tokens[:, :1], batch.targets], 1):
            ids = [id for id in row.tolist() if id not in data.tokenizer.specials]
            found += data.tokenizer.decode(ids).split(".")[:-1]
    return [sentence.strip() for sentence in found]


def asked(name: str, new: frozenset[New], n: int = 150) -> list[tuple[str, set[str]]]:
    """Return prompts of one kind, each with the words that decide its answer."""
    found = []
    for seed in range(n):
        pair = draw(name, Random(f"{name} {seed}"), new=new).pair
        clean = str(pair.clean)
        found.append((clean, {clean[slice(*pair.roles[role])] for role in DECIDING[name]}))
    return found


@in_one_pass
@pytest.mark.parametrize("name", TEMPLATES)
def test_training_holds_no_word_and_no_frame_that_is_held_out(name: str):
    new_words = {*heldout_words([name])}
    frames = TEMPLATES[name].frames
    assert not {*frames.shown} & {*frames.new} and frames.new
    for kind in KINDS.values():
        if not kind <= {*TEMPLATES[name].kept}:
            continue
        for clean, words in asked(name, kind):
            assert (words <= new_words) == ("words" in kind)
            assert bool(words & new_words) == ("words" in kind)
            assert any(matches(clean, frame) for frame in frames.pool("frame" in kind)), (clean, kind)


def matches(clean: str, frame: str) -> bool:
    """Return whether a prompt is this frame with words in it."""
    literals = [part.split("}")[-1] for part in frame.split("{")]
    at = 0
    for literal in literals:
        if (at := clean.find(literal, at)) < 0:
            return False
        at += len(literal)
    return clean.startswith(literals[0]) and clean.endswith(literals[-1])


def test_rows_of_training_hold_no_word_that_is_held_out_in_any_place():
    new = {*heldout_words(TRAINED)}
    told = sentences(TemplateText(templates=TRAINED), "train", 12)
    assert len(told) > 300
    assert not {word for s in told for word in re.findall("[A-Za-z]+", s)} & new
    # a year may end as no beginning does
    begun = [found.group(1) for s in told if (found := re.search(r"\b\d\d(\d\d)\b", s))]
    assert len(begun) > 50 and not {*begun} & new
    heldout = sentences(TemplateText(templates=TRAINED), "heldout", 12)
    assert {word for s in heldout for word in re.findall("[A-Za-z]+", s)} & new


@in_one_pass
@pytest.mark.parametrize("name", TEMPLATES)
def test_pairs_of_a_split_are_what_the_other_never_draws(name: str):
    build = getattr(pairs, name)
    sides = [{(pair.clean, pair.answer) for pair in build(60, split=split)} for split in SPLITS]
    assert not sides[0] & sides[1]
    config = TemplateText(batch_size=4, length=400, templates=(name,))
    shown = sentences(config, "train", 5)
    assert not {f"{clean}{answer}" for clean, answer in sides[SPLITS.index("heldout")]} & set(shown)
    assert {pair.clean for pair in build(20, new=())} == {pair.clean for pair in build(20, split="train")}


def test_only_what_is_held_out_can_be_asked_for():
    with pytest.raises(ConfigError, match=r"word_senses: new='words', and what it holds out is combination, frame"):
        pairs.word_senses(4, new="words")
    with pytest.raises(ConfigError, match="words that are held out have no combinations"):
        pairs.indirect_objects(4, new=("words", "combination"))
    with pytest.raises(ConfigError, match=r"split='train' has no pairs with new='frame'"):
        pairs.indirect_objects(4, split="train", new="frame")


def test_what_goes_on_asks_of_the_same_things_and_is_answered_by_what_was_told():
    random, more = Random(0), 0
    for _ in range(100):
        drawn = draw("colours_of_things", random, "train")
        clean = str(drawn.pair.clean)
        told = {clean[slice(*drawn.pair.roles[a])]: clean[slice(*drawn.pair.roles[b])] for a, b in COLOURED}
        for prompt, answer in drawn.more:
            more += 1
            (thing,) = (word for word in prompt.split() if word in told)
            assert answer.strip() == told[thing]
        handed = draw("indirect_objects", random, "train")
        holder = str(handed.pair.answer).strip()
        for prompt, answer in handed.more:
            more += 1
            if answer.strip() in NICKNAMES:
                # in a sentence of its own, of two who are called by other words
                assert answer in f" {prompt}" and holder not in prompt
                continue
            # whoever was given the thing last is the one who hands it on
            assert holder in prompt and answer in (handed.pair.answer, handed.pair.wrong)
            holder = answer.strip()
    assert more > 100


@pytest.mark.full
def test_an_unordered_combination_falls_on_one_side():
    names: dict[frozenset[str], set[str]] = {}
    for seed in range(40_000):
        drawn = draw("indirect_objects", Random(seed), new=None)
        if not drawn.new & {"words", "frame"}:
            key = frozenset((str(drawn.pair.answer), str(drawn.pair.wrong)))
            names.setdefault(key, set()).add(drawn.split)
    assert all(len(sides) == 1 for sides in names.values())
    share = sum(sides == {"heldout"} for sides in names.values()) / len(names)
    assert 0.07 < share < 0.18


def test_after_a_beginning_no_year_is_likely_for_being_late():
    random = Random(0)
    for _ in range(200):
        pair = draw("greater_than", random).pair
        clean, corrupt = (int(str(side)[slice(*pair.roles["year"])]) for side in (pair.clean, pair.corrupt))
        assert 0 < corrupt < int(pair.wrong) < clean < int(pair.answer) <= min(clean + 24, 98)


def test_rows_are_documents_that_begin_with_bos_and_tokens_are_those_of_pairs():
    tokenizer = train_bpe(["When Mary and John went to the market, John gave a lamp to Mary."] * 3, 300)
    data = TemplateText(batch_size=2, length=640, templates=("indirect_objects",)).build(tokenizer)
    batch = data.batch(0)
    assert batch.documents is not None and tokenizer.bos is not None
    starts = batch.documents[:, 1:] != batch.documents[:, :-1]
    assert bool(batch.tokens[:, 0].eq(tokenizer.bos).all())
    assert bool((batch.tokens[:, 1:] == tokenizer.bos).eq(starts).all())
    (prompt, answer, stop), *_ = data.config.sentences("train", Random(5))
    ids = [id for part in (prompt, answer, stop) for id in tokenizer.encode(part)]
    assert tokenizer.decode(ids) == f"{prompt}{answer}."


def test_a_tokenizer_reads_of_held_out_words_how_they_are_written():
    texts = TemplateText(templates=("indirect_objects",)).texts()
    new = heldout_words(["indirect_objects"])
    for word in new:
        told, last = next(texts).rsplit(" ", 1)
        assert last == word and told.endswith(".") and not {*new} & {*re.findall("[A-Za-z]+", told)}


def test_the_same_step_gives_the_same_rows_and_another_gives_others():
    data = TemplateText(batch_size=2).build(bytes_tokenizer())
    assert torch.equal(data.batch(3).tokens, data.batch(3).tokens)
    assert not torch.equal(data.batch(3).tokens, data.batch(4).tokens)
    assert not torch.equal(data.batch(3).tokens, data.batch(3, "heldout").tokens)


def test_beside_text_they_take_its_tokenizer_and_count_as_made_up(tmp_path):
    (tmp_path / "a.txt").write_text("The lamp is green. " * 40)
    (tmp_path / "b.txt").write_text("The coat is red. " * 40)
    text = TextConfig(sources=(str(tmp_path),), vocab_size=300)
    config = MixtureConfig((text, TemplateText()), shares=(0.75, 0.25), batch_size=4, length=64)
    data = config.build()
    assert data.batch(0).tokens.shape == (4, 64)
    assert list(config.synthetic().values()) == [0.25]
    with pytest.raises(DataError, match="needs a tokenizer"):
        TemplateText().build()
    with pytest.raises(ConfigError, match=r'no template "word_sense"[.] Nearest: "word_senses"'):
        TemplateText(templates=("word_sense",))
