"""Weights taken over from a trained model, whose tokens may differ."""

from pathlib import Path

import pytest
import torch

import glassformer as gf
from glassformer.data import Tokenizer, train_bpe
from glassformer.errors import ConfigError, UnknownModel
from glassformer.models import DecoderConfig, Mlp, block, repeat
from glassformer.training.transfer import take_over

TEXT = ["the quick brown fox jumps over the lazy dog, and the dog sleeps on "] * 40


def model(tokenizer: Tokenizer, seed: int, width: int = 16, tied: bool = True):
    layers = repeat(block(n_heads=2, mlp=Mlp(24)), 2)
    made = DecoderConfig(tokenizer.vocab_size, width, layers, max_len=16, tied=tied).build(seed)
    made.tokenizer = tokenizer
    return made


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return train_bpe(iter(TEXT), 270)


@pytest.fixture(scope="module")
def large() -> Tokenizer:
    return train_bpe(iter(TEXT), 290)


@pytest.mark.parametrize("tied", [True, False])
def test_with_the_same_tokens_it_is_the_trained_model(tied: bool, small: Tokenizer, tmp_path: Path):
    gf.save(model(small, 1, tied=tied), tmp_path / "trained")
    new = model(small, 2, tied=tied)
    take_over(new, str(tmp_path / "trained"), small)
    tokens = torch.arange(12)[None] + 2
    assert torch.equal(new.eval()(tokens), gf.load(tmp_path / "trained")(tokens))


@pytest.mark.parametrize("tied", [True, False])
def test_of_new_tokens_vectors_begin_as_means_of_those_of_their_pieces(
    tied: bool, small: Tokenizer, large: Tokenizer, tmp_path: Path
):
    trained, new = model(small, 1, tied=tied), model(large, 2, tied=tied)
    gf.save(trained, tmp_path / "trained")
    take_over(new, str(tmp_path / "trained"), large)
    for old, own in ((trained.embed.stored, new.embed.stored), (trained.unembed.stored, new.unembed.stored)):
        for token in range(large.vocab_size):
            if token not in large.specials and "\ufffd" not in (text := large.decode([token])):
                torch.testing.assert_close(own[token], old[small.encode(text)].mean(0), rtol=0, atol=0)
        assert torch.equal(own[large.require("bos")], old[small.require("bos")])
    known = " the lazy"
    assert len(large.encode(known)) < len(small.encode(known)), "some tokens are new"


def test_other_shapes_and_names_are_refused(small: Tokenizer, tmp_path: Path):
    gf.save(model(small, 1, width=32), tmp_path / "wide")
    for weights, error, match in (
        (tmp_path / "wide", ConfigError, r"do not fit.*\d+ of \d+ weights.*embed\.matrix"),
        ("gpt-4", UnknownModel, "gpt-4l"),
    ):
        new = model(small, 2)
        before = {name: value.clone() for name, value in new.state_dict().items()}
        with pytest.raises(error, match=match):
            take_over(new, str(weights), small)
        assert all(torch.equal(value, before[name]) for name, value in new.state_dict().items())
