"""Paths, edges and circuits found by intervention, on the terminal."""

import math

from rich.console import RenderableType
from rich.text import Text

from glassformer.analysis.circuits import Acdc, Compared, EdgeAttribution, PathPatching, Verified
from glassformer.labelled import Labelled
from glassformer.render.terminal.tables import HELD, QUIET, bar, largest, section, table, tables
from glassformer.words import sentence, spoken, spoken_each

N_ROWS = 12
POINTS = {
    "clean": sentence("the clean run"),
    "corrupt": sentence("the corrupt run"),
    "inputs": sentence("inputs between the two runs"),
    "activations": sentence("activations between the two runs"),
}


@tables.register
def _(result: Verified) -> RenderableType:
    exact, estimate = result.exact.values.tolist(), result.estimate.values.tolist()
    most = max((abs(x) for x in (*exact, *estimate)), default=0.0)
    grid = table(*spoken_each("edge or part", "estimate", "exact", ""), left=(0, 3))
    for i, label in enumerate(result.exact.labels("component")):
        if i < result.largest:
            grid.add_row(str(label), f"{estimate[i]:+.3f}", f"{exact[i]:+.3f}", bar(exact[i], most))
    drawn = len(exact) - result.largest
    known = not math.isnan(result.rank_correlation)
    ranks = sentence("; ranks correlate {correlation:.2f}", correlation=result.rank_correlation)
    note = spoken(
        "These and {n} drawn at random: off by {error:.3f} on average, {worst:.3f} at worst{ranks}.",
        n=drawn, error=result.error, worst=result.worst, ranks=ranks if known else "",
    )  # fmt: skip
    return section(spoken("Estimates by gradients beside exact patching"), grid, Text(note, style=QUIET))


@largest.register
def _(result: PathPatching, top: int = N_ROWS) -> RenderableType:
    mean = Labelled(result.effect.values.mean(-1), ("sender",), {"sender": result.effect.labels("sender")})
    error, share = result.spread.values.tolist(), result.share.values.tolist()
    grid = table(*spoken_each("sender", "effect", "share", ""), left=(0, 3))
    ranked, index = mean.top(top, by_size=True), {label: i for i, label in enumerate(mean.labels("sender"))}
    most = max((abs(value) for _, value in ranked), default=0.0)
    for (label,), value in ranked:
        i = index[label]
        grid.add_row(str(label), _with_error(value, error[i]), _percent(share[i]), _of_gap(share[i], value, most))
    rest = mean.size("sender") - len(ranked)
    clean, corrupt = (float(run.values.mean()) for run in (result.clean, result.corrupt))
    note = spoken(
        "{metric}: {clean:.3f} in the clean run, {corrupt:.3f} in the corrupt one; share: of that difference. Heads "
        "between keep what they wrote, MLPs are {mlps}; norms {norm}.",
        metric=spoken(result.metric), clean=clean, corrupt=corrupt, mlps=HELD[result.mlps], norm=HELD[result.norm],
    ) + (spoken(" {n} other senders do less.", n=rest) if rest else "")  # fmt: skip
    title = spoken("Corrupt values along the paths into {receivers}", receivers=", ".join(result.receivers))
    return section(title, grid, Text(note, style=QUIET))


@largest.register
def _(result: EdgeAttribution, top: int = N_ROWS) -> RenderableType:
    ranked, spread = result.top(top), result.spread
    most = max((abs(value) for _, value in ranked), default=0.0)
    grid = table(*spoken_each("edge", "estimated effect", ""), left=(0, 2))
    for edge, value in ranked:
        off = float(spread.select(receiver=edge.receiver, sender=edge.sender).values)
        grid.add_row(f"{edge.sender} → {edge.receiver}", _with_error(value, off), bar(value, most))
    total = int((~result.effect.values.isnan()).sum())
    note = spoken(
        "On {metric}, of patching each of {n:,} edges with corrupt values: first order, gradients at {where}. An "
        "estimate, which fails where attention is saturated.",
        metric=spoken(result.metric), n=total, where=POINTS[result.gradient_at],
    )  # fmt: skip
    return section(spoken("Edges by attribution patching"), grid, Text(note, style=QUIET))


@largest.register
def _(result: Acdc, top: int = N_ROWS) -> RenderableType:
    changes = {decision.edge: decision.change for decision in result.log}
    order = sorted(result.edges, key=lambda edge: -abs(changes.get(edge, 0.0)))
    most = max((abs(changes.get(edge, 0.0)) for edge in result.edges), default=0.0)
    grid = table(*spoken_each("edge", "cutting it costs", ""), left=(0, 2))
    for edge in order[:top]:
        cost = changes.get(edge, 0.0)
        grid.add_row(f"{edge.sender} → {edge.receiver}", f"{cost:+.4f}", bar(cost, most))
    tried = len(result.log) + result.prefiltered
    rest = len(order) - min(top, len(order))
    left = spoken(
        "{n:,} of {all:,} edges are left, at most {threshold:g} per edge cut; {passes:,} forward passes. ",
        n=len(result.edges), all=tried, threshold=result.threshold, passes=result.passes,
    )  # fmt: skip
    left += spoken("{n} more edges: --json or --html.", n=rest) if rest else ""
    cost = spoken(
        "Cost ({metric}): circuit {circuit:.4f}, whole model {full:.4f}, all edges cut {empty:.4f}: the circuit goes "
        "{share} of the way.",
        metric=_cost(result.metric), circuit=result.cost, full=result.cost_full, empty=result.cost_empty,
        share=_percent(result.faithfulness),
    )  # fmt: skip
    parts = spoken("Parts: {parts}", parts=", ".join(result.nodes) or spoken("none"))
    beside = [] if result.compared is None else [_compared(result.compared)]
    notes = [Text(line, style=QUIET) for line in (left, cost, parts, *beside)]
    return section(spoken("The circuit that pruning leaves ({order})", order=spoken(result.order)), grid, *notes)


def _compared(found: Compared) -> str:
    return spoken(
        "For each half of the prompts: {first:,} and {second:,} edges, {overlap} of them in both. With weights drawn "
        "anew: {drawn:,} edges, which go {share} of the way. {passes:,} further passes.",
        first=found.halves[0], second=found.halves[1], overlap=_percent(found.overlap), drawn=found.drawn_edges,
        share=_percent(found.drawn_faithfulness), passes=found.passes,
    )  # fmt: skip


def _of_gap(share: float, value: float, most: float) -> Text:
    """Return a bar for a share of the difference between two runs; beside the largest where they do not differ."""
    return bar(share, 1.0) if math.isfinite(share) else bar(value, most)


def _cost(metric: str) -> str:
    return spoken(metric) if "KL" in metric else spoken("minus the {metric}", metric=spoken(metric))


def _with_error(value: float, off: float) -> str:
    return f"{value:+.3f}" + ("" if math.isnan(off) else f" ± {off:.3f}")


def _percent(share: float) -> str:
    return "-" if not math.isfinite(share) else f"{100 * share:.0f} %".replace("-0 %", "0 %")
