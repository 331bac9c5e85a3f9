"""What weights are kept as and where: number types and devices, given as PyTorch's or by name.

number_type("bfloat16"), number_type(torch.float64), number_type(None)
device_of("cuda:1")        refused, with those that are there, where PyTorch finds no such device
"""

import torch

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
    """Return a device that is there; None for None, which leaves the choice. Raises `ConfigError` for any other."""
    if asked is None:
        return None
    try:
        device = torch.device(asked)
        torch.empty(0, device=device)
    # which of these it is depends on the kind of device and on how PyTorch was built
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ImportError) as error:
        raise ConfigError(
            f"device={asked!r} cannot be used: {str(error).splitlines()[0][:120]}\n    Devices here: {_devices()}."
        ) from error
    return device


def _devices() -> str:
    found = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    return ", ".join([*found, *(["mps"] if torch.backends.mps.is_available() else [])])
