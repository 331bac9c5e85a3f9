"""Number types and devices by name, everywhere one is taken; what is none is refused with those there are."""

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer as gf
from elsewhere import ELSEWHERE, elsewhere
from glassformer.analysis.sweep import _schedule, logit_difference, sweep
from glassformer.errors import ConfigError
from glassformer.models.accounting import account
from glassformer.numerics import placement
from glassformer.numerics.placement import (
    TYPES,
    device_name,
    device_of,
    free_memory,
    number_type,
    place_of,
    work_memory,
)
from glassformer.testing.models import subject
from glassformer.trace import Scale
from one_pass import in_one_pass


@in_one_pass
@pytest.mark.parametrize("name", TYPES)
def test_a_type_goes_by_its_name(name: str) -> None:
    assert number_type(name) is number_type(f"torch.{name}") is number_type(getattr(torch, name)) is TYPES[name]


@in_one_pass
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


@in_one_pass
@pytest.mark.parametrize("device", ["cuda:99", "gpu", "", "cpu:x", "xla"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(device: str) -> None:
    with pytest.raises(ConfigError, match="Devices here: cpu"):
        gf.load("gpt-4l", device=device)


def test_no_choice_of_type_and_device_is_left_to_the_model() -> None:
    assert number_type(None) is None
    assert device_of(None) is None
    assert device_of("cpu") == torch.device("cpu")


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets a device pass for this machine's accelerator."""

    def let(device: str) -> None:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(device))

    return let


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_auto_is_the_cpu_where_there_is_no_accelerator() -> None:
    assert device_of("auto") == torch.device("cpu")
    assert place_of(gf.load("attn-only-1l", device="auto")) == torch.device("cpu")


def test_auto_is_the_accelerator_where_there_is_one(accelerator: Any) -> None:
    accelerator("meta:1")
    with elsewhere():
        assert device_of("auto") == ELSEWHERE


def test_a_model_is_loaded_onto_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_accelerator", lambda: ELSEWHERE)
    with elsewhere():
        for stream in (False, True):
            model = gf.load("attn-only-1l", device="auto", stream=stream)
            assert place_of(model) == gf.run(model, [1, 2, 3]).predictions().device == ELSEWHERE
        assert place_of(gf.load("attn-only-1l")) == torch.device("cpu")


def test_auto_passes_by_an_accelerator_without_double_precision(
    accelerator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator("mps")

    def refused(*size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        assert (dtype, device.type) == (torch.float64, "mps")
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    monkeypatch.setattr(torch, "empty", refused)
    assert device_of("auto") == torch.device("cpu")


class Offers:
    """What PyTorch offers for a type of device: 1,000 bytes of it free, 300 held back of which 100 are in use."""

    mem_get_info = staticmethod(lambda device: (1000, 5000))
    memory_reserved = staticmethod(lambda device: 300)
    memory_allocated = staticmethod(lambda device: 100)
    get_device_name = staticmethod(lambda device: "Some GPU")


def test_what_is_free_on_a_device_is_what_nobody_has_and_what_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", Offers)
    device = torch.device("cuda", 0)
    assert free_memory(device) == 1200
    assert work_memory(device, on_cpu=7) == 600
    assert device_name(device) == "cuda: Some GPU"


def test_a_device_that_says_nothing_of_its_memory_gets_what_a_cpu_gets() -> None:
    assert free_memory(ELSEWHERE) is None
    assert work_memory(ELSEWHERE, on_cpu=7) == 7
    assert device_name(ELSEWHERE) == "meta"


@pytest.mark.parametrize(("free", "expected"), [(40, 10), (4000, 100), (None, 100)])
def test_on_a_cpu_work_takes_a_quarter_of_what_is_free_and_no_more_than_helps(
    free: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "free_memory", lambda device: free)
    assert work_memory(torch.device("cpu"), on_cpu=100) == expected
    assert device_name(torch.device("cpu")) == "cpu"


@pytest.mark.parametrize("free", [1 << 17, 1 << 30])
def test_a_sweep_on_an_accelerator_fills_half_of_what_is_free_there(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def said(device: torch.device) -> int:
        asked.append(device)
        return free

    monkeypatch.setattr(placement, "free_memory", said)
    plan = [[Scale("blocks.0.attn.z", factor / 4)] for factor in range(4)]
    case = subject("gpt2")
    with elsewhere():
        model, ids = case.model.to(ELSEWHERE), case.inputs[0].to(ELSEWHERE)
        found = sweep(model, ids, plan, logit_difference(1, 2))
        given = sweep(model, ids, plan, logit_difference(1, 2), memory=free // 2)
    assert set(asked) == {ELSEWHERE}
    assert found.passes == given.passes
    assert (found.passes == 1) == (free == 1 << 30)
    assert _schedule.worthwhile(ELSEWHERE) > _schedule.worthwhile(torch.device("cpu"))


@pytest.mark.gpu
def test_on_a_gpu_memory_is_known_and_auto_is_that_gpu(cuda: torch.device) -> None:
    before = free_memory(cuda)
    assert before is not None and before > 0
    held = torch.zeros(1 << 20, device=cuda)
    after = free_memory(cuda)
    assert after is not None and before - after >= held.numel() * held.element_size()
    assert device_name(cuda).startswith("cuda: ")
    assert place_of(gf.load("attn-only-1l", device="auto")).type == "cuda"
    assert {p.dtype for p in gf.load("attn-only-1l", device="cuda", dtype="bfloat16").parameters()} == {torch.bfloat16}
