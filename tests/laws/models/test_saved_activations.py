"""What a step keeps for the way back, counted without numbers, against real steps and what an allocator holds."""

from typing import Any

import pytest
import torch
from torch.autograd.profiler import profile

from glassformer.attention import Differential, Lightning, Rope
from glassformer.data import Batch
from glassformer.errors import ConfigError
from glassformer.models import DecoderConfig, EncoderDecoderConfig, Mlp, ModelConfig, RmsNorm, block, preset, repeat
from glassformer.models.saved_activations import saved_bytes, saved_in

LLAMA = block(
    n_heads=4, n_kv_heads=2, positions=Rope(), norm=RmsNorm(), mlp=Mlp(24, activation="silu", gated=True, bias=False)
)
GPT = block(n_heads=2, mlp=Mlp(activation="gelu_tanh"), bias=True, dropout=0.1)
LINEAR = block(Lightning(chunk=4), n_heads=2, mlp=Mlp(20))
MODELS: dict[str, ModelConfig] = {
    "llama": DecoderConfig(50, 16, repeat(LLAMA, 3), max_len=32, final_norm=RmsNorm(), tied=False),
    "hybrid": DecoderConfig(50, 16, (LINEAR, LINEAR, GPT, LINEAR, GPT), max_len=32),
    "pattern": DecoderConfig(50, 16, repeat(block(Differential(), n_heads=2), 2), max_len=32),
    "post": DecoderConfig(50, 16, repeat(block(n_heads=2, mlp=Mlp(20), wiring="post"), 2), max_len=32),
    "pairs": EncoderDecoderConfig(
        50, 16, repeat(block(n_heads=2, mlp=Mlp(20)), 2), repeat(block(n_heads=2, mlp=Mlp(20), cross=True), 3), 32
    ),
}
ROWS, LENGTH = 3, 13
# of two tables of rotary positions, which a process keeps for 512 positions at least, in float32
TABLES = 2 * (512 - LENGTH) * 4 * 4


def stepped(config: ModelConfig, rows: int = ROWS, length: int = LENGTH) -> tuple[Any, Any]:
    """A model that trains, and its loss on a batch."""
    model: Any = config.build().train()
    ids = torch.randint(50, (rows, length))
    batch = Batch(ids, ids, torch.ones_like(ids, dtype=torch.bool), source=ids if model.reads_pairs else None)
    return model, lambda: model.loss(batch)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_without_numbers_saves_what_a_step_with_numbers_saves(name: str) -> None:
    model, loss = stepped(MODELS[name])
    found = saved_bytes(MODELS[name], LENGTH, ROWS)
    found["attn"] += TABLES if name == "llama" else 0
    assert found == dict(saved_in(model, loss))


def test_a_step_in_bfloat16_saves_what_it_saves_without_numbers() -> None:
    model, loss = stepped(MODELS["llama"])
    with torch.autocast("cpu", torch.bfloat16):
        found = saved_in(model, loss)
    found["attn"] -= TABLES // 2
    assert saved_bytes(MODELS["llama"], LENGTH, ROWS, "bfloat16") == dict(found)


def test_the_allocator_still_holds_as_many_bytes_when_a_loss_is_there() -> None:
    config = DecoderConfig(50, 32, repeat(LLAMA, 2), max_len=64, final_norm=RmsNorm(), tied=False)
    _, loss = stepped(config, rows=4, length=64)
    loss()
    recorder = profile(profile_memory=True)
    with recorder:
        kept = loss()
    record: Any = recorder.kineto_results
    held = sum(event.nbytes() for event in record.events() if event.name() == "[memory]")
    assert kept.requires_grad
    assert sum(saved_bytes(config, 64, 4).values()) == pytest.approx(held, rel=0.02)


def test_what_a_large_model_saves_is_as_many_times_what_one_block_more_saves() -> None:
    llama = preset("llama3-8b")
    short, one_less = (saved_bytes(c, 64) for c in (llama, llama.replace(layers=llama.blocks[""][1:])))
    more = {part: short[part] - one_less[part] for part in short}
    assert set(more) == {"attn", "mlp", "norms", "ends"} and more["ends"] == 0
    # what it reads; gate, its activation, the other branch and their product, of 14,336 neurons each; in float32
    assert more["mlp"] == 64 * (4096 + 4 * 14_336) * 4


def test_what_hangs_on_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hangs on the numbers it computes .*experts"):
        saved_bytes(preset("minimax-8l"), 16)
