"""Trials: one thing done many times from fixed seeds, and what came of each.

A test asks for its seeds, a few in `make test`, many in `make test-all`, as many as the minutes of `make stress` allow:

    for seed in trials(quick=3, sweep=100):
        trials.attempt(lambda: load(mangled(seed)))

The outcomes are counted by test; `--stress-report FILE` shows them and writes them down.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from glassformer.errors import GlassformerError


class Trials:
    """Seeds of one test, and the outcomes of its trials by name.

    Args:
        full: Run as many as `make test-all` does.
        seconds: Go on with fresh seeds until so many have passed; None for a fixed number.
    """

    def __init__(self, full: bool, seconds: float | None) -> None:
        self.full, self.seconds = full, seconds
        self.outcomes: Counter[str] = Counter()
        self.seed = -1

    def __call__(self, quick: int, sweep: int) -> Iterator[int]:
        """Yield the seeds of this tier: the first `quick`, the first `sweep`, or more until the time is up."""
        until = None if self.seconds is None else time.monotonic() + self.seconds
        self.seed = -1
        while self.seed + 1 < (sweep if self.full else quick) or (until is not None and time.monotonic() < until):
            self.seed += 1
            yield self.seed

    def count(self, outcome: str) -> None:
        """Note what came of a trial."""
        self.outcomes[outcome] += 1

    def attempt(self, action: Callable[[], Any]) -> Any:
        """Do what may be refused, by a public error and nothing else; return what it returns, or the refusal."""
        try:
            found = action()
        except GlassformerError as error:
            self.count("refused")
            return error
        self.count("worked")
        return found
