"""`glassformer study atlas`: claims by mechanism and analysis, as tables of a terminal."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from glassformer.cli.console import Console
from glassformer.words import spoken, spoken_each

if TYPE_CHECKING:
    from glassformer.study.atlas import Atlas, Cell


def show_atlas(names: Sequence[str], csv: Path | None, json: bool) -> None:
    """Show counts of the whole atlas, or the claims of what is named; write the table where that was asked for.

    Args:
        names: Of mechanisms, analyses and studies.
        csv: File for the table.
        json: Print JSON.
    """
    from glassformer.files import write
    from glassformer.study.atlas import atlas

    found = atlas().named(*names)
    if csv is not None:
        write(csv, found.to_csv().encode())
    if json:
        print(found.to_json())
        return
    console = Console()
    if not names:
        console.print(_counts(found))
        console.print(
            spoken(
                "open: analyses that answer, and nothing was claimed; refused: analyses by which nothing is testable."
            )
        )
        told = spoken("Claims: glassformer study atlas NAME, of a mechanism, an analysis or a study.")
        console.print(told, highlight=False)
        return
    for mechanism, cells in found.mechanisms.items():
        _show_mechanism(console, mechanism, cells)


def _counts(found: "Atlas") -> Table:
    """Return one row per mechanism: how its claims ended, and how many analyses answer for it."""
    from glassformer.study.atlas import tally

    shown = [verdict for verdict, n in tally(found.claims).items() if n]
    heads = *spoken_each(*shown), *spoken_each("open", "refused")
    table = Table("", *heads, title=spoken("claims of the reports that come with the package, by mechanism"))
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
        column.min_width = max(map(len, str(column.header).split()))
    for mechanism, cells in found.mechanisms.items():
        ended = tally(entry for cell in cells for entry in cell.claims)
        states = Counter(cell.state for cell in cells if cell.outcome is not None)
        refused = states["not testable here"]
        counts = [str(n or "") for verdict, n in ended.items() if verdict in shown]
        table.add_row(mechanism or spoken("of no mechanism"), *counts, str(states["open"]), str(refused))
    return table


def _show_mechanism(console: Console, mechanism: str, cells: "Sequence[Cell]") -> None:
    """Show the claims of a mechanism, and which analyses of those asked about are refused or have no claim."""
    table = Table(*spoken_each("claim", "found", "verdict", "study"), title=mechanism or spoken("of no mechanism"))
    table.columns[-1].overflow = "fold"
    for cell in cells:
        for entry in cell.claims:
            table.add_row(entry.claim, entry.found, spoken(entry.verdict), entry.study)
    if table.row_count:
        console.print(table)
    refused = [cell for cell in cells if cell.state == "not testable here"]
    if len(cells) == 1 and refused and refused[0].outcome is not None:
        said = spoken("not testable here: {why}", why=refused[0].outcome.reason)
        console.print(f"{mechanism}, {cells[0].analysis}: {said}", highlight=False)
    elif refused:
        names = spoken(", ").join(cell.analysis for cell in refused)
        console.print(spoken("not testable here, the analysis is refused: {analyses}", analyses=names), highlight=False)
    if len(cells) == 1 and cells[0].state == "open":
        said = spoken("the analysis answers, and nothing was claimed")
        console.print(f"{mechanism}, {cells[0].analysis}: {said}", highlight=False)
