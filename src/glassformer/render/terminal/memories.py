"""What came from the window and what from memory, on the terminal."""

from rich.console import RenderableType

from glassformer.analysis.reports import Explanation
from glassformer.render.terminal.tables import section, table
from glassformer.words import spoken, spoken_each, spoken_label


def memories(found: Explanation) -> RenderableType:
    """Return a row for each layer with a memory: shares of attention, what is opened, and how surprising a token is."""
    shares = spoken_each("layer", "in the window", "persistent tokens", "from memory", "gate", "surprise", "on average")
    grid = table(*shares, left=(0,))
    for use in found.memories:
        parts = (use.window, use.persistent, use.memory)
        numbers = (use.gate, use.surprise, use.mean_surprise)
        grid.add_row(
            spoken_label(use.label),
            *("" if share is None else f"{100 * share:.1f} %" for share in parts),
            *("" if number is None else f"{number:.3g}" for number in numbers),
        )
    title = spoken(
        "Window and memory at position {position} (shares of attention; mean over heads)", position=found.position
    )
    return section(title, grid)
