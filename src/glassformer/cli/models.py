"""`glassformer models`: what ships with the package."""

from typing import Annotated

import tyro
from rich.table import Table

from glassformer.cli.console import Console
from glassformer.zoo import card, cards
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
    table = Table("model", "about", "parameters", "tokens", "figures", title="shipped models")
    for found in shipped.values():
        figures = "\n".join(f"{k.replace('_', ' ')} {v:.4g}" for k, v in list(found.figures.items())[:5])
        made_up = f"\nmade up: {said_of_synthetic(found.synthetic)}" if found.synthetic else ""
        table.add_row(found.name, found.about + made_up, f"{found.parameters:,}", f"{found.tokens:,}", figures)
    console.print(table)
