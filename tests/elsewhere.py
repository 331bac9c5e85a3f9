"""A device on any machine: tensors that lie elsewhere, and keep their numbers.

As on a GPU, what is here (the CPU) and what is there do not mix: an operation on both fails, but for numbers of no
axis, indices and copies, which PyTorch allows; and only what was brought back becomes an array. Unlike tensors of the
meta device, those of `ELSEWHERE` have values, so whatever looks at numbers runs too, and gives those of the CPU.

    with elsewhere():
        model.to(ELSEWHERE)(ids.to(ELSEWHERE))
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

# of a kind that every build of PyTorch has; the index tells it from the meta device proper
ELSEWHERE = torch.device("meta", 1)
_HERE = torch.device("cpu")
_aten: Any = torch.ops.aten
# what PyTorch lets take tensors of the CPU beside those of a device: an index, and copies from one to the other
_MAY_MIX = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default,
            _aten._unsafe_index.Tensor, _aten.copy_.default}  # fmt: skip


class MixedDevices(RuntimeError):
    """An operation on tensors of the CPU and of the other device."""


class _There(torch.Tensor):
    """A tensor that says it lies elsewhere; its `numbers` are on the CPU."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "_There":
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, values.shape, strides=values.stride(), storage_offset=values.storage_offset(), dtype=values.dtype,
            layout=values.layout, device=ELSEWHERE, requires_grad=False,
        )  # fmt: skip
        made.numbers = values
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"elsewhere({self.numbers})"

    # numbers it has, wherever it says it lies
    is_meta = False  # type: ignore[assignment]

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def numpy(self, **_: Any) -> Any:
        raise MixedDevices("numpy: an array of a tensor that lies elsewhere; bring it here first (cpu)")

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def untyped_storage(self) -> Any:
        return self.numbers.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Elsewhere(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Written(TorchFunctionMode):
    """Indices and numbers written in Python, which PyTorch makes tensors of out of the other mode's sight."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            where = args[1] if isinstance(args[1], tuple) else (args[1],)
            # no index at all is a list of whole numbers too
            where = tuple(
                torch.tensor(entry, dtype=None if entry else torch.long) if isinstance(entry, Sequence) else entry
                for entry in where
            )
            return func(args[0], where, *args[2:])
        if func is torch.Tensor.new_tensor:
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, "device": args[0].device} | kwargs)
        if func is torch.unravel_index and isinstance(args[0], _There):
            return tuple(found.to(ELSEWHERE) for found in func(args[0].numbers, *args[1:], **kwargs))
        return func(*args, **kwargs)


def _made_here(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `torch.tensor`, or its like, so that what is wanted there is made here and moved."""

    def made(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(data, _There):
            return make(data, *args, **kwargs)
        # some of the numbers may lie there
        data = tree_map(lambda v: v.numbers if isinstance(v, _There) else v, data)
        if not _is_there(kwargs.get("device")):
            return make(data, *args, **kwargs)
        return make(data, *args, **kwargs | {"device": None}).to(ELSEWHERE)

    return made


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """Let there be the device, for the duration."""
    # by name, not by mode: a backward pass runs outside of modes
    # PyTorch remembers from its first use of a device as a context which functions make tensors: the true ones
    with _HERE:
        torch.empty(0)
    constants: dict[str, Any] = {name: _made_here(getattr(torch, name)) for name in ("tensor", "as_tensor")}
    with patch.multiple(torch, **constants), _Written(), _Elsewhere():
        yield ELSEWHERE


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device) == ELSEWHERE


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do on the CPU what is asked, and say that it was done where its operands, or its device, are."""
    given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    there = any(isinstance(value, _There) for value in given)
    if there and func not in _MAY_MIX:
        for value in given:
            if not isinstance(value, _There) and value.ndim:
                raise MixedDevices(f"{func}: a tensor of the CPU, {tuple(value.shape)}, meets one that lies elsewhere")
    if there and func in _MAY_MIX and func is not _aten.copy_.default and not isinstance(args[0], _There):
        raise MixedDevices(f"{func}: an index that lies elsewhere, into a tensor of the CPU")
    if there and any(value.device.type == "meta" and not isinstance(value, _There) for value in given):
        raise MixedDevices(f"{func}: a tensor without numbers; what made it was out of sight of this stand-in")
    asked = kwargs.get("device")
    # an operation that names a device answers there; any other where its operands are
    answers_there = there if asked is None else _is_there(asked)
    if func is _aten.copy_.default:
        answers_there = isinstance(args[0], _There)
    inner_kwargs = kwargs | ({"device": _HERE} if _is_there(asked) else {})
    inner_args, inner_kwargs = tree_map(lambda v: v.numbers if isinstance(v, _There) else v, (args, inner_kwargs))
    if there and asked is not None and func is _aten._to_copy.default and not answers_there:
        # to the CPU: a copy, never a view on the numbers
        return func(*inner_args, **inner_kwargs)
    found = func(*inner_args, **inner_kwargs)
    if there and torch.Tag.inplace_view in func.tags:
        # the tensor that says it lies there has a shape of its own
        with no_dispatch():
            func(*args, **kwargs)
    if not answers_there:
        return found
    # what was changed in place is the tensor that it was
    known = {id(value.numbers): value for value in given if isinstance(value, _There)}
    return tree_map(lambda v: _wrapped(v, known) if isinstance(v, torch.Tensor) else v, found)


def _wrapped(value: torch.Tensor, known: dict[int, _There]) -> _There:
    return known[id(value)] if id(value) in known else _There(value)
