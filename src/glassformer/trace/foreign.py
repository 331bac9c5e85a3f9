"""The same tape over any `nn.Module`, through forward hooks that live for one call.

Sites are module boundaries: `{module}.in` and `{module}.out` (the first tensor a module receives and returns); axes are
called `axis0 axis1 …` because nothing says what they mean. A module called again in the same pass adds
`{module}.out#2`.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from glassformer.trace.tape import Site, SiteTable, Tape


class Foreign:
    """View of a module we did not write: a site table, and a call that carries a tape."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def sites(self, glob: str = "*") -> SiteTable:
        table = SiteTable()
        for path, _ in self.module.named_modules():
            for end in ("in", "out"):
                name = f"{path}.{end}" if path else end
                table[name] = Site(name, ())
        return table if glob == "*" else SiteTable({name: table[name] for name in table.match(glob)})

    def __call__(self, *args: Any, tape: Tape | None = None, **kwargs: Any) -> Any:
        if tape is None:
            return self.module(*args, **kwargs)
        with _hooked(self.module, tape):
            return self.module(*args, **kwargs)


@contextmanager
def _hooked(module: nn.Module, tape: Tape) -> Generator[None, None, None]:
    handles = []
    for path, part in module.named_modules():
        before, after = (f"{path}.{end}" if path else end for end in ("in", "out"))
        if tape.wants(before):
            handles.append(part.register_forward_pre_hook(_on_entry(tape, before), with_kwargs=True))
        if tape.wants(after):
            handles.append(part.register_forward_hook(_on_exit(tape, after)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _on_entry(tape: Tape, name: str) -> Callable[..., Any]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(isinstance(a, Tensor) for a in args):
            return _replace_first(args, tape, name), kwargs
        return args, _replace_first(kwargs, tape, name)

    return hook


def _on_exit(tape: Tape, name: str) -> Callable[..., Any]:
    def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return _replace_first(output, tape, name)

    return hook


def _replace_first(container: Any, tape: Tape, name: str) -> Any:
    """Visit the first tensor in a tensor, tuple, list or mapping, and put the visited value back."""
    if isinstance(container, Tensor):
        return _visit(tape, name, container)
    if isinstance(container, Mapping):
        for key, value in container.items():
            if isinstance(value, Tensor):
                container[key] = _visit(tape, name, value)  # type: ignore[index]
                break
        return container
    if isinstance(container, (tuple, list)):
        items = list(container)
        for i, value in enumerate(items):
            if isinstance(value, Tensor):
                items[i] = _visit(tape, name, value)
                break
        return type(container)(*items) if hasattr(container, "_fields") else type(container)(items)
    return container


def _visit(tape: Tape, name: str, value: Tensor) -> Tensor:
    earlier = tape.values.get(name)
    value = tape.visit(name, value)
    if earlier is not None and name in tape.values:
        calls = 2 + sum(key.startswith(f"{name}#") for key in tape.values)
        tape.values[f"{name}#{calls}"], tape.values[name] = tape.values[name], earlier
    return value
