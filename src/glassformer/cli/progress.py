"""How far a command has come, on standard error: a bar on a terminal, a line every ten seconds on a pipe.

Nothing is said before two seconds have passed. Then what is left is measured by what was done, and where that is more
than ten seconds, it is said before the rest is run: a dry run ends there.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from glassformer.words import duration, spoken

PATIENCE = 2.0
LONG = 10.0  # seconds that are worth a warning, and between two lines


class Report(Protocol):
    """What a bar is told: steps done, of how many, and in place of what stands before it, what is done now."""

    def __call__(self, done: int, total: int, now: str | None = None, /) -> None: ...


@contextmanager
def progress(what: str, *, dry_run: bool = False, alike: bool = True) -> Iterator[Report]:
    """Yield a function that is told (done, in all), and shows it.

    Args:
        what: Said before it, in the language that is spoken.
        alike: Whether one step takes about as long as another, so that what is done tells how long the rest takes.
        dry_run: Say what the rest would take as soon as that is known, and end the command there.
    """
    what, started = spoken(what), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    console = Console(stderr=True)
    bar = Progress(
        *columns, TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(), console=console, transient=True
    )
    task = bar.add_task(what, total=None)
    said = started
    first: tuple[float, int] | None = None

    def report(done: int, total: int, now: str | None = None, /) -> None:
        nonlocal said, first
        passed = time.monotonic() - started
        # what comes before the first step is no measure of the others
        before, already = first = first or (passed, done)
        if passed > PATIENCE and done > already:
            left = (passed - before) * (total - done) / (done - already) if alike else None
            unsaid = said == started and left is not None and (dry_run or left > LONG)
            if unsaid or (not console.is_terminal and time.monotonic() - said > LONG):
                said = time.monotonic()
                line = spoken(
                    "{what}: {done:,} of {total:,} after {passed}",
                    what=what if now is None else f"{what}, {now}", done=done, total=total, passed=duration(passed),
                )  # fmt: skip
                line += "" if left is None else spoken(", about {left} to go", left=duration(left))
                bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
                if dry_run:
                    raise SystemExit(0)
        if console.is_terminal and not bar.live.is_started and passed > PATIENCE:
            bar.start()
        bar.update(task, completed=done, total=total, description=now)

    try:
        yield report
        if dry_run:
            taken = duration(time.monotonic() - started)
            console.print(spoken("{what}: done after {passed}", what=what, passed=taken), highlight=False)
            raise SystemExit(0)
    finally:
        # a bar that never showed would still end its line
        if bar.live.is_started:
            bar.stop()
