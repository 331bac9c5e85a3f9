"""Unseen words: withheld means never seen, and a row determines its words."""

import pytest
import torch

from glassformer.data import UnseenWords
from glassformer.errors import ConfigError

SMALL = UnseenWords(batch_size=8, length=40, alphabet=12, words=60, withheld=20, per_row=4)
CONFIGS = [SMALL, SMALL.replace(letters=3, length=41), SMALL.replace(alphabet=16, new_letters=4)]


@pytest.mark.parametrize("config", CONFIGS, ids=["words", "long", "letters"])
def test_training_rows_hold_known_words_only_and_held_out_rows_both(config: UnseenWords) -> None:
    data, lexicon = config.build(), config.lexicon()
    known, new = (
        {tuple(w) for w in lexicon.words[chosen].tolist()} for chosen in (~lexicon.withheld, lexicon.withheld)
    )
    assert not known & new
    letters = range(1, config.alphabet - config.new_letters + 1)
    for split in ("train", "heldout"):
        found = set()
        for step in range(4):
            batch = data.batch(step, split)
            for row in torch.cat((batch.tokens, batch.targets[:, -1:]), 1).tolist():
                body = row[1:]
                words = [tuple(body[i : i + config.letters]) for i in range(0, len(body), config.letters)]
                found |= {word for word in words if len(word) == config.letters}
        assert found <= (known if split == "train" else known | new)
        assert bool(found & new) == (split == "heldout")
        assert all(letter in letters for word in found & known for letter in word)


@pytest.mark.parametrize("config", CONFIGS, ids=["words", "long", "letters"])
def test_what_counts_is_determined_by_the_row(config: UnseenWords) -> None:
    batch = config.build().batch(0, "heldout")
    assert batch.weight.any()
    for row, pos in batch.weight.nonzero().tolist():
        before = batch.tokens[row, : pos + 1].tolist()
        # from the beginning of this word: find the same beginning of an earlier one, and read on
        start = 1 + pos // config.letters * config.letters
        begun = before[start:]
        earlier = [i for i in range(1, start, config.letters) if before[i : i + len(begun)] == begun]
        assert earlier
        assert {before[i + len(begun)] for i in earlier} == {int(batch.targets[row, pos])}


def test_marks_tell_place_occurrence_and_kind_of_each_target() -> None:
    lexicon = SMALL.lexicon()
    new, known = lexicon.words[lexicon.withheld][0], lexicon.words[~lexicon.withheld][0]
    row = torch.cat((torch.tensor([0]), new, known, new, new, known))[None]
    marks = SMALL.marks(row)
    assert marks.letter[0].tolist() == [0, 1] * 5
    assert marks.occurrence[0].tolist() == [1, 1, 1, 1, 2, 2, 3, 3, 2, 2]
    assert marks.withheld[0].tolist() == [True, True, False, False, True, True, True, True, False, False]


def test_languages_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="12 letters make 144 words of 2; words=200"):
        SMALL.replace(words=200)
    with pytest.raises(ConfigError, match="a word of one letter determines nothing"):
        SMALL.replace(letters=1)
