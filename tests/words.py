"""Which words the source says: templates in calls of `spoken` and its like, in Python and in the scripts of pages."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from every_result import classes
from glassformer.cli import VERBS
from glassformer.labelled import spaced
from glassformer.study import find, names
from glassformer.zoo import cards
from glassformer.zoo.dictionaries import ABOUT

SPEAKERS = ("spoken", "spoken_each", "sentence", "progress")
SOURCE = Path(__file__).parents[1] / "src" / "glassformer"


def said() -> set[str]:
    """Return every template that is said anywhere."""
    python = {words for path in SOURCE.rglob("*.py") for words in said_in_python(path.read_text(encoding="utf-8"))}
    return (python | said_in_scripts()) - {""}


def said_in_scripts() -> set[str]:
    """Return what the scripts of pages say, as it was found when they were built."""
    found = json.loads((SOURCE / "render" / "page" / "built" / "words.json").read_text(encoding="utf-8"))
    return {words for kind in found.values() for words in kind}


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


def words_of_what_ships() -> set[str]:
    """Return what commands print of verbs, shipped models and studies: what they do, what they are, what they ask."""
    models = cards().values()
    made_up = {about for card in models for about in card.synthetic}
    return (
        {card.about for card in models}
        | made_up
        | set(ABOUT.values())
        | set(VERBS.values())
        | {find(name).question for name in names()}
    )


def names_of_results() -> set[str]:
    """Return what views make of the names of results and of what each draws first: `CausalTrace` and `kl_bits`."""
    kinds = classes()
    return {spaced(kind.__name__) for kind in kinds} | {
        name.replace("_", " ") for kind in kinds for name in kind.headline_names()
    }
