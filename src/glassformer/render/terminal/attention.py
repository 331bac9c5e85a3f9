"""Attention on the terminal: what each head looks at most, and what makes one of them look there."""

from rich.console import Group, RenderableType

from glassformer.analysis.paths import ScorePaths
from glassformer.analysis.reports.attention import Attention
from glassformer.render.terminal.tables import (
    QUIET,
    STRONG,
    any_result,
    bar,
    label_of,
    largest,
    noted,
    section,
    table,
    visible,
)
from glassformer.words import sentence, spoken, spoken_each

N_KEYS, N_PAIRS = 2, 12
CLASSES = {
    "direct": sentence("neither query nor key"),
    "Q": sentence("the query"),
    "K": sentence("the key"),
    "QK": sentence("query and key"),
}


def most_seen(found: Attention) -> RenderableType:
    """Return a table of where each head looks most, and what has no picture."""
    rows = table(spoken("head"), spoken("mean of all queries"), spoken("last query"), left=(0, 1, 2))
    for pattern in found.patterns:
        keys = found.texts[pattern.key]
        cells: list[str] = []
        for row in (pattern.weights.mean(0), pattern.weights[-1]):
            order = row.abs().topk(min(N_KEYS, len(row))).indices.tolist()
            cells.append(", ".join(f"{k} {visible(keys[k])} {float(row[k]):.3f}" for k in map(int, order)))
        rows.add_row(pattern.label, *cells)
    return Group(rows, *noted(found.notes))


@largest.register
def _(result: ScorePaths, top: int = N_PAIRS) -> RenderableType:
    if "query" in result.total.axes or "key" in result.total.axes:
        # terms of many scores are too many to be ranked
        return any_result(result, top)
    if "stream" not in result.total.axes:
        return _one_score(result, result.label, top)
    parts: list[RenderableType] = []
    for i in range(result.total.size("stream")):
        about = spoken("{name}, stream {n}", name=result.label, n=i)
        parts += ["", _one_score(result, about, top, stream=i)]
    return Group(*parts[1:])


def _one_score(result: ScorePaths, about: str, top: int, **stream: int) -> RenderableType:
    """Return a score by what earlier heads had a part in, and by the pairs of writers that make it."""
    classes, terms = result.classes.select(**stream), result.terms.select(**stream)
    total, among = float(result.total.select(**stream).values), float(classes.values.double().sum())
    adds = {CLASSES[str(name)]: float(x) for name, x in zip(classes.labels("class"), classes.values)}
    if result.position_bias.values:
        adds[sentence("position bias")] = total - among
    split = table(*spoken_each("", "adds", ""), left=(0, 2))
    for words, x in adds.items():
        split.add_row(spoken(words), f"{x:+.3f}", bar(x, max(map(abs, adds.values()))))
    split.add_row(spoken("sum"), f"{total:+.3f}", style=STRONG)
    pairs = table(*spoken_each("query", "key", "adds", ""), left=(0, 1, 3))
    ranked = terms.top(top, by_size=True)
    for (asking, asked), x in ranked:
        names = (label_of("component", label) for label in (asking, asked))
        pairs.add_row(*names, f"{x:+.3f}", bar(x, abs(ranked[0][1])))
    left, rest = terms.values.numel() - len(ranked), among - sum(x for _, x in ranked)
    if left:
        words = spoken("{n} other" if left == 1 else "{n} others", n=left)
        pairs.add_row(words, "", f"{rest:+.3f}", bar(rest, max(abs(rest), abs(ranked[0][1]))), style=QUIET)
    return Group(
        section(spoken("{head}: in how much of the score earlier heads had a part", head=about), split),
        "",
        section(spoken("Strongest pairs of what wrote the query and what wrote the key"), pairs),
    )
