"""What would wait for ever fails within seconds."""

import contextlib
import signal
from collections.abc import Iterator

LONG = 5.0


@contextlib.contextmanager
def in_seconds() -> Iterator[None]:
    """Fail what waits for the other end of a pipe."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"nothing came of it within {LONG:g} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LONG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
