"""Where predictions come from, token by token, on the terminal."""

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from glassformer.analysis.attribution import InputGradients, NeuronEffects, SourceEffects
from glassformer.analysis.token_flow import AverageRoutes, FlowRoutes, TokenFlow, ValueNorms
from glassformer.labelled import Labelled
from glassformer.render.terminal.causal import spaced
from glassformer.render.terminal.matrix import short
from glassformer.render.terminal.tables import QUIET, STRONG, bar, label_of, largest, section, table, visible
from glassformer.words import sentence, spoken, spoken_each

N_TOKENS, N_EDGES = 12, 20
METHODS = {
    "saliency": sentence("Length of the gradient"),
    "gradient_x_input": sentence("Gradient times input"),
    "integrated": sentence("Integrated gradients"),
}


@largest.register
def _(result: TokenFlow, top: int = N_TOKENS) -> RenderableType:
    return token_flow(result, -1, top)


@largest.register
def _(result: ValueNorms, top: int = N_TOKENS) -> RenderableType:
    return value_norms(result, -1, top)


@largest.register
def _(result: InputGradients, top: int = N_TOKENS) -> RenderableType:
    parts = list[RenderableType]()
    whole = result.values
    for q, query in enumerate(whole.labels("query")):
        title = spoken(
            "{method}: what moves the {metric} after {query}" if result.method == "saliency"
            else "{method}: what adds to the {metric} after {query}",
            method=METHODS[result.method], metric=spoken(result.metric_name), query=label_of("query", query),
        )  # fmt: skip
        at = whole.select(query=q)
        if "layer" in whole.axes:
            for i, layer in enumerate(at.labels("layer")):
                rows = _by_token(at.select(layer=i), top, signed=True)
                parts.append(section(spoken("{title}, at {layer}", title=title, layer=layer), *rows))
            continue
        parts.append(section(title, *_by_token(at, top, signed=result.method != "saliency"), *_promise(result, q)))
    return Group(*spaced(parts))


@largest.register
def _(result: AverageRoutes, top: int = N_EDGES) -> RenderableType:
    grid = table(*spoken_each("head", "importance", ""), left=(0, 2))
    ranked = result.heads.top(top)
    for (label,), value in ranked:
        error = float(result.spread.select(head=str(label)).values)
        grid.add_row(
            str(label), f"{value:.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}"), bar(value, ranked[0][1])
        )
    title = spoken("Through which heads the last token of {n} prompts got what it has", n=result.prompts)
    return section(title, grid)


@largest.register
def _(result: FlowRoutes, top: int = N_EDGES) -> RenderableType:
    title = spoken("Where it came from: importance that arrives at each token")
    inputs = section(title, *_by_token(result.inputs, top))
    heads = table(*spoken_each("head", "importance", ""), left=(0, 2))
    ranked = [pair for pair in result.heads.top(top) if pair[1] > 0]
    most = max((value for _, value in ranked), default=0.0)
    for (label,), value in ranked:
        heads.add_row(str(label), short(value), bar(value, most))
    if not ranked:
        heads.add_row(spoken("none"), "", "")
    edges = table(*spoken_each("from", "by", "to", "share of what it enters", "importance"), left=(0, 1, 2))
    importance = {node.label: node.importance for node in result.nodes}
    carried = {edge: importance.get(edge.above, 0.0) * edge.share for edge in result.edges}
    for edge in sorted(carried, key=lambda edge: -carried[edge])[:top]:
        below = edge.below if " | " in edge.below else spoken("constant")
        edges.add_row(_node(below), spoken(edge.via), _node(edge.above), short(edge.share), short(carried[edge]))
    note = spoken(
        "{places:,} places and {edges:,} edges of at least {threshold:g}. {constants:.2f} ends in biases, "
        "{dropped:.2f} where no edge is as large. Norms frozen.",
        places=len(result.nodes), edges=len(result.edges), threshold=result.threshold, constants=result.constants,
        dropped=result.dropped,
    )  # fmt: skip
    tables = section(spoken("Through which heads"), heads), section(spoken("The most important edges"), edges)
    return Group(*spaced([inputs, *tables]), Text(note, style=QUIET))


@largest.register
def _(result: SourceEffects, top: int = N_TOKENS) -> RenderableType:
    both = [result.contributions] + ([] if result.cross is None else [result.cross])
    parts = []
    titles = spoken_each(
        "Heads by the token they move (logits, norms frozen)", "Cross-attention by source token (logits, norms frozen)"
    )
    for title, found in zip(titles, both):
        shown = _one_place(found)
        grid = table(*spoken_each("head", "token", "adds", ""), left=(0, 1, 3))
        ranked = shown.top(top, by_size=True)
        most = max((abs(value) for _, value in ranked), default=0.0)
        for (head, key), value in ranked:
            grid.add_row(str(head), label_of("key", key), f"{value:+.3f}", bar(value, most))
        parts.append(section(title, grid))
    return Group(*spaced(parts))


@largest.register
def _(result: NeuronEffects, top: int = N_TOKENS) -> RenderableType:
    grid = table(*spoken_each("neuron", "adds", ""), left=(0, 2))
    ranked = _one_place(result.contributions).top(top, by_size=True)
    most = max((abs(value) for _, value in ranked), default=0.0)
    for (label,), value in ranked:
        grid.add_row(str(label), f"{value:+.3f}", bar(value, most))
    return section(spoken("Neurons (logits, norms frozen)"), grid)


def _one_place(found: Labelled) -> Labelled:
    """Return the numbers of the last position of the first row, of those that were asked for."""
    return found.select(**{axis: i for axis, i in (("batch", 0), ("pos", -1)) if axis in found.axes})


def token_flow(result: TokenFlow, position: int, top: int = N_TOKENS) -> RenderableType:
    """Token flow: from which tokens the top of the stack comes at one position."""
    row = result.final.select(query=position)
    odd = int(result.unexplained.values[:, position].sum())
    told = spoken("{n} layers explain nothing here and count as kept", n=odd)
    notes = [Text(told, style=QUIET)] if odd else []
    about = spoken("norms frozen" if result.norms == "frozen" else "attention weights alone")
    method = result.method.upper() if result.method == "alti" else result.method.capitalize()
    where = label_of("query", result.final.labels("query")[position])
    title = spoken("{method} ({about}): shares of position {place}", method=method, about=about, place=where)
    return section(title, *_by_token(row, top), *notes)


def value_norms(result: ValueNorms, position: int, top: int = N_TOKENS) -> RenderableType:
    """The largest vectors that heads bring to one position, and from where."""
    written = result.written.select(query=position)
    weighted = result.weighted.select(query=position)
    index = [{label: i for i, label in enumerate(written.labels(axis))} for axis in ("head", "key")]
    grid = table(*spoken_each("head", "token", "written", "", "pattern x value"), left=(0, 1, 3))
    ranked = written.top(top)
    most = max((value for _, value in ranked), default=0.0)
    for (head, key), value in ranked:
        other = float(weighted.values[index[0][head], index[1][key]])
        grid.add_row(str(head), label_of("key", key), short(value), bar(value, most), short(other))
    where = label_of("query", result.written.labels("query")[position])
    return section(spoken("Sizes of what heads bring to position {place}", place=where), grid)


def _by_token(row: Labelled, top: int, *, signed: bool = False) -> list[RenderableType]:
    """Return the largest entries over `key`, in the order of the text, and what the others add up to."""
    values, labels = row.values.double(), row.labels("key")
    chosen = sorted(i for i in values.abs().topk(min(top, len(values))).indices.tolist() if values[i])
    most = float(values.abs().max()) if len(values) else 0.0
    grid = table(*spoken_each("token", "adds" if signed else "share", ""), left=(0, 2))
    for i in chosen:
        x = float(values[i])
        grid.add_row(label_of("key", labels[i], 24), f"{x:+.3f}" if signed else short(x, 3), bar(x, most, 32))
    if len(chosen) < len(values):
        rest = float(values.sum() - values[chosen].sum())
        number = f"{rest:+.3f}" if signed else short(rest, 3)
        left = len(values) - len(chosen)
        grid.add_row(
            spoken("{n} other" if left == 1 else "{n} others", n=left),
            number,
            bar(rest, max(most, abs(rest)), 32),
            style=QUIET,
        )
    return [grid]


def _promise(result: InputGradients, q: int) -> Sequence[RenderableType]:
    if result.method != "integrated":
        return [Text(spoken("first order, which need not sum to anything"), style=QUIET)]
    whole = float(result.metric.values[q] - result.baseline_metric.values[q])
    gap = float(result.gap.values[q])
    told = spoken(
        " of {whole:+.3f} above the {baseline} ({steps} steps: off by {gap:+.2g})",
        whole=whole, baseline=spoken(result.baseline), steps=result.steps, gap=gap,
    )  # fmt: skip
    text = Text.assemble((spoken("sum {n:+.3f}", n=whole + gap), STRONG), (told, QUIET))
    return [text]


def _node(label: str) -> str:
    place, _, token = label.partition(" | ")
    return f"{place} {visible(token, 14)}" if token else label
