"""Docstrings as `help` shows them: what a parameter means wherever it occurs is described once, in the table here.

    @checked
    def noise(size: Count, *, seed: int = 0) -> Tensor:
        '''Random numbers.

        Args:
            size: How many.
        '''

    help(noise)      ... Args: size: How many.  seed: Seed of what is drawn at random.

`arguments.checked` and `analysis.question.question` put the lines in. A function's own line of a parameter stands
before that of the table: a parameter that means something of its own there says so.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

PARAMETERS: Mapping[str, str] = {
    "answer": "Token (text or id) that is asked about; one, or one per prompt.",
    "memory": "Bytes for what is held at once besides the model and the base run; by default half of what is free on "
    "an accelerator, and on a CPU a quarter of that, up to where a pass gets no faster.",
    "pos": "Position looked at; negative ones count from the end of each row's text.",
    "report": "Called as the work goes on, with how much of it is done and how much there is in all.",
    "rows": "Rows per forward pass at most; by default what fits `memory`, and what is worth batching.",
    "save_to": "File for finished rows. A sweep that was interrupted goes on from it; the file of another sweep is "
    "refused.",
    "seed": "Seed of what is drawn at random.",
    "wrong": "Token (text or id) that the answer is compared with; one, or one per prompt.",
}
_SECTION = re.compile(r"^(?:Args|Returns|Yields|Raises|Example|Source):", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}\*{0,2}(\w+): ", re.MULTILINE)


def docstring_of(function: Callable[..., Any], described: Mapping[str, str] = PARAMETERS) -> str | None:
    """Docstring of a function that describes its parameters in their order, those it leaves to a table by the table.

    Args:
        function: The function; without a docstring of its own it gets none.
        described: What parameters mean, by name.
    """
    if not function.__doc__:
        return None
    text = inspect.cleandoc(function.__doc__)
    about, own, rest = _parts(text)
    names = list(inspect.signature(function).parameters)
    added = {name: f"    {name}: {described[name]}\n" for name in names if name in described and name not in own}
    if not added:
        return text
    entries = [(own | added)[name] for name in names if name in own or name in added]
    return "\n\n".join(filter(None, (about, "Args:\n" + "".join(entries).rstrip(), rest)))


def described_in(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of a function or a class says of each parameter, on one line."""
    _, entries, _ = _parts(inspect.cleandoc(function.__doc__ or ""))
    return {name: " ".join(entry.partition(":")[2].split()) for name, entry in entries.items()}


def _parts(text: str) -> tuple[str, dict[str, str], str]:
    """Return what stands above the parameters of a docstring, their entries by name, and what stands below."""
    about, args, behind = text.partition("\nArgs:\n")
    if not args:
        first = _SECTION.search(text)
        cut = len(text) if first is None else first.start()
        return text[:cut].rstrip(), {}, text[cut:]
    end = re.search(r"^\S", behind, re.MULTILINE)
    cut = len(behind) if end is None else end.start()
    starts = [*_ENTRY.finditer(behind[:cut])]
    ends = [*(entry.start() for entry in starts[1:]), cut]
    own = {entry[1]: behind[entry.start() : stop].rstrip() + "\n" for entry, stop in zip(starts, ends)}
    return about.rstrip(), own, behind[cut:]
