"""Ctrl-C while something is fitted: noted at once, obeyed between two steps."""

import signal
import threading
from typing import Self


class Interrupts:
    """Holds Ctrl-C back until a step is finished, so that no half step is saved; a second one is not held back."""

    def __init__(self) -> None:
        self.asked, self.previous = False, None

    def __enter__(self) -> Self:
        # a handler of the host program's own, or a thread that no signal reaches, is left alone
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self.previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)

    def check(self) -> None:
        if self.asked:
            raise KeyboardInterrupt

    def _note(self, *_: object) -> None:
        self.check()
        self.asked = True
