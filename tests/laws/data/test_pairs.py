"""Prompt pairs: what is written is read again, templates keep what they promise, encoded pairs read as alone."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given, strategies as st
from tokenizers import Regex, pre_tokenizers
from tokenizers.models import WordLevel

from glassformer.analysis.causal import answered
from glassformer.data import (
    Batch,
    Contrast,
    Pair,
    Pairs,
    Tokenizer,
    bytes_tokenizer,
    colours_of_things,
    greater_than,
    indirect_objects,
    induction,
    read_pairs,
    repeated_arguments,
    subject_verb_agreement,
    templates_for,
    train_bpe,
    word_senses,
    word_tokenizer,
    write_pairs,
)
from glassformer.data.pairs.contrast import SIDES
from glassformer.data.pairs.templates import TEMPLATES
from glassformer.errors import ConfigError, DataError
from glassformer.handmade import induction_model
from glassformer.models import Decoder
from glassformer.testing import close
from glassformer.testing.layers import randomise
from glassformer.testing.models import ARCHITECTURES, subject

BUILDERS: dict[str, Callable[..., Pairs]] = {
    "indirect_objects": indirect_objects,
    "greater_than": greater_than,
    "subject_verb_agreement": subject_verb_agreement,
    "repeated_arguments": repeated_arguments,
    "colours_of_things": colours_of_things,
    "word_senses": word_senses,
}
DECODERS = sorted(name for name, config in ARCHITECTURES.items() if config.kind == "decoder")
texts = st.text(min_size=1, max_size=12) | st.sampled_from(
    ['say "a, b"', "two\nlines", "a\rb", "\u2028", " Mary", "\ufeff"]
)
ids = st.lists(st.integers(0, 99), min_size=1, max_size=6).map(tuple)


@st.composite
def text_pairs(draw: Callable[..., Any]) -> Pair:
    clean, corrupt = draw(st.lists(texts, min_size=2, max_size=2, unique=True))
    answer, wrong = draw(st.lists(texts, min_size=2, max_size=2, unique=True))
    return Pair(clean, corrupt, answer, wrong)


@st.composite
def any_pairs(draw: Callable[..., Any]) -> Pair:
    if draw(st.booleans()):
        pair = draw(text_pairs())
        clean, corrupt = pair.clean, pair.corrupt
    else:
        clean, corrupt = draw(st.lists(ids, min_size=2, max_size=2, unique=True))
    answer, wrong = draw(st.lists(texts | st.integers(0, 99), min_size=2, max_size=2, unique_by=str))
    names = draw(st.lists(texts, max_size=2, unique=True))
    spans = [(start := draw(st.integers(0, len(clean) - 1)), draw(st.integers(start + 1, len(clean)))) for _ in names]
    return Pair(clean, corrupt, answer, wrong, dict(zip(names, spans)))


def written(pairs: list[Pair], name: str) -> Pairs:
    with tempfile.TemporaryDirectory() as folder:
        return read_pairs(write_pairs(Path(folder, name), pairs))


@given(st.lists(any_pairs(), min_size=1, max_size=3))
def test_jsonl_gives_back_text_ids_and_roles_as_they_were(pairs: list[Pair]) -> None:
    assert written(pairs, "some.jsonl") == Pairs(tuple(pairs), "some")


@pytest.mark.parametrize("name", ["some.csv", "some.tsv"])
@given(pairs=st.lists(text_pairs(), min_size=1, max_size=3))
def test_tables_give_back_texts_with_commas_quotes_lines_and_every_script(name: str, pairs: list[Pair]) -> None:
    assert written(pairs, name) == Pairs(tuple(pairs), "some")


def every_word() -> Tokenizer:
    pairs = [pair for build in BUILDERS.values() for pair in build(400)]
    return word_tokenizer(f"{p.clean} {p.corrupt} {p.answer} {p.wrong}" for p in pairs)


def merges() -> Tokenizer:
    pairs = [p for build in BUILDERS.values() for p in build(300)]
    lines = [f"{p.clean}{p.answer} {p.corrupt}{p.wrong}" for p in pairs]
    return train_bpe(lines * 3, 2500)


@pytest.fixture(scope="module", params=[every_word, merges], ids=["words", "merges"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.param()


@pytest.mark.parametrize("name", sorted(set(BUILDERS) - {"greater_than"}))
def test_pairs_of_a_template_fit_the_tokenizer_they_were_made_for(name: str, tokenizer: Tokenizer) -> None:
    pairs = BUILDERS[name](20, tokenizer=tokenizer)
    assert len(pairs) == len({(p.clean, p.answer) for p in pairs}) == 20 and pairs.misfits(tokenizer) == []
    assert pairs == BUILDERS[name](20, tokenizer=tokenizer) != BUILDERS[name](20, seed=1, tokenizer=tokenizer)
    for group in pairs.groups(tokenizer):
        encoded = group.encode(tokenizer)
        for i, pair in enumerate(group):
            assert isinstance(pair.clean, str)
            ids = encoded.clean[i].tolist()
            for role, (start, stop) in pair.roles.items():
                told = tokenizer.decode([ids[p] for p in encoded.roles[role][i]])
                assert told.strip() == pair.clean[start:stop]
            assert tokenizer.tokens([int(encoded.answer[i])])[0].strip() == str(pair.answer).strip()


@given(st.text(min_size=1, max_size=9))
def test_tokens_lie_where_their_characters_are(text: str) -> None:
    of_bytes = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
    assert bytes_tokenizer().spans(text) == of_bytes


def test_words_lie_where_they_are_written() -> None:
    pair = indirect_objects(1)[0]
    tokenizer, text = every_word(), str(pair.clean)
    assert [text[a:b] for a, b in tokenizer.spans(text)] == tokenizer.tokens(tokenizer.encode(text))


@pytest.mark.full
def test_a_template_says_whether_it_fits_and_a_builder_refuses_if_not() -> None:
    fits = {fit.template: fit for fit in templates_for(bytes_tokenizer(), draws=20)}
    assert list(fits) == list(TEMPLATES) and not any(fit.fits for fit in fits.values())
    assert "it has to be one" in fits["indirect_objects"].why
    with pytest.raises(DataError, match=r"3 pairs were asked for, and of 500 drawn 0 different ones fit"):
        indirect_objects(3, tokenizer=bytes_tokenizer())
    words = {fit.template: fit for fit in templates_for(every_word(), draws=50)}
    # whole words: a year is one of them, and its end is not
    assert words["indirect_objects"].share == words["repeated_arguments"].share == 1
    assert not words["greater_than"].fits and "1" in words["greater_than"].why


def test_a_year_can_be_split_by_a_tokenizer_of_two_digits() -> None:
    inner = tokenizers.Tokenizer.from_str(every_word().to_json())
    digits = pre_tokenizers.Split(Regex(r"\d\d"), behavior="isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.Whitespace()])
    words = [*inner.get_vocab(), *(f"{year:02}" for year in range(100))]
    inner.model = WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    pairs = greater_than(20, tokenizer=Tokenizer(inner))
    for pair in pairs:
        year = int(str(pair.clean)[slice(*pair.roles["year"])])
        assert int(pair.wrong) < year < int(pair.answer)
        begun = int(str(pair.corrupt)[slice(*pair.roles["year"])])
        assert begun < int(pair.wrong)


def test_templates_ask_what_they_say() -> None:
    for pair in indirect_objects(50):
        names = [str(pair.answer).strip(), str(pair.wrong).strip()]
        clean, corrupt = (str(side) for side in (pair.clean, pair.corrupt))
        assert [clean.count(name) for name in names] == [1, 2] and [corrupt.count(name) for name in names] == [2, 1]
    for pair in subject_verb_agreement(50):
        subject_noun = str(pair.clean)[slice(*pair.roles["subject"])]
        plural = subject_noun.endswith("s") or subject_noun.endswith("men") or subject_noun == "children"
        assert (pair.answer in (" are", " were", " have")) == plural
    for pair in repeated_arguments(50):
        assert str(pair.clean).count(str(pair.answer)) == 1 and str(pair.answer) not in str(pair.corrupt)
        assert str(pair.clean).replace(str(pair.answer), str(pair.wrong)) == pair.corrupt


@given(st.integers(3, 8), st.data(), st.booleans())
def test_induction_pairs_have_one_answer_and_differ_in_one_place(unit: int, data: Any, by_tokenizer: bool) -> None:
    again = data.draw(st.integers(1, unit - 1))
    vocabulary: Any = bytes_tokenizer() if by_tokenizer else range(50, 70)
    pairs = induction(vocabulary, 5, seed=data.draw(st.integers(0, 9)), unit=unit, again=again)
    for pair in pairs:
        assert isinstance(pair.clean, tuple)
        differ = [i for i, (a, b) in enumerate(zip(pair.clean, pair.corrupt)) if a != b]
        assert len(pair.clean) == len(pair.corrupt) == unit + again + by_tokenizer
        (source,) = differ
        assert pair.roles["source"] == (source, source + 1)
        # the last token occurred once before, and was followed by the answer
        assert [i for i, id in enumerate(pair.clean[:-1]) if id == pair.clean[-1]] == [source - 1]
        assert (pair.clean[source], pair.corrupt[source]) == (pair.answer, pair.wrong)
        assert pair.wrong not in pair.clean


def test_induction_refuses_too_small_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"unit=16 different tokens and a wrong one, of 16 there are"):
        induction(16)
    with pytest.raises(ConfigError, match="again=4 must be at least 1 and less than unit=4"):
        induction(99, unit=4, again=4)


@pytest.mark.parametrize("name", DECODERS)
def test_padded_pairs_are_answered_as_each_alone(name: str) -> None:
    model: Decoder = subject(name).model
    pairs = Pairs(
        (Pair((1, 2, 3), (1, 4, 3), 5, 6), Pair((7, 8, 9, 3, 2), (7, 8, 1, 3, 2), 4, 2), Pair((1, 2), (1, 3), 0, 1))
    )
    together = answered(model, pairs)
    for i, pair in enumerate(pairs):
        close(together.logit_difference.values[i], answered(model, Pairs((pair,))).logit_difference.values[0])
        for j, side in enumerate((pair.clean, pair.corrupt)):
            logits = model(torch.tensor([side]))[0, -1]
            assert isinstance(pair.answer, int) and isinstance(pair.wrong, int)
            close(together.logit_difference.values[i, j], logits[pair.answer] - logits[pair.wrong])
            close(together.probability.values[i, j], logits.softmax(-1)[pair.answer])
            assert together.rank.values[i, j] == 1 + (logits > logits[pair.answer]).sum()
    left = pairs.encode(model, pad="left")
    logits, _ = model(left.clean, lengths=left.lengths, state=model.begin(len(pairs)))
    last = logits[torch.arange(3), left.last]
    difference = last.gather(1, left.answer[:, None]) - last.gather(1, left.wrong[:, None])
    close(difference[:, 0], together.logit_difference.values[:, 0])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_batch_of_prompts_loses_what_its_answers_cost(name: str) -> None:
    model: Decoder = subject(name).model
    pairs = Pairs((Pair((1, 2, 3), (1, 4, 3), 5, 6), Pair((7, 8, 9, 3, 2), (7, 8, 1, 3, 2), 4, 2)))
    encoded, found = pairs.encode(model, pad="right"), answered(model, pairs)
    for i, side in enumerate(SIDES):
        close(model.loss(encoded.batch(side)), -found.probability.values[:, i].log().mean())
    with pytest.raises(DataError, match="padded on the left"):
        pairs.encode(model, pad="left").batch("clean")


def test_a_contrast_knows_its_pairs_and_gives_its_sides_as_a_run_reads_them() -> None:
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    of_two = (["a", "b"], ids, (ids, None), {"x": ids})
    for clean, n in (("a b", 1), ([1, 2, 3], 1), (ids[0], 1), *((clean, 2) for clean in of_two)):
        assert len(Contrast(clean, clean)) == n
    pairs = Pairs((Pair((1, 2, 3), (1, 4, 3), 5, 6), Pair((7, 8, 9, 3, 2), (7, 8, 1, 3, 2), 4, 2)))
    padded, left = pairs.encode(None, pad="right"), pairs.encode(None, pad="left")
    assert len(padded) == 2 and padded.last.tolist() == [2, 4] and left.last.tolist() == [4, 4]
    side = padded.side("corrupt")
    assert isinstance(side, Batch) and torch.equal(side.tokens, padded.corrupt) and side.lengths is padded.lengths
    assert pairs[:1].encode(None).side("clean").tolist() == [[1, 2, 3]]
    with pytest.raises(DataError, match="padded on the left"):
        left.side("clean")
    with pytest.raises(DataError, match=r"the clean prompts are no ids `batch pos`: Pairs\(…\)\.encode"):
        Contrast("a b", "a c").batch("clean")
    with pytest.raises(DataError, match="ids of the answers, one per row"):
        Contrast(ids, ids, answer=1).batch("clean")


def test_a_model_built_to_do_induction_answers_every_pair_and_a_random_one_does_not() -> None:
    model = induction_model()
    usable = range(1, model.config.vocab_size)
    pairs = induction(usable, 20, unit=5, again=2)
    begun = Pairs(tuple(Pair((0, *p.clean), (0, *p.corrupt), p.answer, p.wrong) for p in pairs))  # type: ignore[misc]
    found = answered(model, begun)
    assert found.share == found.preferred == 1 and (found.rank.values[:, 0] == 1).all()
    assert (found.logit_difference.values[:, 1] < 0).all()
    other = randomise(model.config.build(), 1)
    assert answered(other, begun).share < 0.6
