"""Sentences from templates: answers stand in their place, and what is asked about is never shown."""

from random import Random

import pytest
import torch

from glassformer.data import MixtureConfig, TemplateText, TextConfig, bytes_tokenizer, train_bpe
from glassformer.data.batch import SPLITS, Split
from glassformer.data.pairs import templates
from glassformer.data.pairs.templates import TEMPLATES
from glassformer.errors import ConfigError, DataError
from one_pass import first_of

FRAMES = {
    "indirect_objects": templates._PASSING,
    "greater_than": templates._SPANNING,
    "subject_verb_agreement": templates._AGREEING,
    "colours_of_things": templates._COLOURING,
    "word_senses": templates._SENSING,
}


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


@pytest.mark.parametrize("name", first_of(FRAMES))
def test_every_sentence_is_a_prompt_with_its_answer_of_the_split(name: str):
    config = TemplateText(batch_size=2, length=300, templates=(name,))
    known = {split: set[str]() for split in SPLITS}
    random = Random(0)
    for _ in range(200_000 if name == "word_senses" else 0):
        drawn = TEMPLATES[name](random)
        known[drawn.split].add(f"{drawn.pair.clean}{drawn.pair.answer}")
    for split in SPLITS:
        found = sentences(config, split)
        assert len(found) > 50
        if known[split]:
            assert set(found) <= known[split]
        last = FRAMES[name][-1].split("{")[0]
        others = [frame for frame in FRAMES[name][:-1] if frame.split("{")[0] == last]
        if not others:
            assert any(s.startswith(last) for s in found) == (split == "heldout")


@pytest.mark.parametrize("name", TEMPLATES)
def test_pairs_of_a_split_are_what_the_other_never_draws(name: str):
    build = getattr(templates, name)
    sides = [{(pair.clean, pair.answer) for pair in build(60, split=split).pairs} for split in SPLITS]
    assert not sides[0] & sides[1]
    config = TemplateText(batch_size=4, length=400, templates=(name,))
    shown = sentences(config, "train", 20)
    assert not {f"{clean}{answer}" for clean, answer in sides[SPLITS.index("heldout")]} & set(shown)


@pytest.mark.full
def test_an_unordered_combination_falls_on_one_side():
    names: dict[frozenset[str], set[str]] = {}
    random = Random(1)
    for _ in range(20_000):
        drawn = TEMPLATES["indirect_objects"](random)
        if not str(drawn.pair.clean).startswith("Then"):
            key = frozenset((str(drawn.pair.answer), str(drawn.pair.wrong)))
            names.setdefault(key, set()).add(drawn.split)
    assert len(names) == 325 and all(len(sides) == 1 for sides in names.values())
    share = sum(sides == {"heldout"} for sides in names.values()) / len(names)
    assert 0.07 < share < 0.18


def test_rows_are_documents_that_begin_with_bos_and_tokens_are_those_of_pairs():
    tokenizer = train_bpe(["When Mary and John went to the market, John gave a lamp to Mary."] * 3, 300)
    data = TemplateText(batch_size=2, length=240, templates=("indirect_objects",)).build(tokenizer)
    batch = data.batch(0)
    assert batch.documents is not None and tokenizer.bos is not None
    starts = batch.documents[:, 1:] != batch.documents[:, :-1]
    assert bool(batch.tokens[:, 0].eq(tokenizer.bos).all())
    assert bool((batch.tokens[:, 1:] == tokenizer.bos).eq(starts).all())
    prompt, answer = data.config.sentence("train", Random(5))
    ids = [*tokenizer.encode(prompt), *tokenizer.encode(answer), *tokenizer.encode(".")]
    assert tokenizer.decode(ids) == f"{prompt}{answer}."


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
