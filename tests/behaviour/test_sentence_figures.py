"""Figures of sentences: one for everything that may be new in a question, beside what no question would give."""

import re

import pytest

from glassformer.data import pairs, word_tokenizer
from glassformer.data.pairs.templates import TEMPLATES, heldout_words
from glassformer.models import DecoderConfig, block
from glassformer.zoo import sentences as measured
from glassformer.zoo.sentences import KINDS, known_words, sentences
from one_pass import in_one_pass


@in_one_pass
@pytest.mark.parametrize("template", ["subject_verb_agreement", "word_senses"])
def test_every_kind_of_new_question_has_a_share_and_how_far_it_is_above_the_corrupt_one(template: str):
    with pytest.MonkeyPatch.context() as patched:
        for name, n in (("N_PAIRS", 12), ("N_NAMING", 4), ("N_ABLATED", 6), ("N_DRAWS", 1)):
            patched.setattr(measured, name, n)
        kinds = {kind: new for kind, new in KINDS.items() if new <= {*TEMPLATES[template].kept}}
        drawn = [pair for new in kinds.values() for pair in getattr(pairs, template)(40, new=new)]
        model = DecoderConfig(400, 16, (block(n_heads=2),), max_len=32).build(0)
        model.tokenizer = word_tokenizer(f"{p.clean} {p.corrupt} {p.answer} {p.wrong}" for p in drawn)
        found = sentences(model, template)
    told = found.notes[0]
    for kind in kinds:
        share, contrast = (found.figures.pop(f"{template}_{kind}{ending}") for ending in ("", "_contrast"))
        said = re.search(rf"{kind.replace('_', ' ')} ([\d.]+) \(([\d.]+) to ([\d.]+), of \d+; [a-z ]+ ([\d.]+)\)", told)
        assert said is not None, told
        clean, low, high, corrupt = map(float, said.groups())
        assert clean == pytest.approx(share, abs=6e-4) and low <= clean <= high
        assert clean - corrupt == pytest.approx(contrast, abs=1.1e-3)
    assert {*found.figures} <= {f"{template}_said", f"{template}_without_heads"}


def test_how_often_text_holds_words_that_are_held_out_is_counted():
    words = heldout_words(["indirect_objects", "greater_than"])
    texts = [" ".join(words), f"{words[0]} {words[0]}s, {words[0]}: in 1713", "13"]
    told = known_words(["indirect_objects", "greater_than"], texts)
    assert f"each at least 1 times; the rarest of {len(words)}: " in told
    assert words[0] not in told and " 13 " not in told
    assert "Euler 0" in known_words(["indirect_objects"], ["Eulerian"])
