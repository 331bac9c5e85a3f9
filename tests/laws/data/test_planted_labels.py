"""Labels of what is planted: copies, senses of homographs, what a pronoun stands for."""

import pytest
import torch

from glassformer.data import Induction, Repeat, Senses, bytes_tokenizer
from glassformer.data.labels import copied_positions, copy_labels, pronoun_labels, sense_labels
from glassformer.data.pairs import _frames
from glassformer.data.tasks.senses import HOMOGRAPHS, TEXTURES
from glassformer.errors import DataError, WrongArgument


def test_a_copied_position_is_the_last_one_before_with_the_same_token():
    tokens = torch.randint(5, (6, 20), generator=torch.Generator().manual_seed(0))
    found = copied_positions(tokens)
    for row, places in zip(tokens.tolist(), found.tolist()):
        for i, place in enumerate(places):
            earlier = [j for j in range(i) if row[j] == row[i]]
            assert place == (earlier[-1] if earlier else -1)


def test_in_repeats_the_copied_position_lies_one_unit_back():
    batch = Repeat(vocab_size=30, length=40, unit_min=5, unit_max=9).build().batch(1)
    found = copy_labels(batch.tokens)
    for document, row in zip(found, batch.tokens.tolist()):
        (unit,) = {one for one in document.classes["back"] if one is not None}
        assert 5 <= int(unit) <= 9 and document.ids == tuple(row)
        assert document.classes["seen"] == ("new",) * (int(unit) + 1) + ("again",) * (39 - int(unit))
    assert found.column("seen").classes == ("again", "new")
    last = copied_positions(Induction(vocab_size=50).build().batch(1).tokens)[:, -1]
    assert bool((last >= 0).all())
    with pytest.raises(DataError, match="has labels but no tree"):
        found[0].distances()


def test_a_homographs_sense_is_the_word_before_it_and_decides_its_verb():
    data = Senses().build()
    texts = [data.tokenizer.decode(row) for row in data.batch(2).tokens.tolist()]
    found = sense_labels(texts, data.tokenizer)
    seen = set()
    for document in found:
        words = data.tokenizer.tokens(document.ids)
        for i, word in enumerate(words[:-1]):
            if word in HOMOGRAPHS:
                sense = document.classes[f"sense of {word}"][i]
                assert sense is not None and sense == words[i - 1] and words[i + 1] == HOMOGRAPHS[word][sense]
                seen.add(sense)
            elif (sense := document.classes["sense of creatures"][i]) is not None:
                assert words[i + 1] == TEXTURES[sense]
    assert len(seen) == 6
    with pytest.raises(DataError, match='"sofa", at character 2, is no word'):
        sense_labels(["a sofa"], data.tokenizer)


def test_it_means_the_thing_that_was_given_before():
    found = pronoun_labels(40, bytes_tokenizer(), seed=3)
    means = set()
    for document in found:
        (thing,) = {one for one in document.classes["it means"] if one is not None}
        told = [i for i, one in enumerate(document.classes["it means"]) if one is not None]
        assert thing in _frames.THINGS and document.text[told[0] : told[0] + len(thing)] == thing
        sentence = document.text[: told[0]].count(".")
        pronouns = [document.text[i : i + 2] for i in told[len(thing) :: 2]]
        assert pronouns and set(pronouns) == {"it"} and len(told) == len(thing) + 2 * len(pronouns)
        # no other thing is named between the two
        between = document.text[told[0] + len(thing) : told[len(thing)]]
        assert not set(between.replace(".", " ").split()) & set(_frames.THINGS) or sentence == 0
        means.add(thing)
    assert len(means) > 5
    again = pronoun_labels(40, bytes_tokenizer(), seed=3)
    assert [one.text for one in again] == [one.text for one in found]
    with pytest.raises(WrongArgument, match="pronoun_labels: n= takes a whole number, 1 to"):
        pronoun_labels(0, bytes_tokenizer())
