"""What is measured of meshes: a step that is the training loop's, and bytes of processes that are real."""

import pytest
import torch

from glassformer.data import Repeat
from glassformer.models import DecoderConfig, block
from glassformer.training import TrainConfig
from glassformer.training.sharing import OneProcess
from meshes import RING, kept_by_ranks, mesh_of_one, messages_of_lasp, training_step

DATA = Repeat(batch_size=4, length=12, unit_min=2, unit_max=4, vocab_size=20)
RECIPE = TrainConfig(DecoderConfig(20, 16, (block(n_heads=2),), max_len=16), DATA, steps=3)


def test_a_mesh_of_one_takes_the_steps_of_plain_training() -> None:
    batch = DATA.build(None).batch(1)
    alone = training_step(RECIPE, OneProcess(), batch)
    wanted = [alone() for _ in range(3)]
    with mesh_of_one(RECIPE) as mesh:
        wrapped = training_step(RECIPE, mesh, batch)
        assert [wrapped() for _ in range(3)] == pytest.approx(wanted, rel=1e-5)
    assert wanted[2] < wanted[0] and not torch.distributed.is_initialized()


@pytest.mark.full
def test_ranks_of_a_ring_keep_their_share_and_messages_of_lasp_have_one_size() -> None:
    (alone,) = kept_by_ranks(1, 512)
    for ranks, share in RING.items():
        found = kept_by_ranks(ranks, 512)
        assert len(found) == ranks and max(found).saved < share * alone.saved
        assert sum(one.saved for one in found) > 0.9 * alone.saved
    short, *others = messages_of_lasp((64, 128, 256))
    assert short > 0 and others == [short, short]
