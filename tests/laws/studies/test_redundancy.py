"""Smaller models that the study of redundancy makes: copies of some blocks, blocks that read another's weights."""

import pytest
import torch

import glassformer as gf
from glassformer.attention import Rope
from glassformer.data.batch import next_token_batch
from glassformer.fitting import batch_logits
from glassformer.models import Decoder, DecoderConfig, Mlp, RmsNorm, block, repeat
from glassformer.studies.redundancy import (
    LEFT_OUT,
    SHARED,
    agreement,
    distance,
    loss,
    parameters,
    sharing,
    smaller,
    text_loss,
    with_layers,
)
from glassformer.testing import close
from glassformer.trace import Set

BATCH = next_token_batch(torch.randint(20, (3, 9), generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def model() -> Decoder:
    mlp = Mlp(24, activation="silu", gated=True, bias=False)
    layer = block(n_heads=4, n_kv_heads=2, positions=Rope(), norm=RmsNorm(), mlp=mlp)
    made = DecoderConfig(20, 16, repeat(layer, 3), max_len=16, final_norm=RmsNorm()).build(1)
    with torch.no_grad():
        for parameter in made.parameters():
            # drawn so small that blocks hardly differ
            parameter.mul_(4)
    return made.eval()


def test_a_copy_of_all_blocks_is_the_model_and_shares_nothing_with_it(model: Decoder) -> None:
    made = with_layers(model, range(3))
    assert torch.equal(batch_logits(made, BATCH), batch_logits(model, BATCH))
    theirs = {parameter.data_ptr() for parameter in model.parameters()}
    assert theirs.isdisjoint(parameter.data_ptr() for parameter in made.parameters())


def test_a_block_that_is_left_out_is_one_that_writes_nothing(model: Decoder) -> None:
    silent = [Set(f"blocks.1.{part}.out", 0.0) for part in ("attn", "mlp")]
    judge = gf.run(model, BATCH.tokens, edit=silent, read="logits")["logits"].values
    close(batch_logits(with_layers(model, [0, 2]), BATCH), judge)


def test_a_block_that_shares_has_the_weights_and_both_have_the_sum_of_gradients(model: Decoder) -> None:
    made, apart = sharing(model, 0, 1), with_layers(model, (0, 0, 2))
    one_block = sum(parameter.numel() for parameter in model.stack.blocks[1].parameters())
    assert parameters(made) == parameters(model) - one_block == parameters(with_layers(model, (0, 2)))
    close(batch_logits(made, BATCH), batch_logits(apart, BATCH))
    for each in (made, apart):
        text_loss(each, BATCH).backward()
    both = [dict(apart.stack.blocks[i].named_parameters()) for i in (0, 1)]
    for name, parameter in made.stack.blocks[0].named_parameters():
        close(gradient(parameter), gradient(both[0][name]) + gradient(both[1][name]))


def gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def test_what_is_shared_or_left_out_is_what_costs_least(model: Decoder) -> None:
    pairs = [sharing(model, owner, reader) for owner, reader in ((0, 1), (1, 0), (1, 2), (2, 1))]
    rests = [with_layers(model, [i for i in range(3) if i != out]) for out in range(3)]
    for way, all_of_them in ((SHARED, pairs), (LEFT_OUT, rests)):
        losses = [loss(one, BATCH) for one in all_of_them]
        assert loss(smaller(way, model, BATCH, 0), BATCH) == min(losses) < max(losses)


def test_the_distance_from_a_teacher_is_its_cross_entropy_less_its_entropy(model: Decoder) -> None:
    student = with_layers(model, (0, 2))
    assert float(distance(model)(model, BATCH).detach()) == pytest.approx(0, abs=1e-6)
    assert agreement(model, model, BATCH) == 1
    found = distance(model)(student, BATCH)
    teacher, log_student = batch_logits(model, BATCH).softmax(-1), batch_logits(student, BATCH).log_softmax(-1)
    close(found, (teacher * (teacher.log() - log_student)).sum(-1).mean())
    found.backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.grad is not None for parameter in student.parameters())
