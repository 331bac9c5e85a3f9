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

N_TOKENS, N_EDGES = 12, 20
METHODS = {
    "saliency": "Length of the gradient",
    "gradient_x_input": "Gradient times input",
    "integrated": "Integrated gradients",
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
        what = "what moves" if result.method == "saliency" else "what adds to"
        where = label_of("query", query)
        title = f"{METHODS[result.method]}: {what} the {result.metric_name} after {where}"
        at = whole.select(query=q)
        if "layer" in whole.axes:
            rows = [section(f"{title}, at {layer}", *_by_token(at.select(layer=i), top, signed=True))
                    for i, layer in enumerate(at.labels("layer"))]  # fmt: skip
            parts += rows
            continue
        parts.append(section(title, *_by_token(at, top, signed=result.method != "saliency"), *_promise(result, q)))
    return Group(*spaced(parts))


@largest.register
def _(result: AverageRoutes, top: int = N_EDGES) -> RenderableType:
    grid = table("head", "passes", "", left=(0, 2))
    ranked = result.heads.top(top)
    for (label,), value in ranked:
        error = float(result.spread.select(head=str(label)).values)
        grid.add_row(
            str(label), f"{value:.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}"), bar(value, ranked[0][1])
        )
    return section(f"Through which heads the last token of {result.prompts} prompts got what it has", grid)


@largest.register
def _(result: FlowRoutes, top: int = N_EDGES) -> RenderableType:
    inputs = section("Where it came from: importance that arrives at each token", *_by_token(result.inputs, top))
    heads = table("head", "passes", "", left=(0, 2))
    ranked = [pair for pair in result.heads.top(top) if pair[1] > 0]
    most = max((value for _, value in ranked), default=0.0)
    for (label,), value in ranked:
        heads.add_row(str(label), short(value), bar(value, most))
    if not ranked:
        heads.add_row("none", "", "")
    edges = table("from", "by", "to", "share", left=(0, 1, 2))
    importance = {node.label: node.importance for node in result.nodes}
    for edge in sorted(result.edges, key=lambda edge: -importance.get(edge.above, 0.0) * edge.share)[:top]:
        below = edge.below if " | " in edge.below else "constant"
        edges.add_row(_node(below), edge.via, _node(edge.above), short(edge.share))
    note = (
        f"{len(result.nodes):,} places and {len(result.edges):,} edges of at least {result.threshold:g}. "
        f"{result.constants:.2f} ends in biases, {result.dropped:.2f} where no edge is as large. Norms frozen."
    )
    return Group(
        *spaced([inputs, section("Through which heads", heads), section("The most important edges", edges)]),
        Text(note, style=QUIET),
    )


@largest.register
def _(result: SourceEffects, top: int = N_TOKENS) -> RenderableType:
    both = [result.contributions] + ([] if result.cross is None else [result.cross])
    parts = []
    for name, found in zip(("Heads by the token they move", "Cross-attention by source token"), both):
        shown = _one_place(found)
        grid = table("head", "token", "adds", "", left=(0, 1, 3))
        ranked = shown.top(top, by_size=True)
        most = max((abs(value) for _, value in ranked), default=0.0)
        for (head, key), value in ranked:
            grid.add_row(str(head), label_of("key", key), f"{value:+.3f}", bar(value, most))
        parts.append(section(f"{name} (logits, norms frozen)", grid))
    return Group(*spaced(parts))


@largest.register
def _(result: NeuronEffects, top: int = N_TOKENS) -> RenderableType:
    grid = table("neuron", "adds", "", left=(0, 2))
    ranked = _one_place(result.contributions).top(top, by_size=True)
    most = max((abs(value) for _, value in ranked), default=0.0)
    for (label,), value in ranked:
        grid.add_row(str(label), f"{value:+.3f}", bar(value, most))
    return section("Neurons (logits, norms frozen)", grid)


def _one_place(found: Labelled) -> Labelled:
    """Return the numbers of the last position of the first row, of those that were asked for."""
    return found.select(**{axis: i for axis, i in (("batch", 0), ("pos", -1)) if axis in found.axes})


def token_flow(result: TokenFlow, position: int, top: int = N_TOKENS) -> RenderableType:
    """Return from which tokens the top of the stack comes at one position."""
    row = result.final.select(query=position)
    odd = int(result.unexplained.values[:, position].sum())
    notes = [Text(f"{odd} layers explain nothing here and count as kept", style=QUIET)] if odd else []
    about = f"norms {result.norms}" if result.norms == "frozen" else "attention weights alone"
    title = f"{result.method.upper() if result.method == 'alti' else result.method.capitalize()} ({about})"
    where = label_of("query", result.final.labels("query")[position])
    return section(f"{title}: shares of position {where}", *_by_token(row, top), *notes)


def value_norms(result: ValueNorms, position: int, top: int = N_TOKENS) -> RenderableType:
    """Return the largest vectors that heads bring to one position, and from where."""
    written = result.written.select(query=position)
    weighted = result.weighted.select(query=position)
    index = [{label: i for i, label in enumerate(written.labels(axis))} for axis in ("head", "key")]
    grid = table("head", "token", "written", "", "pattern x value", left=(0, 1, 3))
    ranked = written.top(top)
    most = max((value for _, value in ranked), default=0.0)
    for (head, key), value in ranked:
        other = float(weighted.values[index[0][head], index[1][key]])
        grid.add_row(str(head), label_of("key", key), short(value), bar(value, most), short(other))
    where = label_of("query", result.written.labels("query")[position])
    return section(f"Sizes of what heads bring to position {where}", grid)


def _by_token(row: Labelled, top: int, *, signed: bool = False) -> list[RenderableType]:
    """Return the largest entries over `key`, in the order of the text, and what the others add up to."""
    values, labels = row.values.double(), row.labels("key")
    chosen = sorted(i for i in values.abs().topk(min(top, len(values))).indices.tolist() if values[i])
    most = float(values.abs().max()) if len(values) else 0.0
    grid = table("token", "adds" if signed else "share", "", left=(0, 2))
    for i in chosen:
        x = float(values[i])
        grid.add_row(label_of("key", labels[i], 24), f"{x:+.3f}" if signed else short(x, 3), bar(x, most, 32))
    if len(chosen) < len(values):
        rest = float(values.sum() - values[chosen].sum())
        number = f"{rest:+.3f}" if signed else short(rest, 3)
        left = len(values) - len(chosen)
        grid.add_row(f"{left} other{'s' * (left != 1)}", number, bar(rest, max(most, abs(rest)), 32), style=QUIET)
    return [grid]


def _promise(result: InputGradients, q: int) -> Sequence[RenderableType]:
    if result.method != "integrated":
        return [Text("first order, which need not sum to anything", style=QUIET)]
    whole = float(result.metric.values[q] - result.baseline_metric.values[q])
    text = Text.assemble(
        ("sum ", STRONG), (f"{whole + float(result.gap.values[q]):+.3f}", STRONG),
        (f" of {whole:+.3f} above the {result.baseline} ({result.steps} steps: off by "
         f"{float(result.gap.values[q]):+.1e})", QUIET),
    )  # fmt: skip
    return [text]


def _node(label: str) -> str:
    place, _, token = label.partition(" | ")
    return f"{place} {visible(token, 14)}" if token else label
