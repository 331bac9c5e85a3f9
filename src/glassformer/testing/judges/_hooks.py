"""Plain PyTorch hooks: what a module is given and what it returns, seen or replaced; no tape and no site takes part."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Change:
    """What is done at one end of a module.

    Args:
        module: The module.
        end: `in`, its first arguments are given to `replace`; `out`, what it returns.
        replace: Returns what goes on in place of what it is given; None leaves that as it is.
        index: Which argument, or, of a module that returns a tuple, which of those; None for all of them.
    """

    module: nn.Module
    end: str
    replace: Callable[[Any], Any]
    index: int | None = 0


@contextmanager
def hooked(changes: Iterable[Change]) -> Generator[None, None, None]:
    """Keep changes in place while the block runs; several at one end are made in the order given."""
    handles: list[Any] = []
    try:
        for change in changes:
            register = change.module.register_forward_pre_hook if change.end == "in" else _behind(change.module)
            handles.append(register(_hook(change)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _behind(module: nn.Module) -> Callable[..., Any]:
    return lambda hook: module.register_forward_hook(lambda part, given, found: hook(part, found))


def _hook(change: Change) -> Callable[[nn.Module, Any], Any]:
    def hook(_: nn.Module, values: Any) -> Any:
        i = change.index if isinstance(values, tuple) else None
        instead = change.replace(values if i is None else values[i])
        return instead if i is None or instead is None else (*values[:i], instead, *values[i + 1 :])

    return hook
