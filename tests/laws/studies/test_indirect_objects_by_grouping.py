"""How many heads carry an effect, where the answer is known; decoders that differ in their keys alone."""

import pytest
import torch

from glassformer.data import Tokenizer, indirect_objects
from glassformer.models import Decoder
from glassformer.models.accounting import count_parameters
from glassformer.studies.indirect_objects_by_grouping import (
    DEPTH,
    GQA,
    HEADS,
    KEYS,
    LONGEST,
    MHA,
    config,
    direct_effects,
    known,
    largest_share,
    last_logits,
    participation_ratio,
    total_effects,
    words,
)
from glassformer.testing import close

PAIRS = indirect_objects(4, new="combination")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return words()


@pytest.fixture
def model(tokenizer: Tokenizer) -> Decoder:
    made = config(GQA, tokenizer.vocab_size).build(0).double().eval()
    made.tokenizer = tokenizer
    return made


@pytest.mark.parametrize("n", [1, 3, 24])
def test_heads_that_do_alike_are_counted_whatever_their_size_and_sign_and_others_are_not(n: int) -> None:
    effects = torch.zeros(24, dtype=torch.float64)
    effects[:n] = 0.3
    effects[: n // 2] = -0.3
    assert participation_ratio(effects) == pytest.approx(n)
    assert largest_share(effects) == pytest.approx(1 / n)


def test_decoders_have_the_same_number_of_parameters_whatever_their_keys() -> None:
    assert len({sum(count_parameters(config(keys, 100)).values()) for keys in KEYS}) == 1


def test_of_a_decoder_in_which_one_head_writes_that_head_carries_all(model: Decoder) -> None:
    for layer, block in enumerate(model.stack.blocks):
        weight = block.get_parameter("attn.merge.output.weight").detach()
        d_head = weight.shape[1] // HEADS
        weight[:, d_head if layer == 1 else 0 :] = 0
    for found in (total_effects(model, PAIRS), direct_effects(model, PAIRS)):
        assert found.shape == (DEPTH * HEADS,)
        assert int(found.abs().argmax()) == HEADS
        assert participation_ratio(found) == pytest.approx(1)


def test_logits_behind_a_row_are_those_of_the_row_alone(model: Decoder) -> None:
    asked = PAIRS.encode(model, pad="right")
    assert asked.lengths is not None and len(set(asked.lengths.tolist())) > 1
    with torch.no_grad():
        together = last_logits(model, asked.clean, asked.lengths)
        alone = [model(row[None, :n])[0, -1] for row, n in zip(asked.clean, asked.lengths.tolist(), strict=True)]
    close(together, torch.stack(alone))
    likeliest = torch.stack(alone).argmax(-1)
    assert known(model, asked) == float((likeliest == asked.answer).double().mean())


def test_every_word_of_every_prompt_is_known_and_fits(tokenizer: Tokenizer) -> None:
    pairs = indirect_objects(200, seed=1, split="train").encode(tokenizer, pad="right")
    assert tokenizer.unk is not None and not (pairs.clean == tokenizer.unk).any()
    assert pairs.clean.shape[1] < LONGEST and KEYS[MHA] == HEADS
