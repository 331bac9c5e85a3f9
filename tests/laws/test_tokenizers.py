"""Tokenizers: what goes in comes out, and every token can be shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data import Tokenizer, bytes_tokenizer, train_bpe, word_tokenizer

TEXTS = ["def f(x):\n    return x + 1\n", "the cat sat on the mat, the dog did not", "我吃了一个苹果 <bos> naïve"] * 20
BYTE_LEVEL = {"bpe": train_bpe(TEXTS, 320), "bytes": bytes_tokenizer()}


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


def test_a_saved_tokenizer_encodes_alike_after_loading(tmp_path):
    for name, tokenizer in BYTE_LEVEL.items():
        path = tokenizer.save(tmp_path / name)
        assert [p.name for p in path.parent.iterdir()] == ["tokenizer.json"]
        for loaded in (Tokenizer.load(path), Tokenizer.load(path.parent)):
            assert loaded.encode(TEXTS[2]) == tokenizer.encode(TEXTS[2])
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
