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
from typing import Any, TypeVar

from glassformer.errors import GlassformerError

T = TypeVar("T")
_END = object()


class Superseded(GlassformerError, RuntimeError):
    """A page asked for something newer in the same lane before this was begun."""


class Busy(GlassformerError, RuntimeError):
    """More is waiting than a worker takes."""


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
        self._lanes: dict[str, Future[Any]] = {}
        self._superseded: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], *, lane: str = "", background: bool = False) -> "Future[T]":
        """Return what the work will have come to.

        Args:
            work: What to do, on the worker's thread.
            lane: Where the latest alone counts; by default all do.
            background: Let all else go first.

        Raises:
            Busy: Too much waits.
        """
        if self._queue.qsize() >= self._waiting:
            raise Busy(f"{self._waiting} requests wait for this model already. Ask again when some are answered.")
        future: Future[T] = Future()
        if lane:
            with self._lock:
                older = self._lanes.pop(lane, None)
                self._lanes[lane] = future
            future.add_done_callback(lambda done: self._leave(lane, done))
            if older is not None:
                # said first: whoever waits for it learns of it at once
                self._superseded.add(older)
                if not older.cancel():
                    self._superseded.discard(older)
        self._queue.put((int(background), next(self._order), future, work))
        return future

    async def ask(self, work: Callable[[], T], *, lane: str = "", background: bool = False) -> T:
        """Return what the work comes to, without holding up the event loop; if whoever waits goes, so does the work.

        Raises:
            Superseded: Something newer was asked for in the same lane.
        """
        future = self.submit(work, lane=lane, background=background)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future in self._superseded:
                self._superseded.discard(future)
                raise Superseded("something newer was asked for in the same lane.") from None
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

    def _leave(self, lane: str, done: Future[Any]) -> None:
        with self._lock:
            if self._lanes.get(lane) is done:
                del self._lanes[lane]

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
