"""Tokenizers: what goes in comes out, and every token can be shown."""

import pytest
import tokenizers
from hypothesis import given, strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from glassformer.data import MixtureConfig, Roles, TextConfig, Tokenizer, bytes_tokenizer, train_bpe, word_tokenizer
from glassformer.errors import ConfigError, TextError

TEXTS = ["def f(x):\n    return x + 1\n", "the cat sat on the mat, the dog did not", "我吃了一个苹果 <bos> naïve"] * 20
BYTE_LEVEL = {
    "bpe": train_bpe(TEXTS, 320),
    "digit pairs": train_bpe([*TEXTS, "1999 1999 1999"], 400, digit_pairs=True),
    "bytes": bytes_tokenizer(),
}


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_from_byte_level_tokens(name, text):
    tokenizer = BYTE_LEVEL[name]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.specials)


@given(data=st.binary(max_size=12))
def test_byte_tokens_are_byte_values_and_broken_utf8_shows_its_bytes(data):
    tokenizer = bytes_tokenizer()
    shown = tokenizer.tokens(data)
    expected = [chr(b) if b < 128 else f"<0x{b:02X}>" for b in data]
    assert shown == expected
    assert tokenizer.decode(data) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("text", ["<bos>", "a<bos>b", "<eos><pad>"])
def test_text_that_looks_like_a_special_token_is_only_text(text):
    for tokenizer in BYTE_LEVEL.values():
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.bos not in tokenizer.encode(text)


def test_the_same_texts_give_the_same_bpe():
    assert train_bpe(TEXTS, 320).to_json() == train_bpe(iter(TEXTS), 320).to_json()


@given(number=st.text("0123456789", min_size=1, max_size=7))
def test_numbers_are_read_two_digits_at_a_time_and_every_pair_is_a_token(number):
    tokenizer = BYTE_LEVEL["digit pairs"]
    pairs = [number[i : i + 2] for i in range(0, len(number), 2)]
    for before in ("", " ", "x"):
        ids = tokenizer.encode(before + number)
        assert tokenizer.tokens(ids) == [*([before] if before else []), *pairs]


def test_a_bpe_of_digit_pairs_has_the_size_asked_for_and_merges_words_as_any_other():
    tokenizer = BYTE_LEVEL["digit pairs"]
    assert tokenizer.vocab_size == 400
    assert " the" in tokenizer.tokens(tokenizer.encode("on the mat"))
    with pytest.raises(ConfigError, match="100 pairs of digits need at least 357"):
        train_bpe(TEXTS, 320, digit_pairs=True)
    with pytest.raises(ConfigError, match="digit_pairs is of a BPE"):
        MixtureConfig((TextConfig(),), (1.0,), digit_pairs=True)


def test_a_saved_tokenizer_encodes_alike_after_loading(tmp_path):
    for name, tokenizer in BYTE_LEVEL.items():
        path = tokenizer.save(tmp_path / name)
        assert [p.name for p in path.parent.iterdir()] == ["tokenizer.json"]
        for loaded in (Tokenizer.load(path), Tokenizer.load(path.parent)):
            assert loaded.encode(TEXTS[2] + "1234") == tokenizer.encode(TEXTS[2] + "1234")
            assert loaded.bos is not None and loaded.decode([*loaded.encode("x"), loaded.bos]) == "x"
            assert (loaded.bos, loaded.vocab_size) == (tokenizer.bos, tokenizer.vocab_size)


def test_words_join_with_spaces_and_chinese_characters_without():
    tokenizer = word_tokenizer(["I ate an apple?", "我吃了一个苹果？"])
    assert [tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk] == [0, 1, 2, 3]
    assert tokenizer.tokens(tokenizer.encode("我吃了")) == ["我", "吃", "了"]
    assert tokenizer.decode(tokenizer.encode("我吃了一个苹果？")) == "我吃了一个苹果？"
    assert tokenizer.decode(tokenizer.encode("I ate an apple?")) == "I ate an apple?"
    assert tokenizer.encode("apple zebra") == [tokenizer.encode("apple")[0], tokenizer.unk]
    assert tokenizer.tokens([1, 3]) == ["<bos>", "<unk>"]


def test_tokens_show_their_spaces():
    tokenizer = BYTE_LEVEL["bpe"]
    ids = tokenizer.encode("the cat sat on the mat")
    assert "".join(tokenizer.tokens(ids)) == "the cat sat on the mat"
    assert " the" in tokenizer.tokens(ids)


def test_specials_are_put_around_a_text_as_made_always_or_never():
    words = word_tokenizer(["one two"])
    assert words.around() == ((words.bos,), ())
    assert words.around("source") == words.around("target") == ((), ())
    assert words.adding(False).around() == ((), ()) and words.adding(True).around("source") == ((words.bos,), ())
    published = Tokenizer.from_json(words.to_json(), Roles(bos=1, eos=2, stops=(2, 0), begin=(1,), end=(2, 0)))
    assert published.around() == published.around("source") == ((1,), (2, 0))
    assert published.around("opening") == published.around("target") == ((1,), ())
    assert published.said() == "The tokenizer added <bos> in front of the text and <eos> <pad> behind it."
    assert published.said("source") == "The tokenizer added <bos> in front of the source and <eos> <pad> behind it."
    assert published.adding(False).said() == ""
    silent = Tokenizer.from_json(words.to_json(), Roles(bos=1))
    assert silent.around() == ((), ()) and silent.adding(True).around() == ((1,), ())
    with pytest.raises(TextError, match="no beginning token"):
        Tokenizer.from_json(words.to_json(), Roles()).adding(True).around()
    assert words.encode("one") == words.adding(True).encode("one")


def test_names_of_specials_in_a_text_stand_for_them_only_if_asked():
    tokenizer = BYTE_LEVEL["bytes"]
    assert tokenizer.adding(None, in_text=True).encode("a<bos>b") == [97, tokenizer.bos, 98]
    assert tokenizer.encode("a<bos>b") == list(b"a<bos>b")


def test_a_text_that_goes_on_is_the_token_shown_as_it():
    pieces = {piece: i for i, piece in enumerate(["<unk>", "\u2581", "\u2581the", "\u2581mat", "mat", "s"])}
    inner = tokenizers.Tokenizer(models.BPE(pieces, [], unk_token="<unk>", ignore_merges=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    inner.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    tokenizer = Tokenizer(inner)
    # every text gets a sign for a space in front, and one that begins with a space has two
    assert tokenizer.encode("the mat") == [2, 3] and tokenizer.encode(" mat") == [1, 3]
    assert tokenizer.continuing(" mat") == [3] and tokenizer.continuing("mat") == [4]
    assert tokenizer.continuing(" mat mat") == tokenizer.encode(" mat mat")
    byte_level = BYTE_LEVEL["bpe"]
    assert all(byte_level.continuing(text) == byte_level.encode(text) for text in (" the", "the", " the cat", "x"))
