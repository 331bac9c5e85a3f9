"""The laws behind the study of word order: what a set, a mask and a bias alike both ways can tell."""

import math

import pytest
import torch
from torch import Tensor

from glassformer.models import Model
from glassformer.studies.word_order import (
    ALIBI,
    BACKWARDS,
    BOTH,
    LEARNED,
    LENGTH,
    NONE,
    ROTARY,
    SENTENCES,
    config,
    guess,
    loss,
    rows,
    told_apart,
)
from glassformer.testing import close

WORDS = rows(4, torch.Generator().manual_seed(0))


def model(reading: str, positions: str, depth: int = 2) -> Model:
    return config(reading, positions, depth).build(0).double().eval()


@torch.no_grad()
def logits(model: Model, words: Tensor) -> Tensor:
    return model(words)


def test_both_sentences_are_of_the_same_words() -> None:
    said = ["".join("我爱你"[word] for word in sentence) for sentence in SENTENCES.tolist()]
    assert said == ["我爱你", "爱你我"]


def test_an_encoder_without_positions_reads_a_set() -> None:
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(1))
    encoder = model(BOTH, NONE)
    close(logits(encoder, WORDS[:, order]), logits(encoder, WORDS)[:, order])
    assert told_apart(encoder) < 1e-12


@pytest.mark.parametrize(("reading", "positions"), [(BOTH, LEARNED), (BOTH, ROTARY), (BACKWARDS, NONE)])
def test_positions_or_a_mask_tell_the_sentences_apart(reading: str, positions: str) -> None:
    assert told_apart(model(reading, positions)) > 1e-3


def test_the_last_word_of_a_decoder_without_positions_sees_a_set_in_one_layer_and_an_order_in_two() -> None:
    others = torch.cat((WORDS[:, :-1].flip(-1), WORDS[:, -1:]), -1)
    one, two = (model(BACKWARDS, NONE, depth) for depth in (1, 2))
    close(logits(one, others)[:, -1], logits(one, WORDS)[:, -1])
    apart = logits(two, others)[:, -1] - logits(two, WORDS)[:, -1]
    assert float(apart.abs().max()) > 1e-3


def test_a_bias_alike_both_ways_gives_a_row_read_from_its_end_the_same_from_its_end() -> None:
    both = model(BOTH, ALIBI)
    close(logits(both, WORDS.flip(-1)), logits(both, WORDS).flip(-2))


@pytest.mark.parametrize("reading", [BOTH, BACKWARDS])
def test_a_model_that_says_any_word_that_it_sees_alike_often_loses_what_guessing_does(reading: str) -> None:
    def says(words: Tensor) -> Tensor:
        seen = torch.nn.functional.one_hot(words, 32).bool()
        before = seen.any(1, keepdim=True).expand_as(seen) if reading == BOTH else seen.cumsum(1).bool()
        return torch.where(before & ~seen, 0.0, -math.inf)

    assert float(loss(says, WORDS)) == pytest.approx(guess(reading), abs=1e-6)
