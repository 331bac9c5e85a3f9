"""Experts on the terminal: how one was trained and what it is worth, and which one answered which prompt."""

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from glassformer.adaptation import NONE, AdaptedAnswers, ExpertTraining
from glassformer.labelled import Labelled
from glassformer.render.terminal.causal import spaced
from glassformer.render.terminal.tables import QUIET, bar, section, table, tables, visible
from glassformer.words import spoken, spoken_each

N_STEPS, N_MATRICES = 12, 12


@tables.register
def _(result: ExpertTraining) -> RenderableType:
    grid = table(*spoken_each("step", "drawn", "loss", "KL", "held out", ""), left=(5,))
    steps = [int(one) for one in result.held_out.labels("step")]
    # the ends, the best and some between
    shown = {*steps[:: -(-len(steps) // N_STEPS)], steps[-1], result.best}
    for at, step in enumerate(steps):
        if step in shown:
            # what was drawn since it was last measured
            since = slice(steps[at - 1], step) if at else slice(0, 0)
            means = [_mean(one, since) for one in (result.reward, result.loss, result.divergence)]
            held_out = f"{float(result.held_out.values[at]):+.2f}"
            grid.add_row(str(step), *means, held_out, spoken("best") if step == result.best else "")
    tested = table(*spoken_each("tested", "reward", "95 %"))
    for i, name in enumerate(spoken_each("before training", "after training")):
        mean, low, high = (float(one.values[i]) for one in (result.tested, result.tested_low, result.tested_high))
        tested.add_row(name, f"{mean:+.2f}", f"{low:+.2f} {high:+.2f}")
    note = spoken(
        "Rewards from -1, all wrong, to 1, all right; held out and tested on {n:,} prompts each, and tested on none "
        "that a step was chosen by. KL: how far from the model without the expert, in nats per answer.",
        n=result.prompts,
    )
    return section(spoken("Expert of {task}", task=result.task), grid, tested, Text(note, style=QUIET))


@tables.register
def _(result: AdaptedAnswers) -> RenderableType:
    grid = table(*spoken_each("", "prompt", "expert", "answer"), left=(1, 2, 3))
    for i, (prompt, expert, answer) in enumerate(zip(result.prompts, result.chosen, result.answers)):
        grid.add_row(str(i + 1), visible(prompt, 28, space=" "), visible(expert, 20), visible(answer, 24, space=" "))
    parts = [section(spoken("Answers of experts"), grid, *_note(result))]
    parts += [] if result.probability is None else [_asked(result.said, result.probability)]
    parts += [] if result.coefficients is None else [_mixture(result.coefficients, result.search)]
    return Group(*spaced(parts))


def _note(result: AdaptedAnswers) -> list[Text]:
    none = spoken("none: the model's own weights answered, since no expert was chosen.")
    return [Text(none, style=QUIET)] if NONE in result.chosen else []


def _asked(said: Sequence[str], found: Labelled) -> RenderableType:
    """Return what the model wrote, and the probability of each answer to the question."""
    names = list(map(str, found.labels("answer")))
    grid = table("", spoken("wrote"), *names[:-1], spoken("anything else"), left=(1,))
    for i, (text, row) in enumerate(zip(said, found.values.tolist())):
        grid.add_row(str(i + 1), visible(text, 20, space=" "), *(f"{one:.2f}" for one in row))
    return section(spoken("Asked which task each prompt is of"), grid)


def _mixture(found: Labelled, search: Labelled | None) -> RenderableType:
    """Return coefficients; of a mixture by matrix those of the first ones."""
    by_matrix = found if "matrix" in found.axes else None
    if by_matrix is None:
        grid = table(*spoken_each("expert", "coefficient", ""), left=(0, 2))
        for name, one in zip(found.labels("expert"), found.values.tolist()):
            grid.add_row(str(name), f"{one:.2f}", bar(one, 1.0))
    else:
        grid = table(spoken("matrix"), *map(str, by_matrix.labels("expert")))
        for name, row in list(zip(by_matrix.labels("matrix"), by_matrix.values.tolist()))[:N_MATRICES]:
            grid.add_row(str(name), *(f"{one:.2f}" for one in row))
    right = math.nan if search is None else float(search.values[-1])
    return section(spoken("Mixed as answers {share:.0%} of the examples right", share=right), grid)


def _mean(values: Labelled, some: slice) -> str:
    part = values.values[some]
    mean = float(part.mean()) if len(part) else math.nan
    return "-" if math.isnan(mean) else f"{mean:+.3f}"
