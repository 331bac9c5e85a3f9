"""`glassformer models`: what ships with the package."""

from collections.abc import Mapping
from typing import Annotated

import tyro
from rich.table import Table

from glassformer.cli.console import Console
from glassformer.zoo import ModelCard, card, cards
from glassformer.zoo.card import said_of_synthetic


def models(name: Annotated[str | None, tyro.conf.Positional] = None, json: bool = False) -> None:
    """List the shipped models with their measured figures, or show the card of one.

    Examples:
        glassformer models
        glassformer models gpt-4l

    Args:
        name: A shipped model, for its whole card.
        json: Print cards as JSON.
    """
    console = Console()
    if name is not None:
        from rich.markdown import Markdown

        found = card(name)
        print(found.to_json()) if json else console.print(Markdown(found.to_markdown()))
        return
    shipped = cards()
    if json:
        print("[" + ",\n".join(c.to_json() for c in shipped.values()) + "]")
        return
    for found in shipped.values():
        made_up = f"\nmade up: {said_of_synthetic(found.synthetic)}" if found.synthetic else ""
        console.print(f"{found.name}: {found.about}{made_up}", highlight=False)
    console.print(_figures(shipped))


def _figures(shipped: Mapping[str, ModelCard]) -> Table:
    """Return every figure of every model: a row each, so that none is cut."""
    table = Table("", *shipped, title="shipped models")
    names = dict.fromkeys(name for found in shipped.values() for name in found.figures)
    table.columns[0].min_width = max(len(word) for name in ("parameters", *names) for word in name.split("_"))
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    for name in ("parameters", "tokens"):
        table.add_row(name, *(f"{getattr(found, name) / 1e6:.3g} M" for found in shipped.values()))
    table.add_section()
    for name in names:
        figures = [found.figures.get(name) for found in shipped.values()]
        table.add_row(name.replace("_", " "), *("" if value is None else f"{value:.4g}" for value in figures))
    return table
