"""Suites of laws: functions of what is under test, which become tests of the classes that say what that is."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

# examples of the full draw, of that of continuous integration, and of a short one: laws of a suite draw from the same
# parts, so few of each do there
FULL, SHARE, FEW = 30, 12, 4


def _always(subject: Any) -> bool:
    return True


def _itself(subject: Any) -> Any:
    return subject


def _examples(asked: int) -> int:
    """Return how many examples a law is drawn with, where the profile asks for so many of any test."""
    return FULL if asked >= FULL else SHARE if asked >= SHARE else FEW


@dataclass
class Suite:
    """Laws, by name, and what each is a law of.

    Args:
        parameter: What laws call the thing under test.
    """

    parameter: str
    laws: dict[str, tuple[Callable[..., None], Callable[[Any], bool]]] = field(default_factory=dict)

    def law(self, applies: Callable[[Any], bool] = _always) -> Callable[[Any], Any]:
        """Return a decorator that makes a function a law of the subjects it applies to."""

        def add(test: Any) -> Any:
            # derandomised: a failure on one machine is a failure on all of them
            drawn = settings(
                max_examples=_examples(settings.default.max_examples),  # type: ignore[union-attr]
                derandomize=True,
                database=None,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            )
            test = drawn(test) if is_hypothesis_test(test) else test
            self.laws[test.__name__] = (test, applies)
            return test

        return add

    def bind(self, tests: type, subjects: Mapping[str, Any], value: Callable[[Any], Any] = _itself) -> None:
        """Give a class one test per law, with those subjects as parameters that it applies to.

        Args:
            tests: The class.
            subjects: What is under test, by name.
            value: From a subject to what laws take for it.
        """
        for name, (test, applies) in self.laws.items():
            under = [pytest.param(value(found), id=key) for key, found in subjects.items() if applies(found)]
            if under:
                setattr(tests, name, staticmethod(pytest.mark.parametrize(self.parameter, under)(_copy(test))))


def _copy(test: Callable[..., None]) -> Callable[..., None]:
    """Return the same law as another function: marks are of one class's tests."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)

    return run
