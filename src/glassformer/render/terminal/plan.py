"""What training on many processes takes, on the terminal: memory of a rank by part, and what it sends in a step."""

from rich.console import Group, RenderableType
from rich.text import Text

from glassformer.labelled import Labelled
from glassformer.render.terminal.causal import spaced
from glassformer.render.terminal.costs import bytes_said
from glassformer.render.terminal.tables import QUIET, section, table, tables
from glassformer.training.parallel import Plan
from glassformer.words import spoken, spoken_each


@tables.register
def _(result: Plan) -> RenderableType:
    facts = spoken(
        "{parameters:,} parameters, mesh {mesh} ({ranks} ranks), {batch} rows of {length:,} tokens, forward pass in "
        "{precision}",
        parameters=result.parameters, mesh=result.mesh, ranks=result.ranks, batch=result.batch, length=result.length,
        precision=result.precision,
    )  # fmt: skip
    parts = [
        section(spoken("Plan of training"), Text(facts, style=QUIET)),
        section(spoken("Memory of the fullest rank, in a step"), _memory(result)),
    ]
    if result.sent:
        parts.append(section(spoken("What a rank sends in a step"), _wire(result)))
    assumed = [Text(spoken(words), style=QUIET) for words in result.assumptions]
    return Group(*spaced([*parts, section(spoken("Assumed"), *assumed)]))


def _memory(result: Plan) -> RenderableType:
    grid = table(*spoken_each("part", "memory", "share"))
    for part, number in _rows(result.memory):
        grid.add_row(spoken(part), bytes_said(number), f"{number / result.held:.1%}")
    grid.add_section()
    grid.add_row(spoken("total"), bytes_said(result.held), "")
    grid.add_row(spoken("when a run begins"), bytes_said(float(result.beginning)), "")
    grid.add_row(spoken("when a run goes on"), bytes_said(float(result.resuming)), "")
    grid.add_row(spoken("what a rank has"), bytes_said(float(result.capacity)), "")
    return grid


def _wire(result: Plan) -> RenderableType:
    grid = table(*spoken_each("collective", "calls", "sent"))
    formulas = []
    for (name, sent), (_, calls) in zip(_rows(result.wire), _rows(result.calls), strict=True):
        grid.add_row(spoken(name), f"{calls:,.0f}", bytes_said(sent))
        formulas.append(Text(f"{spoken(name)}: {result.formulas[name]}", style=QUIET))
    grid.add_section()
    grid.add_row(spoken("total"), "", bytes_said(result.sent))
    return Group(grid, *formulas)


def _rows(numbers: Labelled) -> list[tuple[str, float]]:
    # labels are sentences, which know their slots
    names = [name for name in numbers.labels(numbers.axes[0]) if isinstance(name, str)]
    return list(zip(names, numbers.values.tolist(), strict=True))
