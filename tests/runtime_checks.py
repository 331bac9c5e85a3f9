"""Annotations checked while tests run: every function of a package, and every dataclass that is made.

Importing after `install` compiles each function with `check` around it. Beartype does the looking; axes of jaxtyping's
annotations keep their sizes from the first argument to the result, as `jaxtyping.jaxtyped` has it. That decorator looks
at everything at each call, arguments twice, and compiles all checks at import: half the time of the tests. Here a check
is compiled when its function is first called, and where axes are named, what has been looked at once is known: whether
tensors fit depends on their dtypes and shapes alone.
"""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import inspect
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Self, get_args, get_type_hints

import torch
from beartype import BeartypeConf, beartype
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, TypeCheckError, jaxtyped, print_bindings

# the sizes that axes have are known inside
_SIZES = jaxtyped("context")
_BEARTYPE = BeartypeConf(violation_type=TypeCheckError)
# bytecode with checks lies beside the plain one, under a name that changes with this file
_TAG = f".checked-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}.pyc"


# whether functions are checked whose annotations name no axes: a reader of types knows of them without running them
_only_shapes = False


def install(package: str, *, only_shapes: bool) -> None:
    """Check the annotations of a package's modules, which are yet to be imported: all, or those that name axes."""
    global _only_shapes
    if package in sys.modules:
        raise RuntimeError(
            f"{package} was imported before its annotations could be checked; run with --annotations none"
        )
    _only_shapes = only_shapes
    sys.meta_path.insert(0, _Finder(package))


# whether the checks look at all; see `lifted`
_looking = True


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """Let wrong arguments through, to see what a user sees, who runs without these checks."""
    global _looking
    _looking = False
    try:
        yield
    finally:
        _looking = True


def check(target: Any) -> Any:
    """Return a function that checks arguments and result at every call; of a dataclass, check what it is made of."""
    if isinstance(target, type):
        made = vars(target).get("__init__") if dataclasses.is_dataclass(target) else None
        if isinstance(made, FunctionType) and not hasattr(made, "__wrapped__"):
            target.__init__ = check(made)
        return target
    hints = _hints(target)
    if not hints:
        return target
    shaped = any(map(_has_axes, hints.values()))
    if _only_shapes and not shaped:
        return target
    # a function made anew at each call of another is not worth compiling for
    again = "<locals>" in target.__qualname__
    return (_remembered if again or shaped else _compiled)(target, hints)


def _hints(function: FunctionType) -> dict[str, Any]:
    """Return the annotations that say something here; beartype sees one method at a time and cannot resolve `Self`."""
    found = function.__annotations__.items()
    return {name: hint for name, hint in found if hint is not Any and hint is not Self and not isinstance(hint, str)}


def _has_axes(hint: Any) -> bool:
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(_has_axes, get_args(hint)))


def _compiled(function: FunctionType, hints: dict[str, Any]) -> Callable[..., Any]:
    checked: Callable[..., Any] | None = None

    @functools.wraps(function)
    def first(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if not _looking:
            return function(*args, **kwargs)
        if checked is None:
            # a copy, so that readers of the function's own annotations find them all
            copy = FunctionType(
                function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
            )
            copy.__kwdefaults__, copy.__module__ = function.__kwdefaults__, function.__module__
            copy.__qualname__, copy.__annotations__ = function.__qualname__, hints
            checked = beartype(conf=_BEARTYPE)(copy)
        return checked(*args, **kwargs)

    return first


# what each function, by its code, has been given and has returned
_SEEN: dict[CodeType, set[Any]] = {}


def _remembered(function: FunctionType, hints: dict[str, Any]) -> Callable[..., Any]:
    seen = _SEEN.setdefault(function.__code__, set())
    # known as long as the function is there, whose defaults and closure may hold a model
    resolved = functools.cache(lambda: _resolved(function, hints))
    # what a generator returns is not what it yields
    returns = "return" in hints and not inspect.isgeneratorfunction(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not _looking:
            return function(*args, **kwargs)
        given = (*map(_fingerprint, args), *[(name, _fingerprint(value)) for name, value in kwargs.items()])
        if given not in seen:
            _look(function.__qualname__, *resolved(), args, kwargs)
            seen.add(given)
        result = function(*args, **kwargs)
        if returns and (both := (given, _fingerprint(result))) not in seen:
            _look(function.__qualname__, *resolved(), args, kwargs, result)
            seen.add(both)
        return result

    return checked


# types of which a value fits as any other of its type does
_ALIKE: set[type] = set()


def _fingerprint(value: Any) -> Any:
    """Return what the fit of a value depends on; one item of a list or mapping stands for all, as to beartype."""
    kind = type(value)
    if kind in _ALIKE:
        return kind
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape
    if isinstance(value, tuple):
        return kind, *map(_fingerprint, value)
    if isinstance(value, (list, dict)):
        items = value.items() if isinstance(value, dict) else value
        return kind, *[_fingerprint(item) for item in islice(items, 1)]
    # a string may be one of a few that are allowed
    if isinstance(value, (str, bool, type)):
        return value
    _ALIKE.add(kind)
    return kind


def _look(name: str, signature: inspect.Signature, hints: dict[str, Any], args: Any, kwargs: Any, *result: Any) -> None:
    with _SIZES:
        try:
            for parameter, value in signature.bind(*args, **kwargs).arguments.items():
                kind = signature.parameters[parameter].kind
                values = (
                    value if kind == kind.VAR_POSITIONAL else value.values() if kind == kind.VAR_KEYWORD else [value]
                )
                for each in values if parameter in hints else ():
                    die_if_unbearable(each, hints[parameter], conf=_BEARTYPE)
            for each in result:
                die_if_unbearable(each, hints["return"], conf=_BEARTYPE)
        except TypeCheckError as error:
            with contextlib.redirect_stdout(io.StringIO()) as sizes:
                print_bindings()
            error.add_note(f"{name}: {sizes.getvalue()}")
            raise


def _resolved(function: FunctionType, hints: dict[str, Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return the signature of a function, and what its annotations mean."""
    # names in quotes inside a hint are of the function's module
    meant = get_type_hints(SimpleNamespace(__annotations__=hints), function.__globals__, include_extras=True)
    return inspect.signature(function), meant


def _mark(tree: ast.Module) -> ast.Module:
    """Write `@check` below a function's other decorators, and above a class's: its dataclass is made before."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list.append(_check_at(node))
        elif isinstance(node, ast.ClassDef):
            node.decorator_list.insert(0, _check_at(node))
    return tree


def _check_at(node: ast.stmt) -> ast.expr:
    decorator = ast.parse(f"__import__('{__name__}').check", mode="eval").body
    for part in ast.walk(decorator):
        ast.copy_location(part, node)
    return decorator


class _Loader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        return compile(_mark(ast.parse(data)), path, "exec", dont_inherit=True, optimize=_optimize)

    def get_data(self, path: str) -> bytes:
        return super().get_data(_beside(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(_beside(path), data, _mode=_mode)  # type: ignore[call-arg]


def _beside(path: str) -> str:
    return path.removesuffix(".pyc") + _TAG if path.endswith(".pyc") else path


class _Finder(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        # the law suites are tests themselves: pytest rewrites their assertions
        if not f"{name}.".startswith(f"{self.package}.") or f"{name}.".startswith(f"{self.package}.testing."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
