"""Suites of laws: functions of a name, which become tests of the classes that say what is under test."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

# a suite for the whole repository draws as many examples as its profile says, and 30 at most
MOST_EXAMPLES = 30


def _always(subject: Any) -> bool:
    return True


@dataclass
class Suite:
    """Laws, by name, and what each is a law of.

    Args:
        parameter: What laws call the name of the thing under test.
    """

    parameter: str
    laws: dict[str, tuple[Callable[..., None], Callable[[Any], bool]]] = field(default_factory=dict)

    def law(self, applies: Callable[[Any], bool] = _always) -> Callable[[Any], Any]:
        """Return a decorator that makes a function a law of the subjects it applies to."""

        def add(test: Any) -> Any:
            # derandomised: a failure on one machine is a failure on all of them
            drawn = settings(
                max_examples=min(settings.default.max_examples, MOST_EXAMPLES),  # type: ignore[union-attr]
                derandomize=True,
                database=None,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            )
            test = drawn(test) if is_hypothesis_test(test) else test
            self.laws[test.__name__] = (test, applies)
            return test

        return add

    def bind(self, tests: type, subjects: Mapping[str, Any]) -> None:
        """Give a class one test per law, with the names of those subjects that it applies to as parameter."""
        for name, (test, applies) in self.laws.items():
            names = [key for key, subject in subjects.items() if applies(subject)]
            if names:
                setattr(tests, name, staticmethod(pytest.mark.parametrize(self.parameter, names)(_copy(test))))


def _copy(test: Callable[..., None]) -> Callable[..., None]:
    """Return the same law as another function: marks are of one class's tests."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)

    return run
