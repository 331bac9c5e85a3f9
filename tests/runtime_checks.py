"""Annotations checked while tests run: every function of a package, and every dataclass that is made.

Importing after `install` compiles each function with `check` around it. Beartype does the looking; axes of jaxtyping's
annotations keep their sizes from the first argument to the result, as `jaxtyping.jaxtyped` has it. That decorator looks
at arguments twice and binds them by `inspect` first, and it compiles all checks at import; here a check is compiled
when its function is first called, and a call costs what beartype costs.
"""

import ast
import dataclasses
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Self, get_args

from beartype import BeartypeConf, beartype
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, TypeCheckError
from jaxtyping._storage import pop_shape_memo, push_shape_memo, shape_str

_BEARTYPE = BeartypeConf(violation_type=TypeCheckError)
# bytecode with checks lies beside the plain one, under a name that changes with this file
_TAG = f".checked-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}.pyc"


def install(package: str) -> None:
    """Check the annotations of a package's modules, all of which are yet to be imported."""
    if package in sys.modules:
        raise RuntimeError(f"{package} was imported before its annotations could be checked; run with --unchecked")
    sys.meta_path.insert(0, _Finder(package))


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
    # a function made anew at each call of another is not worth compiling for
    checked = _compared(target, hints) if "<locals>" in target.__qualname__ else _compiled(target, hints)
    return _scoped(target, checked) if any(map(_has_axes, hints.values())) else functools.wraps(target)(checked)


def _hints(function: FunctionType) -> dict[str, Any]:
    """Return the annotations that say something here; beartype sees one method at a time and cannot resolve `Self`."""
    found = function.__annotations__.items()
    return {name: hint for name, hint in found if hint is not Any and hint is not Self and not isinstance(hint, str)}


def _has_axes(hint: Any) -> bool:
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(_has_axes, get_args(hint)))


def _compiled(function: FunctionType, hints: dict[str, Any]) -> Callable[..., Any]:
    checked: Callable[..., Any] | None = None

    def first(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
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


_SIGNATURES: dict[CodeType, inspect.Signature] = {}


def _compared(function: FunctionType, hints: dict[str, Any]) -> Callable[..., Any]:
    def by_hint(*args: Any, **kwargs: Any) -> Any:
        signature = _SIGNATURES.get(function.__code__)
        if signature is None:
            signature = _SIGNATURES[function.__code__] = inspect.signature(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name not in hints:
                continue
            kind = signature.parameters[name].kind
            several = kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            for each in (value.values() if isinstance(value, dict) else value) if several else (value,):
                die_if_unbearable(each, hints[name], conf=_BEARTYPE)
        result = function(*args, **kwargs)
        # what a generator returns is not what it yields
        if "return" in hints and not inspect.isgeneratorfunction(function):
            die_if_unbearable(result, hints["return"], conf=_BEARTYPE)
        return result

    return by_hint


def _scoped(function: FunctionType, checked: Callable[..., Any]) -> Callable[..., Any]:
    """Give each call sizes of axes of its own."""

    @functools.wraps(function)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        sizes = push_shape_memo({})
        try:
            return checked(*args, **kwargs)
        except TypeCheckError as error:
            error.add_note(shape_str(sizes))
            raise
        finally:
            pop_shape_memo()

    return scoped


class _Marking(ast.NodeTransformer):
    """Writes `@check` below a function's other decorators and above a class's: its dataclass is made before."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list.append(_check_at(node))
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.decorator_list.insert(0, _check_at(node))
        self.generic_visit(node)
        return node


def _check_at(node: ast.stmt) -> ast.expr:
    decorator = ast.parse(f"__import__('{__name__}').check", mode="eval").body
    for part in ast.walk(decorator):
        ast.copy_location(part, node)
    return decorator


class _Loader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        tree = ast.fix_missing_locations(_Marking().visit(ast.parse(data)))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

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
