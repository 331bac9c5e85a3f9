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
from glassformer.checkpoints.comparison.reference import real_positions, wide
from glassformer.errors import CheckpointError
from glassformer.models import DecoderConfig, Encoder, Learned, Mlp, block
from glassformer.testing import close
from glassformer.testing.layers import randomise
from layouts import (
    LAYOUTS,
    TOKENS,
    Layout,
    hooked_bert,
    hooked_gpt2,
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
    "TransformerLens encoder": "transformer-lens",
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


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_an_encoder_of_this_layout_hides_padding_and_tells_types_apart_as_bert_does(left: bool, tmp_path: Path) -> None:
    model, _, _ = written(hooked_bert, tmp_path)
    ours: Any = gf.load(tmp_path)
    lengths, types = torch.tensor([7, 4]), torch.tensor([[0, 0, 1, 1, 1, 0, 1]]).expand(2, -1)
    real = real_positions(TOKENS, lengths, left=left)
    padding = {"start": 7 - lengths} if left else {"lengths": lengths}
    with torch.no_grad(), wide(torch.float64):
        expected = model(TOKENS, attention_mask=real.long(), token_type_ids=types).logits
    close(ours(TOKENS, types=types, **padding)[real], expected[real], 1e-9)


def test_a_hooked_transformer_that_looks_both_ways_is_an_encoder(tmp_path: Path) -> None:
    """By hand: the same weights as a decoder's, without the mask."""
    written(hooked_gpt2, tmp_path)
    decoder: Any = gf.load(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text()) | {"attention_dir": "bidirectional"}
    (tmp_path / "config.json").write_text(json.dumps(said))
    ours: Any = gf.load(tmp_path)
    assert isinstance(ours, Encoder) and not torch.allclose(ours(TOKENS), decoder(TOKENS))
    # a text of one token reads the same either way, and the last position of a decoder sees as much in its first layer
    close(ours(TOKENS[:, :1]), decoder(TOKENS[:, :1]))
    seen = ["blocks.0.attn.pattern"]
    both, back = (gf.run(model, TOKENS, read=seen)[seen[0]].values for model in (ours, decoder))
    close(both[:, :, -1], back[:, :, -1])
    assert (both > 0).all()


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
