"""`glassformer params --compare`: models of one size and several mechanisms, beside formulas of what they cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from glassformer.cli.output import finish
from glassformer.files import json_text
from glassformer.words import spoken, spoken_each

if TYPE_CHECKING:
    from glassformer.models.cost_table import Compared, Sizes


def compare(names: Sequence[str], sizes: "Sizes", json: Path | None) -> None:
    """Print the costs of models as they are counted and as formulas state them."""
    from glassformer.models.cost_table import compared

    found = [compared(name, sizes) for name in dict.fromkeys(names)]
    data = {"sizes": sizes.to_dict(), "compared": [one.to_dict() for one in found]}
    finish([_table(found, sizes), *_notes(found, sizes)], JSON=(json, lambda: json_text(data, indent=2)))


def _table(found: "list[Compared]", sizes: "Sizes") -> Table:
    title = spoken(
        "{layers} layers of width {width:,}, {heads} heads, a text of {length:,} tokens; embedding left out",
        layers=sizes.layers, width=sizes.width, heads=sizes.heads, length=sizes.length,
    )  # fmt: skip
    table = Table(title=title)
    for i, head in enumerate(spoken_each("model", "quantity", "counted", "formula", "ratio")):
        table.add_column(head, justify="right" if i > 1 else "left", no_wrap=True)
    called = spoken_each("parameters", "FLOPs of training", "state bytes")
    for one in found:
        ratios = one.ratios()
        for i, (name, number) in enumerate(vars(one.counted).items()):
            stated = [f"{getattr(one.stated, name):.6g}", f"{ratios[name]:.6f}"] if ratios else ["", ""]
            table.add_row("" if i else one.name, called[i], f"{number:.6g}", *stated)
        table.add_section()
    return table


def _notes(found: "list[Compared]", sizes: "Sizes") -> list[str]:
    """Return what the formulas have and the count has not, and the other way round."""
    told: list[str] = []
    uncounted = next((one.uncounted_flops for one in found if one.uncounted_flops is not None), None)
    if uncounted is not None:
        told.append(spoken(
            "The formulas' last term, 5/(18d), is of operations on single numbers, {n:.4g} here; only matrix products "
            "are counted, and compared.", n=uncounted,
        ))  # fmt: skip
    d_head = sizes.width // sizes.heads
    if sizes.length % d_head and any("lightning" in one.name for one in found):
        told.append(spoken(
            "Lightning works in chunks of {size} tokens, and the last one here is shorter, which costs less than "
            "stated.", size=d_head,
        ))  # fmt: skip
    if sizes.layers % 8 and any(one.name == "hybrid-lightning" for one in found):
        told.append(spoken("The formulas take an eighth of the layers to be softmax; here it is every eighth layer."))
    return told
