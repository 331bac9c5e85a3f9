"""Which weights: a digest of a model, computed when it is asked for and remembered until the weights change.

    digest(model)        "files:…" as a folder of ours says of itself, "weights:…" as computed from the tensors
    state(model)         a number that changes with the weights, for next to nothing

State goes by where tensors lie and how often they were written to, as PyTorch counts it. It does not notice what writes
past that count: `parameter.data` written in place, memory shared with other libraries, files overwritten under a model
whose weights are mapped from them. Call `forget` after such a write.
"""

import hashlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.numerics.parametrized import original

# more is hashed only when somebody asks for the digest itself: about a second of one core
MOST_BYTES = 2**28

_KNOWN: "weakref.WeakKeyDictionary[nn.Module, tuple[int, str]]" = weakref.WeakKeyDictionary()


def digest(model: nn.Module) -> str:
    """Return the digest of a model's config, parameters and buffers; large models take seconds, once."""
    now = state(model)
    if known := known_digest(model, now):
        return known
    found = _computed(model)
    _KNOWN[model] = now, found
    return found


def weights_digest(model: nn.Module) -> str:
    """Return the digest as computed from the tensors: the same whether weights were made here or opened from a file."""
    return _computed(model)


def known_digest(model: nn.Module, now: int) -> str:
    """Return the digest that is remembered of a model in this state; empty if none is."""
    at, found = _KNOWN.get(model, (0, ""))
    return found if at == now else ""


def remember(model: nn.Module, found: str) -> None:
    """Take the digest of a model as it is now from whoever knows it; nothing is computed."""
    if found:
        _KNOWN[model] = state(model), found


def forget(model: nn.Module) -> None:
    """Let the next digest be computed anew, after weights were written in ways that `state` does not notice."""
    _KNOWN.pop(model, None)


def state(model: nn.Module) -> int:
    """Return a number that is another one once weights were replaced or written to: no tensor is read."""
    return hash(tuple((value.data_ptr(), _version(value)) for _, _, value in _registered(model)))


def is_cheap(model: nn.Module) -> bool:
    """Whether hashing takes no more than about a second: weights that are in memory, and not many."""
    size = 0
    for _, _, value in _registered(model):
        size += value.nbytes
        if size > MOST_BYTES or value.is_meta:
            return False
    return True


def _computed(model: nn.Module) -> str:
    found = hashlib.sha256(repr(_config(model)).encode())
    # tied weights have several names and count once
    names: dict[int, str] = {}
    for name, module, registered in _seen(model):
        if id(registered) in names:
            found.update(f"{name} is {names[id(registered)]}".encode())
            continue
        names[id(registered)] = name
        # a streamed model's module reads what it has registered by shape alone
        value: Tensor = getattr(module, name.rpartition(".")[2]).detach()
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if not value.is_meta:
            found.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"weights:{found.hexdigest()}"


def _registered(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield every parameter and buffer as registered: name, the module that has it, and the tensor."""
    for path, module in model.named_modules():
        for held in (module._parameters, module._buffers):
            for last, value in held.items():
                if value is not None:
                    yield f"{path}.{last}" if path else last, module, value


def _seen(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield the same as a pass sees it: what a parametrization makes of a tensor, under the tensor's own name."""
    for path, module in model.named_modules():
        start = f"{path}." if path else ""
        if "parametrizations." in f".{start}":
            continue
        made = getattr(module, "parametrizations", {})
        # first, as linear maps have their weight
        yield from ((start + last, module, original(module, last)) for last in made)
        own = (*module._parameters.items(), *module._buffers.items())
        yield from ((start + last, module, value) for last, value in own if value is not None)


def _version(value: Tensor) -> int:
    # tensors made in inference mode are not counted
    return -1 if value.is_inference() else value._version


def _config(model: Any) -> Any:
    config: Any = getattr(model, "config", None)
    return config.to_dict() if hasattr(config, "to_dict") else repr(type(model))
