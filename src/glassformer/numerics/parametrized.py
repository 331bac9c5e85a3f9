"""Tensors of a module as every pass sees them, where parametrizations stand between them and what is stored.

    module.weight                                      what a pass multiplies by
    module.parametrizations.weight.original            what is stored, which it is made of

A module without parametrizations is as it is everywhere.
"""

from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils import parametrize

_ORIGINAL, _INSIDE = ".original", "parametrizations."


def original(module: nn.Module, name: str) -> Tensor:
    """Return what a module stores for one of its parameters."""
    if not parametrize.is_parametrized(module, name):
        return cast(Tensor, module._parameters[name])
    found: Any = module.parametrizations
    return found[name].original


def seen_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's state dict with parametrized tensors under their own names, as every pass sees them.

    It is what a model without parametrizations that computes the same would have.
    """
    found = dict[str, Tensor]()
    for name, value in model.state_dict().items():
        path, inside, rest = name.rpartition(_INSIDE) if name.endswith(_ORIGINAL) else ("", "", "")
        if inside:
            own = rest.removesuffix(_ORIGINAL)
            found[path + own] = getattr(model.get_submodule(path.removesuffix(".")), own).detach()
        elif f".{_INSIDE}" not in f".{name}":
            found[name] = value
    return found
