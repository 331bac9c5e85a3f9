"""Float32 at least: what is summed, decomposed or compared is not computed in the half precision it is stored in."""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
# of the size of vectors that a pass made: what float32 may leave of a difference that is none
ROUNDING = 1e-6
_AUTOCAST = ("cpu", "cuda", "mps", "xpu")


def wide(values: Tensor) -> Tensor:
    """Return values in float32 at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the types of what is given, whatever `torch.autocast` stands around."""
    with ExitStack() as off:
        for device in _AUTOCAST:
            if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
                off.enter_context(torch.autocast(device, enabled=False))
        yield


def wide_copy(module: M) -> M:
    """Return a module whose parameters are float32 at least: itself, or a copy."""
    if all(p.dtype == torch.promote_types(p.dtype, torch.float32) for p in module.parameters()):
        return module
    return copy.deepcopy(module).float()
