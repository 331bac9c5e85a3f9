"""Number types and devices by name, everywhere one is taken; what is none is refused with those there are."""

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from glassformer.errors import ConfigError
from glassformer.models.accounting import account
from glassformer.numerics.placement import TYPES, device_of, number_type


@pytest.mark.parametrize("name", TYPES)
def test_a_type_goes_by_its_name(name: str) -> None:
    assert number_type(name) is number_type(f"torch.{name}") is number_type(getattr(torch, name)) is TYPES[name]


@pytest.mark.parametrize(
    ("short", "name"),
    [
        *[("half", "float16"), ("fp16", "float16"), ("bf16", "bfloat16"), ("float", "float32"), ("fp32", "float32")],
        *[("double", "float64"), ("fp64", "float64")],
    ],
)
def test_a_type_goes_by_what_it_is_called_for_short(short: str, name: str) -> None:
    assert number_type(short) is TYPES[name]


def test_a_model_is_saved_loaded_and_counted_in_a_type_by_name(tmp_path: Path) -> None:
    model = gf.load("gpt-4l")
    gf.save(model, tmp_path, dtype="bfloat16")
    for dtype in ("bfloat16", torch.bfloat16):
        found = gf.load(tmp_path, dtype=dtype, device="cpu")
        assert {p.dtype for p in found.parameters()} == {torch.bfloat16}
    assert account(model.config, 8, "float16") == account(model.config, 8, torch.float16)


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, "int8", "bfloat61", "", torch.bool])
def test_what_weights_are_not_computed_in_is_refused(dtype: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Types: float16, bfloat16, float32, float64"):
        gf.load("gpt-4l", dtype=dtype)
    with pytest.raises(ConfigError, match="no type that weights are computed in"):
        gf.save(gf.load("gpt-4l"), tmp_path / "model", dtype=dtype)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "", "cpu:x", "xla"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(device: str) -> None:
    with pytest.raises(ConfigError, match="Devices here: cpu"):
        gf.load("gpt-4l", device=device)


def test_no_choice_of_type_and_device_is_left_to_the_model() -> None:
    assert number_type(None) is None
    assert device_of(None) is None
    assert device_of("cpu") == torch.device("cpu")
