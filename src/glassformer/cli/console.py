"""The console that every verb prints on: what texts and names hold is shown, and does nothing."""

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from glassformer.errors import printable


class Console(rich.console.Console):
    """A console for content that others wrote: no markup, no emoji codes, and no character that moves the cursor.

    Args:
        stderr: Print on standard error.
    """

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        # rich would end the program with an exit code of its own
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # what is marked as control is rich's own
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def say(*parts: Any, end: str = "\n") -> None:
    """Print a line that may hold what others wrote, as it is but for characters that would move the cursor."""
    print(*(printable(str(part)) for part in parts), end=end, flush=True)
