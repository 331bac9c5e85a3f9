"""Layouts of other libraries: they give the logits of the reference they were made from, and come back as they were."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import glassformer as gf
from glassformer.checkpoints import convert, save
from glassformer.checkpoints.comparison.reference import wide
from glassformer.errors import CheckpointError
from glassformer.models import DecoderConfig, Learned, Mlp, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from layouts import (
    LAYOUTS,
    TOKENS,
    Layout,
    hooked_llama,
    llama2c,
    params,
    per_head_llama,
    same_bits,
    tensors_of,
    written,
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_layout_gives_the_references_logits(layout: Callable[[], Layout], tmp_path: Path) -> None:
    model, _, family = written(layout, tmp_path)
    ours: Any = gf.load(tmp_path)
    assert ours.origin.family == family
    with torch.no_grad(), wide(torch.float64):
        close(ours(TOKENS), model(TOKENS).logits, 1e-9)


TARGETS = {
    "nanoGPT": "nanogpt", "Llama (params.json)": "llama2c", "TransformerLens": "transformer-lens",
    "Per-head tensors": "per-head",
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_layout_comes_back_from_ours_bit_for_bit(layout: Callable[[], Layout], tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    _, tensors, family = written(layout, theirs)
    ours = convert(theirs, tmp_path / "ours", shard_size=2000)
    assert len(list(ours.glob("*.safetensors"))) > 3
    back = convert(ours, tmp_path / "back", TARGETS[family])
    # tables and masks among the tensors too, and a prefix that torch.compile left
    same_bits(tensors_of(back), tensors)
    again = convert(back, tmp_path / "again")
    same_bits(tensors_of(again), tensors_of(ours))
    name = "params.json" if layout in (params, llama2c) else "config.json"
    expected = json.loads(next(theirs.glob("*.json")).read_text())
    assert json.loads((back / name).read_text()) == expected


@pytest.mark.parametrize("layout", [hooked_llama, per_head_llama], ids=lambda layout: layout.__name__)
def test_a_bias_that_is_added_behind_the_gate_is_refused(layout: Callable[[], Layout], tmp_path: Path) -> None:
    _, tensors, _ = written(layout, tmp_path)
    name = next(name for name in tensors if name.endswith("b_in"))
    save_file(tensors_of(tmp_path) | {name: torch.ones_like(tensors[name])}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f'"{name}" is added where our models add nothing'):
        gf.load(tmp_path)


def test_a_bias_in_front_of_the_gate_has_no_place_behind_it(tmp_path: Path) -> None:
    layer = block(n_heads=2, bias=True, mlp=Mlp(20, activation="silu", gated=True))
    model: Any = randomise(DecoderConfig(11, 16, (layer,), max_len=16, positions=Learned()).build())
    for name, value in model.named_parameters():
        if name.endswith("mlp.gate.bias"):
            torch.nn.init.zeros_(value)
    with pytest.raises(CheckpointError, match=r'"stack.blocks.0.mlp.input.bias" has no place in this layout'):
        convert(save(model, tmp_path / "ours"), tmp_path / "theirs", "transformer-lens")
