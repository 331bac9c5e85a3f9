"""A bar for what takes a while: on a terminal only, and not before two seconds have passed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PATIENCE = 2.0


class Report(Protocol):
    """What a bar is told: steps done, of how many, and in place of what stands before it, what is done now."""

    def __call__(self, done: int, total: int, now: str | None = None, /) -> None: ...


@contextmanager
def progress(what: str) -> Iterator[Report]:
    """Yield a function that is told (done, in all) and draws a bar on standard error."""
    started = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    console = Console(stderr=True)
    bar = Progress(
        *columns, TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(), console=console, transient=True
    )
    task = bar.add_task(what, total=None)

    def report(done: int, total: int, now: str | None = None, /) -> None:
        if console.is_terminal and not bar.live.is_started and time.monotonic() - started > PATIENCE:
            bar.start()
        bar.update(task, completed=done, total=total, description=now)

    try:
        yield report
    finally:
        # a bar that never showed would still end its line
        if bar.live.is_started:
            bar.stop()
