"""The same tape over any `nn.Module`, through forward hooks that live for one call.

By themselves sites are module boundaries: `{module}.in` and `{module}.out` (the first tensor a module receives and
returns); axes are called `axis0 axis1 …` because nothing says what they mean. A module called again in the same pass
adds `{module}.out#2`. Given places, sites have our names and axes; given parts, what follows from a site by weights
alone (a norm's scale, what each head writes) can be read too.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch import Tensor, nn

from glassformer.errors import SiteNotRead
from glassformer.trace.places import Layout
from glassformer.trace.sites import Site
from glassformer.trace.splits import splits_of
from glassformer.trace.tape import SiteTable, Tape


@dataclass(frozen=True)
class Bound:
    """A site of a module we did not write, and where it is.

    Args:
        site: Its name and axes.
        module: Path of the module.
        end: `in` or `out`.
        layout: How the tensor there holds the site's axes; None for the tensor as it is.
        tensor: Which of the tensors there.
    """

    site: Site
    module: str
    end: str
    layout: Layout | None = None
    tensor: int = 0


@dataclass(frozen=True)
class Derived:
    """A site whose value is a function of another's; it can be read, not edited."""

    site: Site
    source: str
    function: Callable[[Tensor], Tensor]


class Foreign(nn.Module):
    """View of a module we did not write: a site table, and a call that carries a tape.

    Args:
        module: The module; it stays as it is, and hooks are there only while it runs under a tape.
        places: Sites under our names, in the order of the forward pass; by default all module boundaries.
        derived: Sites that follow from those.
        parts: Returns a model of ours that holds the module's weights, for analyses that look at parts.
        tokenizer: From text to ids, if inputs are to be given as text.
    """

    def __init__(
        self,
        module: nn.Module,
        places: Sequence[Bound] | None = None,
        derived: Sequence[Derived] = (),
        parts: Callable[[], Any] | None = None,
        tokenizer: Any = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.tokenizer = tokenizer
        self.config = getattr(module, "config", None)
        self.named = places is not None
        self._parts = parts
        found = _boundaries(module) if places is None else places
        self._places = {bound.site.name: bound for bound in found}
        self._derived = {one.site.name: one for one in derived}
        self._table = SiteTable({name: bound.site for name, bound in self._places.items()})
        self._table |= {name: one.site for name, one in self._derived.items()}
        self._split = self._table

    @property
    def derived(self) -> tuple[str, ...]:
        """Names of the sites that are computed from others."""
        return tuple(self._derived)

    @property
    def has_parts(self) -> bool:
        """Whether it is known what the module is made of."""
        return self._parts is not None

    def parts(self) -> Any:
        """A model of ours that holds the module's weights; None if it is not known what it is made of."""
        return None if self._parts is None else self._parts()

    def sites(self, glob: str = "*") -> SiteTable:
        """The site table, or the part of it that a glob covers."""
        if self._split.splits != (splits := splits_of(self)):
            self._split = SiteTable(self._table, splits)
        table = self._split
        return table if glob == "*" else SiteTable({name: table[name] for name in table.match(glob)})

    def forward(self, *args: Any, tape: Tape | None = None, **kwargs: Any) -> Any:
        """Output of the module, reading and editing on the way."""
        if tape is None:
            return self.module(*args, **kwargs)
        with self._hooked(tape):
            output = self.module(*args, **kwargs)
        self._spread(tape)
        return output

    def _spread(self, tape: Tape) -> None:
        """Give every row of the batch its own entry where a module made one for all of them, as for positions."""
        whole = {name: value for name, value in tape.values.items() if self._is_whole(tape, name)}
        batch = max((len(value) for value in whole.values()), default=1)
        for name, value in whole.items():
            if len(value) == 1 < batch:
                tape.values[name] = value.expand(batch, *value.shape[1:])

    def _is_whole(self, tape: Tape, name: str) -> bool:
        request = tape.requests.get(name)
        batched = request is not None and self.sites()[request.read.site].axes[:1] == ("batch",)
        return batched and request is not None and not request.read.at and request.read.reduce is None

    @contextmanager
    def _hooked(self, tape: Tape) -> Generator[None, None, None]:
        from_here: dict[str, list[Derived]] = {}
        for one in self._derived.values():
            if tape.wants(one.site.name):
                from_here.setdefault(one.source, []).append(one)
        wanted: dict[tuple[str, str], list[Bound]] = {}
        for name, bound in self._places.items():
            if tape.wants(name) or name in from_here:
                wanted.setdefault((bound.module, bound.end), []).append(bound)
        handles: list[Any] = []
        try:
            for (path, end), bounds in wanted.items():
                part = self.module.get_submodule(path)
                visit = _visitor(tape, bounds, from_here)
                if end == "in":
                    handles.append(part.register_forward_pre_hook(_on_entry(visit), with_kwargs=True))
                else:
                    handles.append(part.register_forward_hook(_on_exit(visit)))
            yield
        finally:
            for handle in handles:
                handle.remove()


def is_named(model: Any) -> TypeGuard[Foreign]:
    """Whether a model is a module we did not write whose sites have our names."""
    return isinstance(model, Foreign) and model.named


def parts_of(model: Any) -> Any:
    """Parts that analyses look at: a foreign module's if they are known, else the model itself."""
    return model.parts() if isinstance(model, Foreign) and model.has_parts else model


def _boundaries(module: nn.Module) -> list[Bound]:
    found: list[Bound] = []
    for path, _ in module.named_modules():
        for end in ("in", "out"):
            found.append(Bound(Site(f"{path}.{end}" if path else end, ()), path, end))
    return found


Visit = Callable[[Any], Any]


def _visitor(tape: Tape, bounds: Sequence[Bound], derived: Mapping[str, Sequence[Derived]]) -> Visit:
    def visit(container: Any) -> Any:
        for bound in bounds:

            def through(value: Tensor, bound: Bound = bound) -> Tensor:
                return _through(tape, bound, value, derived)

            container, reached = _replaced(container, bound.tensor, through)
            if not reached and bound.layout is not None:
                raise SiteNotRead(
                    f'"{bound.site.name}": what "{bound.module}.{bound.end}" carries has no tensor '
                    f"{bound.tensor} ({type(container).__name__}).\n"
                    "    Name another boundary, or tensor=… if it carries several."
                )
        return container

    return visit


def _on_entry(visit: Visit) -> Callable[..., Any]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(isinstance(a, Tensor) for a in args):
            return visit(args), kwargs
        return args, visit(kwargs)

    return hook


def _on_exit(visit: Visit) -> Callable[..., Any]:
    def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return visit(output)

    return hook


def _through(tape: Tape, bound: Bound, value: Tensor, derived: Mapping[str, Sequence[Derived]]) -> Tensor:
    """Visit a site and what follows from it, and return the tensor that carries on."""
    name = bound.site.name
    if bound.layout is None:
        return _visit(tape, name, value)
    part = bound.layout.split(value)
    seen = _visit(tape, name, part) if tape.wants(name) else part
    for one in derived.get(name, ()):
        _visit(tape, one.site.name, one.function(seen))
    return value if seen is part else bound.layout.merge(value, seen)


def _replaced(container: Any, which: int, function: Callable[[Tensor], Tensor]) -> tuple[Any, bool]:
    """Replace one tensor, counted from 0, of a tensor, tuple, list or mapping; and say whether there is one."""
    if isinstance(container, Tensor):
        return (function(container), True) if which == 0 else (container, False)
    if isinstance(container, Mapping):
        keys = [key for key, value in container.items() if isinstance(value, Tensor)]
        if which >= len(keys):
            return container, False
        container[keys[which]] = function(container[keys[which]])  # type: ignore[index]
        return container, True
    if isinstance(container, (tuple, list)):
        items = list(container)
        places = [i for i, value in enumerate(items) if isinstance(value, Tensor)]
        if which >= len(places):
            return container, False
        items[places[which]] = function(items[places[which]])
        return (type(container)(*items) if hasattr(container, "_fields") else type(container)(items)), True
    return container, False


def _visit(tape: Tape, name: str, value: Tensor) -> Tensor:
    asked = [request.name for request in tape.reads.get(name, ())]
    earlier = {key: tape.values[key] for key in asked if key in tape.values}
    value = tape.visit(name, value)
    for key in asked:
        if not tape.grad:
            # other people's modules add in place: what was read must not change under the reader
            tape.values[key] = tape.values[key].clone()
        if key in earlier:
            calls = 2 + sum(other.startswith(f"{key}#") for other in tape.values)
            tape.values[f"{key}#{calls}"], tape.values[key] = tape.values[key], earlier[key]
    return value
