"""A recipe that trains in milliseconds, for tests of what happens around training."""

from typing import Any

from glassformer.attention import Rope
from glassformer.data import Repeat
from glassformer.models import DecoderConfig, Mlp, block, repeat
from glassformer.training import TrainConfig

MODEL = DecoderConfig(
    20, 16, repeat(block(n_heads=2, positions=Rope(), mlp=Mlp(24), bias=True, dropout=0.1), 2), max_len=32
)
DATA = Repeat(batch_size=4, length=12, unit_min=2, unit_max=4, vocab_size=20)


def recipe(**changes: Any) -> TrainConfig:
    """Return a recipe of six steps with two checkpoints on the way, one of them kept for good."""
    defaults = TrainConfig(
        MODEL, DATA, steps=6, log_every=1, evaluate_every=3, evaluate_batches=1, save_every=2, keep=(2,)
    )
    return defaults.replace(**changes)
