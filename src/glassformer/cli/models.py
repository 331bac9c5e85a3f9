"""`glassformer models`: what ships with the package, and what applies to what."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import tyro
from rich.table import Table

from glassformer.applicability import Analysis, Outcome, Row, applied
from glassformer.applicability.table import STATUSES
from glassformer.cli.console import Console
from glassformer.files import json_text
from glassformer.words import spoken, spoken_each
from glassformer.zoo import DictionaryCard, ModelCard, card, cards, dictionary_card, dictionary_cards
from glassformer.zoo.card import said_of_synthetic

MODELS_BESIDE = 3  # in one table, on a terminal of 80 columns


def models(name: Annotated[str | None, tyro.conf.Positional] = None, applies: bool = False, json: bool = False) -> None:
    """List the shipped models with their measured figures, or show the card of one; or what applies to what.

    Examples:
        glassformer models
        glassformer models gpt-4l
        glassformer models --applies
        glassformer models --applies differential
        glassformer models --applies rollout

    Args:
        name: A shipped model, or a dictionary of one (MODEL/SITE), for its whole card; with --applies a row (a
            mechanism, a wiring, a part, a tiny model) or an analysis.
        applies: Show which analyses answer of which kinds of model, what they hold fixed, and why others are refused.
        json: Print cards, or what --applies shows, as JSON.
    """
    console = Console()
    if applies:
        _show_applies(console, name, json)
        return
    if name is not None:
        from rich.markdown import Markdown

        known: ModelCard | DictionaryCard = dictionary_card(name) if "/" in name else card(name)
        print(known.to_json()) if json else console.print(Markdown(known.to_markdown()))
        if not json and isinstance(known, ModelCard):
            _say_dictionaries(console, known.name)
        return
    shipped = cards()
    if json:
        print("[" + ",\n".join(c.to_json() for c in shipped.values()) + "]")
        return
    for found in shipped.values():
        made_up = spoken("\nmade up: {what}", what=said_of_synthetic(found.synthetic)) if found.synthetic else ""
        console.print(f"{found.name}: {spoken(found.about)}{made_up}", highlight=False)
        _say_dictionaries(console, found.name)
    names = list(shipped)
    for i in range(0, len(names), MODELS_BESIDE):
        console.print(_figures({name: shipped[name] for name in names[i : i + MODELS_BESIDE]}))


def _say_dictionaries(console: Console, model: str) -> None:
    """Say which dictionaries of a model ship with it, a line each."""
    for name, found in dictionary_cards().items():
        if name.startswith(f"{model}/"):
            said = spoken("dictionary {name}: {about}", name=name, about=spoken(found.about))
            console.print(said, highlight=False)


def _figures(shipped: Mapping[str, ModelCard]) -> Table:
    """Return every figure of some models: a row each, so that none is cut."""
    table = Table("", *shipped, title=spoken("shipped models"))
    names = dict.fromkeys(name for found in shipped.values() for name in found.figures)
    table.columns[0].min_width = max(len(word) for name in ("parameters", *names) for word in name.split("_"))
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    for name in ("parameters", "tokens"):
        table.add_row(spoken(name), *(f"{getattr(found, name) / 1e6:.3g} M" for found in shipped.values()))
    table.add_section()
    for name in names:
        figures = [found.figures.get(name) for found in shipped.values()]
        table.add_row(name.replace("_", " "), *("" if value is None else f"{value:.4g}" for value in figures))
    return table


def _show_applies(console: Console, name: str | None, json: bool) -> None:
    """Show what applies to what: counts for every row, the outcomes of some rows, or those of one analysis."""
    table = applied()
    found = None if name is None else table.named(name)
    if json:
        print(table.to_json() if found is None else json_text(_data(found, table.rows), indent=1, ascii_only=False))
    elif found is None:
        console.print(_counts(table.groups))
        console.print(
            spoken("exact: answers, nothing held fixed; per run: answers for one run, of which something is held.")
        )
        console.print(spoken("compared: answers, and another way to its numbers comes to the same."))
        told = spoken("With reasons: glassformer models --applies NAME, of a row or of an analysis.")
        console.print(told, highlight=False)
    elif isinstance(found, Analysis):
        console.print(f"{found.name}: {spoken(found.question)}", highlight=False)
        if found.judge:
            console.print(spoken("Compared with: {judge}", judge=found.judge), highlight=False)
        console.print(_of_analysis(found, table.groups))
    else:
        for i, row in enumerate(found):
            console.print(f"{_named(row)}: {spoken(row.about)}", highlight=False)
            console.print(_of_row(row, found[0] if i and row.group == found[0].group else None))


def _data(found: Sequence[Row] | Analysis, rows: Sequence[Row]) -> dict[str, Any]:
    if isinstance(found, Analysis):
        outcomes = [row.called() | row.outcomes[found.name].to_dict() for row in rows]
        return {"analysis": dataclasses.asdict(found), "outcomes": outcomes}
    return {
        "rows": [
            row.called() | {"outcomes": {name: one.to_dict() for name, one in row.outcomes.items()}} for row in found
        ]
    }


def _counts(groups: Mapping[str, Sequence[Row]]) -> Table:
    title = spoken("what applies to what: how many analyses answer, and how")
    table = Table("", *spoken_each("exact", "per run", "refused", "compared"), title=title)
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify = "right"
    for group, rows in groups.items():
        table.add_section()
        table.add_row(group, style="bold")
        for row in rows:
            counted = Counter(outcome.status for outcome in row.outcomes.values())
            compared = sum(outcome.compared for outcome in row.outcomes.values())
            table.add_row(f"  {_named(row)}", *(str(counted[status]) for status in STATUSES), str(compared))
    return table


def _of_analysis(analysis: Analysis, groups: Mapping[str, Sequence[Row]]) -> Table:
    table = Table("", "", spoken("held, missing, or why not"))
    for group, rows in groups.items():
        table.add_section()
        table.add_row(group, style="bold")
        for row in rows:
            outcome = row.outcomes[analysis.name]
            table.add_row(f"  {_named(row)}", _status(outcome), outcome.words)
    return table


def _of_row(row: Row, other: Row | None) -> Table:
    """Return a row's outcomes, the refused ones first; of one beside another of its group, those that differ."""
    differ = [name for name, one in row.outcomes.items() if other is None or one != other.outcomes[name]]
    beside = "" if other is None else spoken(", where it differs from {other}", other=other.name)
    heads = spoken("analysis"), "", spoken("held, missing, or why not")
    table = Table(*heads, title=f"{row.group} {row.name}{beside}")
    for status in reversed(STATUSES):
        table.add_section()
        for name in differ:
            if row.outcomes[name].status == status:
                table.add_row(name, _status(row.outcomes[name]), row.outcomes[name].words)
    return table


def _status(outcome: Outcome) -> str:
    return f"{spoken(outcome.status)}, {spoken('compared')}" if outcome.compared else spoken(outcome.status)


def _named(row: Row) -> str:
    return ", ".join((row.name, *row.also))
