"""Which words the source says: templates in calls of `spoken` and `sentence`, in Python and in the scripts of pages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from every_result import classes
from glassformer.labelled import spaced
from glassformer.study import find, names
from glassformer.zoo import cards

SPEAKERS = ("spoken", "spoken_each", "sentence")
SOURCE = Path(__file__).parents[1] / "src" / "glassformer"
# one literal, and what may follow it within the same argument
_CALL = re.compile(r"(?<![\w.])spoken\(")
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def said() -> set[str]:
    """Return every template that is said anywhere."""
    python = {words for path in SOURCE.rglob("*.py") for words in said_in_python(path.read_text(encoding="utf-8"))}
    scripts = {words for path in SOURCE.rglob("*.js") for words in said_in_script(path.read_text(encoding="utf-8"))}
    return (python | scripts) - {""}


def said_in_python(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SPEAKERS:
            for argument in node.args:
                yield from literals_of(argument)


def literals_of(argument: ast.expr) -> Iterator[str]:
    """Yield what an argument may be, as far as it is written there."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value
    elif isinstance(argument, ast.IfExp):
        yield from literals_of(argument.body)
        yield from literals_of(argument.orelse)


def said_in_script(source: str) -> Iterator[str]:
    for call in _CALL.finditer(source):
        yield from literals_of_first_argument(source[call.end() :])


def literals_of_first_argument(rest: str) -> Iterator[str]:
    depth, at = 0, 0
    while True:
        if literal := _LITERAL.match(rest, at):
            if depth == 0:
                yield literal[1]
            at = literal.end()
            continue
        character = rest[at]
        if depth == 0 and character in ",)":
            return
        depth += (character in "([{") - (character in ")]}")
        at += 1


def words_of_what_ships() -> set[str]:
    """Return what commands print of shipped models and studies: what the ones are, and the others ask."""
    models = cards().values()
    made_up = {about for card in models for about in card.synthetic}
    return {card.about for card in models} | made_up | {find(name).question for name in names()}


def names_of_results() -> set[str]:
    """Return what views make of the names of results and of what each draws first: `CausalTrace` and `kl_bits`."""
    kinds = classes()
    return {spaced(kind.__name__) for kind in kinds} | {
        name.replace("_", " ") for kind in kinds for name in kind.headline_names()
    }
