"""Cases that cost less than a test does: one test runs them all, and the case that fails is named beside the error."""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch


def in_one_pass(test: Callable[..., None]) -> Callable[[], None]:
    """Make one test of a parametrised one; it stands above `pytest.mark.parametrize`.

    Every case starts from the same global generator, as tests do. Tests that take fixtures have a test for each case.
    """
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    named = [list(_cases(*mark.args[:2])) for mark in marks]
    assert named and all(named), f"{test.__name__} has no cases"
    taken = set(inspect.signature(test).parameters)
    assert taken == {name for of_mark in named for name in of_mark[0]}, f"{test.__name__} takes fixtures"

    @functools.wraps(test)
    def every() -> None:
        for parts in itertools.product(*named):
            case = {name: value for part in parts for name, value in part.items()}
            torch.manual_seed(0)
            try:
                test(**case)
            except Exception as error:
                error.add_note(f"case: {case}")
                raise

    vars(every)["pytestmark"] = [mark for mark in getattr(test, "pytestmark", []) if mark.name != "parametrize"]
    vars(every)["__signature__"] = inspect.Signature()
    return every


def first_of(values: Iterable[Any]) -> list[Any]:
    """Return parameters of which the default run has the first, and the full sweep all."""
    first, *others = values
    return [first, *[pytest.param(value, marks=pytest.mark.full) for value in others]]


def _cases(names: Any, values: Any) -> Iterator[dict[str, Any]]:
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    for value in values:
        # one parameter's values are no tuples of values
        found = pytest.param(value) if len(names) == 1 and not hasattr(value, "marks") else value
        assert not getattr(found, "marks", ()), "a case with a mark is a test of its own"
        yield dict(zip(names, getattr(found, "values", found) if hasattr(found, "marks") else found, strict=True))
