"""Mutants: small wrong edits of the source, each inside one function, each of which some test should notice.

A mutant is data: which function (by a digest of its source, so that it is found again where lines above it changed, or
in another file), where in its syntax tree, the expression or statement there, and what stands there instead. Edited are
comparisons, arithmetic, `and` and `or`, `not`, constants, the order of two arguments, conditions of branches and of
comprehensions; or a statement is left out. What only a reader would notice is left alone: docstrings, annotations,
texts, what is raised, assertions and `__repr__`.
"""

import ast
import functools
import hashlib
import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
# what these are given is read by people, or by a type checker
FOR_READERS = {"cast", "warn", "debug", "info", "warning", "spoken", "sentence", "TypeVar", "overload"}
SYMMETRIC = {
    "isinstance",
    "min",
    "max",
    "gcd",
    "lcm",
    "equal",
    "maximum",
    "minimum",
    "logical_and",
    "logical_or",
    "isclose",
    "only",
}
CLOCKS = {"monotonic", "perf_counter", "process_time"}
FUNCTIONS_FOR_READERS = {"__repr__", "__str__", "__format__"}
PROBE = "__reached__"


class CannotPlace(LookupError):
    """The function that a mutant is of is no longer in the source."""


@dataclass(frozen=True)
class Mutant:
    """One edit of one function.

    Args:
        file: Path of the source, from the root of the repository.
        line: Where the edit is, in the source that it was drawn from.
        function: Qualified name of the outermost function around it.
        digest: Of that function's syntax tree, without docstring.
        path: Where in that tree, as attributes and indices: `body[2].value.args[0]`.
        kind: What is edited.
        before: The source of the expression or statement there.
        after: What stands there instead; `pass` leaves a statement out.
    """

    file: str
    line: int
    function: str
    digest: str
    path: str
    kind: str
    before: str
    after: str


@dataclass(frozen=True)
class Place:
    """A function in a file: its qualified name, its tree, and the line that its code object says it begins at."""

    file: Path
    name: str
    node: Function

    @property
    def first_line(self) -> int:
        return min([self.node.lineno, *(decorator.lineno for decorator in self.node.decorator_list)])

    @property
    def lines(self) -> int:
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1

    @property
    def digest(self) -> str:
        text = ast.get_docstring(self.node, clean=False)
        whole = ast.dump(self.node)
        return hashlib.sha256(whole.replace(repr(text), "''", 1).encode()).hexdigest()[:16]


@functools.cache
def functions(file: Path) -> tuple[Place, ...]:
    """Return the functions of a module and the methods of its classes, not those inside a function."""

    def inside(body: Sequence[ast.stmt], prefix: str) -> Iterator[Place]:
        for node in body:
            if isinstance(node, Function):
                yield Place(file, prefix + node.name, node)
            elif isinstance(node, ast.ClassDef):
                yield from inside(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
                yield from inside([*node.body, *node.orelse], prefix)

    return tuple(inside(ast.parse(file.read_text(encoding="utf-8")).body, ""))


def edits(function: Function) -> Iterator[tuple[str, ast.AST, str, str]]:
    """Yield all edits of a function: the path in its tree, the node there, the kind, and what stands there instead."""
    bound = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    for index, statement in enumerate(function.body):
        yield from _of_statement(statement, f"body[{index}]", bound)


def _of_statement(node: ast.stmt, path: str, bound: set[str]) -> Iterator[tuple[str, ast.AST, str, str]]:
    if isinstance(node, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.ClassDef)) or _only_text(node):
        return
    if _may_go(node, bound):
        yield path, node, "statement", "pass"
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "args", "decorator_list"):
            continue
        for index, part in enumerate(value if isinstance(value, list) else [value]):
            where = f"{path}.{name}[{index}]" if isinstance(value, list) else f"{path}.{name}"
            if isinstance(part, ast.stmt):
                yield from _of_statement(part, where, bound)
            elif isinstance(part, ast.expr):
                if name == "test" and isinstance(node, (ast.If, ast.While)) and not isinstance(part, ast.UnaryOp):
                    yield where, part, "branch", f"not ({ast.unparse(part)})"
                yield from _of_expression(part, where)
            elif isinstance(part, (ast.ExceptHandler, ast.withitem, ast.match_case)):
                yield from _of_parts(part, where, bound)
    bound |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}


def _of_parts(node: ast.AST, path: str, bound: set[str]) -> Iterator[tuple[str, ast.AST, str, str]]:
    for index, statement in enumerate(getattr(node, "body", [])):
        yield from _of_statement(statement, f"{path}.body[{index}]", bound)


def _only_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _may_go(node: ast.stmt, bound: set[str]) -> bool:
    """Whether a statement can be left out without a name missing afterwards."""
    if (node.end_lineno or 0) - node.lineno > 2:
        return False
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and _called(node.value) not in FOR_READERS
    if isinstance(node, ast.Assign):
        names = [name for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        return all(name.id in bound for name in names)
    if isinstance(node, ast.If):
        return not node.orelse and isinstance(node.body[-1], (ast.Return, ast.Continue, ast.Assign, ast.Expr))
    return isinstance(node, (ast.AugAssign, ast.Continue, ast.Break))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _of_expression(node: ast.expr, path: str) -> Iterator[tuple[str, ast.AST, str, str]]:
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and _called(node) in FOR_READERS):
        return
    # a moment more or less is no difference
    if any(isinstance(part, ast.Attribute) and part.attr in CLOCKS for part in ast.walk(node)):
        return
    for kind, after in _instead(node):
        yield path, node, kind, after
    if isinstance(node, ast.UnaryOp) and _number(node) is not None:
        return
    for name, value in ast.iter_fields(node):
        for index, part in enumerate(value if isinstance(value, list) else [value]):
            where = f"{path}.{name}[{index}]" if isinstance(value, list) else f"{path}.{name}"
            if isinstance(part, ast.expr):
                yield from _of_expression(part, where)
            elif isinstance(part, ast.keyword):
                yield from _of_expression(part.value, f"{where}.value")
            elif isinstance(part, ast.comprehension):
                yield from _of_expression(part.iter, f"{where}.iter")
                for number, condition in enumerate(part.ifs):
                    yield f"{where}.ifs[{number}]", condition, "filter", "True"
                    yield from _of_expression(condition, f"{where}.ifs[{number}]")


def _instead(node: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield the kind and the source of all that may stand in an expression's place."""
    number = _number(node)
    if isinstance(number, bool):
        yield "constant", str(not number)
    elif isinstance(number, int):
        yield from (("constant", str(number + more)) for more in (1, -1))
    elif number is not None:
        yield "constant", str(2 * number or 1.0)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = COMPARED[type(node.ops[0])]()
        yield "comparison", ast.unparse(ast.Compare(node.left, [other], node.comparators))
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
        # of texts and lists there is a sum alone
        if not any(isinstance(side, (ast.List, ast.Tuple, ast.JoinedStr)) or _text(side) for side in ast.walk(node)):
            yield "arithmetic", ast.unparse(ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right))
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and-or", ast.unparse(ast.BoolOp(other, node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield "not" if isinstance(node.op, ast.Not) else "sign", ast.unparse(node.operand)
    elif isinstance(node, ast.IfExp):
        yield "branch", ast.unparse(ast.IfExp(node.test, node.orelse, node.body))
    elif isinstance(node, ast.Call) and len(node.args) > 1:
        first, second, *rest = node.args
        # what is written differently is mostly of another type, which any call at all would notice
        alike = type(first) is type(second) and not isinstance(first, (ast.Starred, ast.JoinedStr)) and not _text(first)
        if alike and ast.dump(first) != ast.dump(second) and _called(node) not in SYMMETRIC:
            yield "arguments", ast.unparse(ast.Call(node.func, [second, first, *rest], node.keywords))


def _number(node: ast.expr) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        inner = _number(node.operand)
        return None if inner is None or isinstance(inner, bool) else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return node.value
    return None


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def draw(root: Path, packages: Sequence[str], number: int, seed: int) -> dict[str, list[Mutant]]:
    """Return candidates for a number of mutants spread over packages by their lines: more than needed, in order.

    At most one is drawn of a function; longer functions and, within one, rarer kinds of edit are drawn more often.
    """
    drawer = random.Random(seed)
    drawn = {}
    for name, quota in quotas(root, packages, number).items():
        # drawing without putting back, by lines: the largest of u ** (1 / lines) comes first (Efraimidis & Spirakis)
        keys = [(drawer.random() ** (1 / place.lines), place) for place in _places(root / name)]
        order = [place for _, place in sorted(keys, key=lambda pair: -pair[0])]
        mutants = filter(None, (_one_of(place, root, drawer) for place in order))
        drawn[name] = list(itertools.islice(mutants, 3 * quota))
    return drawn


def quotas(root: Path, packages: Sequence[str], number: int) -> dict[str, int]:
    """Return how many of a number of mutants each package has, by the lines of its functions; they sum to it."""
    lines = {name: sum(place.lines for place in _places(root / name)) for name in packages}
    shares = {name: number * lines[name] / sum(lines.values()) for name in packages}
    whole = {name: int(share) for name, share in shares.items()}
    rest = sorted(packages, key=lambda name: whole[name] - shares[name])[: number - sum(whole.values())]
    return {name: whole[name] + (name in rest) for name in packages}


def _places(folder: Path) -> list[Place]:
    return [place for file in sorted(folder.rglob("*.py")) for place in functions(file)]


def _one_of(place: Place, root: Path, drawer: random.Random) -> Mutant | None:
    if place.name.rpartition(".")[2] in FUNCTIONS_FOR_READERS:
        return None
    kinds: dict[str, list[Mutant]] = defaultdict(list)
    for path, node, kind, after in edits(place.node):
        line = getattr(node, "lineno", place.node.lineno)
        file = place.file.relative_to(root).as_posix()
        before = ast.unparse(node)
        kinds[kind].append(Mutant(file, line, place.name, place.digest, path, kind, before, after))
    while kinds:
        mutant = drawer.choice(kinds[drawer.choice(sorted(kinds))])
        if runs_otherwise(mutant, place):
            return mutant
        kinds[mutant.kind].remove(mutant)
        if not kinds[mutant.kind]:
            del kinds[mutant.kind]
    return None


def placed(mutant: Mutant, root: Path) -> tuple[Mutant, Place]:
    """Return a mutant as it is of the present source, and its function, in the file it was in or in another.

    Where the function has changed, its edit is the only one of the same kind, before and after, if there is such a one.

    Raises:
        CannotPlace: What is edited has changed, or is gone.
    """
    here = root / mutant.file
    files = [here, *sorted((root / Path(mutant.file).parts[0]).rglob("*.py"))]
    for place in (place for file in files if file.exists() for place in functions(file)):
        if place.digest == mutant.digest:
            return mutant, place
    for place in functions(here) if here.exists() else ():
        if place.name == mutant.function:
            wanted = mutant.kind, mutant.before, mutant.after
            paths = [
                path for path, node, kind, after in edits(place.node) if (kind, ast.unparse(node), after) == wanted
            ]
            if len(paths) == 1:
                return replace(mutant, path=paths[0], digest=place.digest), place
    raise CannotPlace(f"{mutant.function} of {mutant.file} is no longer what it was when a mutant of it was drawn")


def mutated(mutant: Mutant, place: Place) -> ast.Module:
    """Return the module of a function with the edit made."""
    return _with(mutant, place, mutant.after)


def probed(mutant: Mutant, place: Place, number: int) -> ast.Module:
    """Return the module of a function, calling the built-in `PROBE` with a number where the edit would be."""
    call = f"{PROBE}({number})"
    statement = mutant.kind == "statement"
    # the probe returns None
    return _with(mutant, place, f"{call}\n{mutant.before}" if statement else f"{call} or ({mutant.before})")


def _with(mutant: Mutant, place: Place, source: str) -> ast.Module:
    tree = ast.parse(place.file.read_text(encoding="utf-8"))
    function = next(node for node in ast.walk(tree) if isinstance(node, Function) and _same(node, place.node))
    *steps, last = re.findall(r"\w+", mutant.path)
    holder: Any = function
    for step in steps:
        holder = holder[int(step)] if step.isdigit() else getattr(holder, step)
    before: Any = holder[int(last)] if last.isdigit() else getattr(holder, last)
    assert ast.unparse(before) == mutant.before, (ast.unparse(before), mutant)
    instead = ast.parse(source).body
    for part in [inner for statement in instead for inner in ast.walk(statement)]:
        ast.copy_location(part, before)
    if mutant.kind == "statement":
        holder[int(last) : int(last) + 1] = instead
    elif last.isdigit():
        holder[int(last)] = instead[0].value  # pyright: ignore[reportAttributeAccessIssue]
    else:
        setattr(holder, last, instead[0].value)  # pyright: ignore[reportAttributeAccessIssue]
    return tree


def _same(node: Function, other: Function) -> bool:
    return (node.name, node.lineno) == (other.name, other.lineno)


def code_of(place: Place, module: CodeType) -> CodeType:
    """Return the code object of a function in that of its module."""
    for constant in module.co_consts:
        if isinstance(constant, CodeType):
            if (constant.co_qualname, constant.co_firstlineno) == (place.name, place.first_line):
                return constant
            if place.name.startswith(f"{constant.co_qualname}."):
                try:
                    return code_of(place, constant)
                except CannotPlace:
                    continue
    raise CannotPlace(f"{place.name} is not in the code of {place.file}")


def runs_otherwise(mutant: Mutant, place: Place) -> bool:
    """Whether the edit changes what is run at all, in a function whose code can be swapped for the edited one."""
    plain, edited = (
        code_of(place, compile(tree, str(place.file), "exec", dont_inherit=True))
        for tree in (ast.parse(place.file.read_text(encoding="utf-8")), mutated(mutant, place))
    )
    return plain.co_freevars == edited.co_freevars and _run(plain) != _run(edited)


def _run(code: CodeType) -> tuple[Any, ...]:
    constants = [_run(each) if isinstance(each, CodeType) else (type(each), each) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants
