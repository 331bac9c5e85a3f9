"""Which code a run depends on: the functions that ran, each with a digest that comments and docstrings do not change.

    with Recorder() as ran:
        measure()
    known = ran.digests()           # {"glassformer.models.block:Block.forward": "5f0c…", …}
    changed(known)                  # names of those that are other code by now

A digest is of the function's syntax tree without docstrings, together with what stands beside it and may decide what it
does: decorators, what its class defines besides methods and which methods those are, and the constants of its module
that it names. It is taken from the source, so line numbers, comments and formatting do not count.

What this cannot see: a method that a class newly overrides although none of its own ran before, and code outside the
packages that are looked at. Versions of Python and PyTorch are kept beside a run for that reason. The engine itself is
left out.

Python's own profiler notes what runs. While it is on, no other profiler can be.
"""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from cProfile import Profile
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, Self

OURS = "glassformer"
ENGINE = "glassformer.study"  # runs are its business, not what they are of
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (*_FUNCTIONS, ast.ClassDef, ast.Module)


class Recorder:
    """What ran of some packages while this was open. Recorders nest: the outer one knows what the inner one saw.

    Args:
        packages: Names of modules and packages that are looked at; glassformer is, always.
    """

    _open: "list[Recorder]" = []
    # a hook in C: one in Python takes longer than most functions do
    _profile = Profile(subcalls=False, builtins=False)

    def __init__(self, packages: Iterable[str] = ()) -> None:
        self.packages = (OURS, *packages)
        self._ran: set[CodeType] = set()
        self._known: dict[str, str] = {}

    def __enter__(self) -> Self:
        Recorder._note()
        Recorder._profile.enable()
        Recorder._open.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        Recorder._note()
        Recorder._open.remove(self)
        if Recorder._open:
            Recorder._profile.enable()

    @classmethod
    def _note(cls) -> None:
        """Stop the profiler, and tell those that are open what ran since it began."""
        cls._profile.disable()
        ran = {entry.code for entry in cls._profile.getstats() if isinstance(entry.code, CodeType)}
        cls._profile.clear()
        for recorder in cls._open:
            recorder._ran |= ran

    def add(self, known: Mapping[str, str]) -> None:
        """Count code that ran at another time, by its digests then."""
        self._known |= known

    def digests(self) -> dict[str, str]:
        """Return the digest of each function that ran, by `module:name`, sorted."""
        files = {file: name for name, file in _files(self.packages).items()}
        found = dict(self._known)
        for code in self._ran:
            module = files.get(code.co_filename)
            if module is not None and module.rpartition(".")[0] != ENGINE:
                name = f"{module}:{_outermost(code.co_qualname)}"
                found[name] = digest(name)
        return dict(sorted(found.items()))


def _files(packages: Iterable[str]) -> dict[str, str]:
    """Return the file of each module of some packages that is loaded."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and any(name == package or name.startswith(f"{package}.") for package in packages):
            found[name] = file
    return found


def _outermost(qualname: str) -> str:
    """Return the name of the function or method that a piece of code lies in; the module's own code has none."""
    name = qualname.partition(".<locals>")[0]
    return "" if name.startswith("<") else name.partition(".<")[0]


def changed(known: Mapping[str, str]) -> list[str]:
    """Return the names of functions whose code is not what it was, or that are gone."""
    return [name for name, then in known.items() if digest(name) != then]


def digest(name: str) -> str:
    """Return the digest of a function by `module:name`; empty if there is none of that name."""
    module, _, function = name.partition(":")
    file = _file(module)
    if file is None:
        return ""
    return _digests(file, Path(file).stat().st_mtime_ns).get(function, "")


def _file(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return None if found is None else found.origin


@cache
def _digests(file: str, changed_at: int) -> dict[str, str]:
    """Return the digest of every function of a file, by its qualified name."""
    tree = _bare(ast.parse(Path(file).read_text(encoding="utf-8")))
    constants = {
        target.id: node
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    # one name may be defined several times: overloads, a property and its setter
    parts: dict[str, list[Any]] = {"": [n for n in tree.body if not isinstance(n, (*_FUNCTIONS, ast.ClassDef))]}

    def walk(body: Iterable[ast.stmt], prefix: str, around: list[Any]) -> None:
        for node in body:
            if isinstance(node, _FUNCTIONS):
                named = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                used = [constant for name, constant in constants.items() if name in named]
                parts.setdefault(f"{prefix}{node.name}", []).extend([node, *used, *around])
            elif isinstance(node, ast.ClassDef):
                methods = sorted(part.name for part in node.body if isinstance(part, _FUNCTIONS))
                rest = [part for part in node.body if not isinstance(part, (*_FUNCTIONS, ast.ClassDef))]
                inside = [*around, *node.bases, *node.keywords, *node.decorator_list, *rest, *methods]
                parts.setdefault(f"{prefix}{node.name}", []).extend(inside)
                walk(node.body, f"{prefix}{node.name}.", inside)

    walk(tree.body, "", [])
    return {name: _hashed(found) for name, found in parts.items()}


def _bare(tree: ast.Module) -> ast.Module:
    """Return a syntax tree without its docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and node.body and _is_text(node.body[0]):
            node.body = node.body[1:]
    return tree


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _hashed(parts: Iterable[ast.AST | str]) -> str:
    said = "\n".join(part if isinstance(part, str) else ast.dump(part) for part in parts)
    return hashlib.sha256(said.encode()).hexdigest()[:16]
