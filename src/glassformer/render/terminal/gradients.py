"""Gradients on the terminal: their sizes and ranks by map, and what a step would write, as tokens."""

from rich.console import RenderableType

from glassformer.analysis.gradients import BackwardLens, FactEdit, LinearGradients
from glassformer.render.terminal.tables import bar, section, table, tables, visible
from glassformer.words import spoken, spoken_each

N_POSITIONS = 5


@tables.register
def _(result: LinearGradients) -> RenderableType:
    grid = table(*spoken_each("map", "size", "", "rank", "positions"), left=(0, 2))
    sizes = result.norm.values.tolist()
    for i, label in enumerate(result.norm.labels("map")):
        rank, positions = int(result.rank.values[i]), int(result.positions.values[i])
        grid.add_row(str(label), f"{sizes[i]:.3g}", bar(sizes[i], max(sizes)), f"{rank:,}", f"{positions:,}")
    return section(spoken("Gradients of a loss of {loss:.3f} nats, by linear map", loss=result.loss), grid)


@tables.register
def _(result: BackwardLens) -> RenderableType:
    n = result.norm.size("pos")
    shown = list(range(n))[-N_POSITIONS:]
    named = (visible(str(result.norm.labels("pos")[p]), 10) for p in shown)
    grid = table(spoken("map"), *named, spoken("rank"), left=tuple(range(1 + len(shown))))
    for i, label in enumerate(result.norm.labels("map")):
        said = [next(iter(result.tokens(str(label), p)), None) for p in shown]
        # of a position whose gradient is small, tokens would be noise
        rank = "-" if bool(result.small.values[i, -1]) else f"{int(result.answer_rank.values[i, -1]):,}"
        # nothing: a sign would be read as a token
        grid.add_row(str(label), *("" if word is None else visible(word, 9) for word in said), rank)
    title = spoken("What a step would write, by map and position, if it is not small; the answer's rank at the last")
    return section(title, grid)


def written(result: BackwardLens, position: int, top: int = 5) -> RenderableType:
    """Return what a step would write at one position, map by map, with the sizes that say how much."""
    grid = table(*spoken_each("map", "size", "", "rank", "written"), left=(0, 2, 4))
    grid.columns[4].no_wrap = False
    sizes = result.norm.values[:, position].tolist()
    for i, label in enumerate(result.norm.labels("map")):
        tokens = "  ".join(visible(word, 9) for word in result.tokens(str(label), position)[:top])
        rank = "-" if bool(result.small.values[i, position]) else f"{int(result.answer_rank.values[i, position]):,}"
        said = tokens or spoken("(small)")
        grid.add_row(str(label), f"{sizes[i]:.3g}", bar(sizes[i], max(sizes), 8), rank, said)
    asked = {"place": visible(str(result.norm.labels("pos")[position]), 24), "loss": f"{result.loss:.3f}"}
    return section(spoken("What a step would write at {place}, best first; the loss is {loss} nats", **asked), grid)


@tables.register
def _(result: FactEdit) -> RenderableType:
    columns = spoken_each("state", "log-probability", "efficacy", "paraphrase", "neighbourhood", "likeliest")
    grid = table(*columns, left=(0, 5))
    for i, state in enumerate(spoken_each("before", "edited", "gradient step")):
        scores = ("-" if value != value else f"{value:.0%}" for value in result.scores.values[i].tolist())
        likeliest = visible(result.words[int(result.likeliest.values[i, 0])])
        grid.add_row(state, f"{float(result.log_probability.values[i, 0]):.3f}", *scores, likeliest)
    title = spoken("A fact written into {map}, and a gradient step of its size ({norm:.3g})", map=result.edit.label,
                   norm=result.norm)  # fmt: skip
    return section(title, grid)
