"""One thread per model: what is asked of it is done in turn, what nobody waits for any more is not done at all.

Work of the foreground comes before steps of the background, so that a sweep or a text that is being written does not
hold up a picture. Of what one page asks in one lane only the latest waits: an older one that has not begun is dropped.
"""

import asyncio
import itertools
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from glassformer.errors import GlassformerError

T = TypeVar("T")
_END = object()


class Superseded(GlassformerError, RuntimeError):
    """A page asked for something newer in the same lane before this was done."""

    def __init__(self) -> None:
        super().__init__("something newer was asked for in the same lane.")


class Busy(GlassformerError, RuntimeError):
    """More is waiting than a worker takes."""


class Turn:
    """What one request has done for it, by any workers, until a later request of its lane takes over."""

    def __init__(self) -> None:
        self.is_over = False
        self._waiting: Future[Any] | None = None

    def wait_for(self, work: "Future[Any]") -> None:
        """Have some work dropped that has not begun when the turn is over.

        Raises:
            Superseded: It is over.
        """
        if self.is_over:
            work.cancel()
            raise Superseded
        self._waiting = work

    def end(self) -> None:
        """Let a later request take over."""
        self.is_over = True
        if self._waiting is not None:
            self._waiting.cancel()


class Lanes:
    """The lanes of pages, in each of which the request that came last is worked for; all on the thread of the loop."""

    def __init__(self) -> None:
        self._latest: dict[str, Turn] = {}

    @contextmanager
    def turn(self, lane: str) -> Iterator[Turn]:
        """Take over a lane while a request is answered; one without a name is nobody else's."""
        turn = Turn()
        if lane:
            if (older := self._latest.get(lane)) is not None:
                older.end()
            self._latest[lane] = turn
        try:
            yield turn
        finally:
            if self._latest.get(lane) is turn:
                del self._latest[lane]


class Worker:
    """A thread that does one thing at a time.

    Args:
        name: Of the thread.
        waiting: How much may wait for it.
    """

    def __init__(self, name: str, waiting: int = 256) -> None:
        self._order, self._waiting = itertools.count(), waiting
        self._queue: queue.PriorityQueue[tuple[int, int, Future[Any] | None, Callable[[], Any] | None]]
        self._queue = queue.PriorityQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], *, background: bool = False) -> "Future[T]":
        """Return what the work will have come to.

        Args:
            work: What to do, on the worker's thread.
            background: Let all else go first.

        Raises:
            Busy: Too much waits.
        """
        if self._queue.qsize() >= self._waiting:
            raise Busy(f"{self._waiting} requests wait for this model already. Ask again when some are answered.")
        future: Future[T] = Future()
        self._queue.put((int(background), next(self._order), future, work))
        return future

    async def ask(self, work: Callable[[], T], *, turn: Turn | None = None, background: bool = False) -> T:
        """Return what the work comes to, without holding up the event loop; if whoever waits goes, so does the work.

        Args:
            work: What to do, on the worker's thread.
            turn: Of the request that it is done for.
            background: Let all else go first.

        Raises:
            Superseded: The turn is over.
            Busy: Too much waits.
        """
        future = self.submit(work, background=background)
        if turn is not None:
            turn.wait_for(future)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if turn is not None and turn.is_over:
                raise Superseded from None
            future.cancel()
            raise

    async def steps(self, made: Callable[[], Iterator[T]]) -> AsyncGenerator[T, None]:
        """Yield what an iterator does, each step in the background; who stops listening ends it."""
        steps = await self.ask(made)
        try:
            while (found := await self.ask(lambda: next(steps, _END), background=True)) is not _END:
                yield found  # type: ignore[misc]
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                self.submit(close, background=True)

    def stop(self) -> None:
        """Do nothing more; what is under way is finished."""
        self._queue.put((-1, next(self._order), None, None))

    def _run(self) -> None:
        while True:
            _, _, future, work = self._queue.get()
            if future is None or work is None:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            # whoever waits is told, whatever it is
            except BaseException as error:
                future.set_exception(error)
            # neither what was found nor the work, which holds what it was asked about, stays until the next
            del future, work
