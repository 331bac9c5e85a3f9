"""Pictures of lists of tokens: the largest entries of each head, under the tokens that they join."""

import re
from collections.abc import Mapping, Sequence

from glassformer.figures import Panel
from glassformer.labelled import Labelled

# of a figure, of a panel, of a token in a label
MOST_HEADS, MOST_ENTRIES, MOST_CHARACTERS = 6, 12, 7


def ranked_panels(
    name: str, values: Labelled, tokens: Sequence[tuple[Labelled, Mapping[int, str]]], signed: bool = True
) -> list[Panel]:
    """Return a panel for each of the first heads, its entries labelled by tokens.

    Args:
        name: What the numbers are.
        values: Of each head, largest first, over two axes.
        tokens: Ids of the tokens of each entry, over the same axes, and what they are called.
        signed: Whether numbers have a sign.
    """
    panels = list[Panel]()
    for h, head in enumerate(values.labels(values.axes[0])[:MOST_HEADS]):
        named = [[_short(words[id]) for id in ids.values[h, :MOST_ENTRIES].tolist()] for ids, words in tokens]
        labels = [" → ".join(filter(None, (" … ".join(entry[:-1]), entry[-1]))) for entry in zip(*named)]
        entries = Labelled(values.values[h, :MOST_ENTRIES], ("tokens",), {"tokens": labels})
        panels.append(Panel(f"{head}: {name}", entries, signed))
    return panels


def _short(name: str) -> str:
    """Return what a token is called as part of a label: spaces as signs, without the id in front."""
    text = re.sub("·{3,}", lambda run: f"·×{len(run[0])}", name.partition(":")[2].replace(" ", "·"))
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
