"""What weights are kept as and where: number types and devices, given as PyTorch's or by name, and what room they have.

number_type("bfloat16"), number_type(torch.float64), number_type(None)
device_of("cuda:1")        refused, with those that are there, where PyTorch finds no such device
device_of("auto")          the accelerator of this machine if it has one, the CPU otherwise
place_of(model)            where a module's weights lie, and so what it reads
free_memory(device), work_memory(device, on_cpu)       in bytes: what is there, and what one pass of many may take
"""

import os
from typing import Any

import torch
from torch import nn

from glassformer.errors import ConfigError, nearest

NumberType = torch.dtype | str
Device = torch.device | str | int
TYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_SHORT = {"half": "float16", "bf16": "bfloat16", "fp16": "float16", "float": "float32", "fp32": "float32",
          "double": "float64", "fp64": "float64"}  # fmt: skip


def number_type(asked: NumberType | None) -> torch.dtype | None:
    """Return a type of weights; None for None, which leaves the choice. Raises `ConfigError` for what is none."""
    if asked is None:
        return None
    name = str(asked).removeprefix("torch.")
    name = _SHORT.get(name, name)
    if name not in TYPES:
        raise ConfigError(
            f"dtype={asked!r} is no type that weights are computed in.{nearest(name, TYPES)}\n"
            f"    Types: {', '.join(TYPES)}, by name or as torch.{next(iter(TYPES))}."
        )
    return TYPES[name]


def device_of(asked: Device | None) -> torch.device | None:
    """Return a device that is there; None for None, which leaves the choice. Raises `ConfigError` for any other.

    `"auto"` is the accelerator of this machine, if it has one that knows double precision, in which analyses sum and
    decompose; the CPU otherwise.
    """
    if asked is None:
        return None
    if asked == "auto":
        return _accelerator() or torch.device("cpu")
    try:
        device = torch.device(asked)
        # one that has shapes and no numbers is no place for weights either
        torch.zeros(1, device=device).item()
    # which of these it is depends on the kind of device and on how PyTorch was built
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ImportError) as error:
        raise ConfigError(
            f"device={asked!r} cannot be used: {str(error).splitlines()[0][:120]}\n    Devices here: {_devices()}."
        ) from error
    return device


def place_of(module: nn.Module) -> torch.device:
    """Return where a module's weights lie; the CPU for one without weights."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def is_accelerator(device: torch.device) -> bool:
    """Whether a device computes by itself, while the CPU goes on."""
    return device.type != "cpu"


def device_name(device: torch.device) -> str:
    """Return what a device is: its type, and the model of an accelerator that says so, `cuda: NVIDIA H100`."""
    ask = getattr(_module(device), "get_device_name", None)
    return device.type if ask is None else f"{device.type}: {ask(device)}"


def free_memory(device: torch.device) -> int | None:
    """Return how many bytes may still be taken on a device; None where that cannot be asked.

    What PyTorch holds back on an accelerator, to give it out again, is free.
    """
    if not is_accelerator(device):
        known = hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None
    module = _module(device)
    if not hasattr(module, "mem_get_info"):
        return None
    held: int = module.memory_reserved(device) - module.memory_allocated(device)
    return int(module.mem_get_info(device)[0]) + held


def work_memory(device: torch.device, on_cpu: int) -> int:
    """Return how many bytes one pass of many may take: half of what is free on an accelerator.

    Args:
        device: Where it runs.
        on_cpu: What it takes at most on a CPU, and never more than a quarter of what is free; and on a device that
            does not say what is free.
    """
    free = free_memory(device)
    if free is None:
        return on_cpu
    return free // 2 if is_accelerator(device) else min(free // 4, on_cpu)


def _module(device: torch.device) -> Any:
    """Return what PyTorch offers for a type of device, `torch.cuda`; None for the CPU, and where it offers nothing."""
    return getattr(torch, device.type, None) if is_accelerator(device) else None


def _accelerator() -> torch.device | None:
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    try:
        torch.empty(0, dtype=torch.float64, device=found)
    except (RuntimeError, TypeError):
        return None
    return found


def _devices() -> str:
    found = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    return ", ".join([*found, *(["mps"] if torch.backends.mps.is_available() else [])])
