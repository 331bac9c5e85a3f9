"""Models that did not come from a published checkpoint, written in the layout of the family that they are like."""

from pathlib import Path

import pytest
import torch

import glassformer as gf
from families import all_cases, reference_folder
from glassformer.checkpoints import convert, save
from glassformer.checkpoints.comparison.reference import compared, reference

CASES = all_cases()
FAMILIES = ("DiffLlama", "Gemma", "Gemma 2", "Gemma 3", "Mamba-2", "OLMo", "OLMo 2", "Qwen 2", "Qwen 3", "StableLM")
# for each wiring and each kind of query-key norm, one; the others in the full sweep
FIRST = ("gemma3_local_and_global_layers", "olmo2_norms_over_all_heads", "stablelm_parallel_with_norms_for_each_head")
NAMES = [name for name, case in CASES.items() if case.family in FAMILIES]


@pytest.mark.parametrize("name", [n if n in FIRST else pytest.param(n, marks=pytest.mark.full) for n in NAMES])
def test_a_model_of_unknown_origin_becomes_one_that_the_reference_computes_alike(name: str, tmp_path: Path) -> None:
    reference_folder(*CASES[name].make(), tmp_path / "theirs", torch.float64)
    model = gf.load(tmp_path / "theirs", dtype=torch.float64)
    model.origin = None
    save(model, tmp_path / "ours")
    theirs = reference(convert(tmp_path / "ours", tmp_path / "made", "huggingface"), torch.float64)
    errors = {d.site: d.error for d in compared(model, theirs, torch.arange(10).view(2, 5))}
    assert all(error <= 1e-9 for error in errors.values()), errors
