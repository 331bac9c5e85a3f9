"""Conversion of reference checkpoints: to ours and back, and from one library's layout to another's."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import glassformer as gf
from families import all_cases, reference_folder
from glassformer.checkpoints import convert
from glassformer.checkpoints.comparison.reference import wide
from glassformer.errors import CheckpointError
from glassformer.testing import close
from layouts import (
    TOKENS,
    hooked_gpt2_folded,
    hooked_llama,
    llama2c,
    nanogpt,
    params,
    per_head_gpt2_folded,
    per_head_llama,
    same_bits,
    tensors_of,
    written,
)

CASES = all_cases()
# the first case of a family stands for it; the others are walked in the full sweep
FIRST = {case.family: name for name, case in reversed(CASES.items())}


@pytest.mark.parametrize("name", [n if n in FIRST.values() else pytest.param(n, marks=pytest.mark.full) for n in CASES])
def test_a_family_comes_back_from_ours_bit_for_bit(name: str, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    reference_folder(*CASES[name].make(), theirs, torch.float32)
    ours = convert(theirs, tmp_path / "ours")
    back = convert(ours, tmp_path / "back", "huggingface")
    same_bits(tensors_of(back), tensors_of(theirs))
    assert json.loads((back / "config.json").read_text()) == json.loads((theirs / "config.json").read_text())
    same_bits(tensors_of(convert(back, tmp_path / "again")), tensors_of(ours))


@pytest.mark.parametrize(
    ("layout", "to"),
    [
        (params, "huggingface"), (llama2c, "huggingface"), (hooked_llama, "huggingface"), (params, "transformer-lens"),
        (nanogpt, "huggingface"), (nanogpt, "transformer-lens"), (params, "per-head"), (per_head_llama, "huggingface"),
        (per_head_gpt2_folded, "transformer-lens"), (hooked_gpt2_folded, "per-head"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)  # fmt: skip
def test_a_model_is_the_same_in_the_layout_of_another_library(layout: Any, to: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    theirs = tmp_path / "theirs"
    theirs.mkdir()
    model, _, _ = written(layout, theirs)
    made = convert(theirs, tmp_path / "made", to)
    ours: Any = gf.load(made)
    with torch.no_grad(), wide(torch.float64):
        expected = model(TOKENS).logits
        close(ours(TOKENS), expected, 1e-9)
        if to == "huggingface":
            again = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float64, attn_implementation="eager")
            close(again(TOKENS).logits, expected, 1e-9)


def test_what_has_no_place_in_a_layout_is_named(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    written(hooked_gpt2_folded, theirs)
    with pytest.raises(CheckpointError, match=r'"unembed.bias" has no place in this layout unless it is zero'):
        convert(theirs, tmp_path / "made", "huggingface")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
    with pytest.raises(CheckpointError, match=r"Closest is nanoGPT, where\n.*activation: gelu_tanh here, gelu there"):
        convert(theirs, tmp_path / "made", "nanogpt")


def test_a_published_llama_becomes_one_of_llama2c_and_comes_back(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    reference_folder(*CASES["llama_grouped_keys"].make(), theirs, torch.float32)
    other = convert(theirs, tmp_path / "other", "llama2c")
    back = convert(other, tmp_path / "back", "huggingface")
    same_bits(tensors_of(back), tensors_of(theirs))
    assert "layers.0.attention.wq.weight" in load_file(other / "model.safetensors")
