"""Layouts of other libraries: they give the logits of the reference they were made from, and come back as they were."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from closeness import close
from glassformer.checkpoints import convert
from glassformer.checkpoints.parity import wide
from layouts import LAYOUTS, TOKENS, Layout, llama2c, params, same_bits, tensors_of, written


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
