"""What `help` shows of a public function describes each parameter, and no source says what a table says for it."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from glassformer import analysis
from glassformer.analysis.cards import cards
from glassformer.analysis.parameters import parameters_of
from glassformer.arguments import checked
from glassformer.docstrings import PARAMETERS, docstring_of


def described(function: Callable[..., Any]) -> dict[str, str]:
    """The parameters that a docstring describes, in its order, each on one line."""
    _, _, behind = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    lines = re.split(r"^\S", behind, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^ {4}(\w+): (.+?)(?=^ {4}\w+: |\Z)", lines, re.MULTILINE | re.DOTALL)
    return {name: " ".join(meaning.split()) for name, meaning in found}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    for room in analysis.ROOMS:
        for name, value in vars(importlib.import_module(f"glassformer.analysis.{room}")).items():
            own = getattr(value, "__module__", "").startswith("glassformer.analysis.")
            if own and inspect.isfunction(value) and not name.startswith("_"):
                yield f"{room}.{name}", value


def test_every_analysis_describes_each_of_its_parameters_in_their_order() -> None:
    wrong = {name: list(described(function)) for name, function in public()}
    asked = {name: list(inspect.signature(function).parameters) for name, function in public()}
    assert len(asked) > 100
    assert {name: wrong[name] for name in asked if wrong[name] != asked[name]} == {}


def test_no_analysis_says_itself_what_is_said_of_all() -> None:
    for card in cards():
        said, everywhere = described(inspect.unwrap(card.function)), parameters_of(card)
        twice = [name for name, meaning in said.items() if everywhere.get(name) == meaning]
        assert not twice, f"{card.module}: {card.name} describes {twice}, which analysis/parameters.py does"


def test_a_line_of_its_own_stands_before_that_of_the_table() -> None:
    def noise(size: int, *lengths: int, seed: int = 0, report: Any = None) -> None:
        """Noise.

        Args:
            size: How many.
                Or more.
            report: Told nothing.
            lengths: Of the rest.

        Raises:
            ValueError: Never.

        Source: nobody.
        """

    shown = str(docstring_of(noise))
    assert described(checked(noise)) == {
        "size": "How many. Or more.",
        "lengths": "Of the rest.",
        "seed": PARAMETERS["seed"],
        "report": "Told nothing.",
    }
    assert shown.startswith("Noise.\n\nArgs:\n    size: How many.\n        Or more.\n    lengths:")
    assert shown.endswith("Told nothing.\n\nRaises:\n    ValueError: Never.\n\nSource: nobody.")


@pytest.mark.parametrize("end", ["", "\n\nRaises:\n    ValueError: Never.", "\n\nSource: nobody."])
def test_parameters_stand_in_front_of_the_sections_behind_them(end: str) -> None:
    def noise(seed: int = 0) -> None: ...

    noise.__doc__ = f"Noise.\n\nMore of it.{end}"
    assert docstring_of(noise) == f"Noise.\n\nMore of it.\n\nArgs:\n    seed: {PARAMETERS['seed']}{end}"


def test_what_has_no_docstring_gets_none() -> None:
    def noise(seed: int = 0) -> None: ...

    assert docstring_of(noise) is None and checked(noise).__doc__ is None
