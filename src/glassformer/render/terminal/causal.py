"""Patching and causal traces on the terminal: maps of numbers, and the largest cells with their spread."""

import dataclasses
import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from glassformer.analysis.causal import CausalTrace, Patched, Patching, TracesByRole
from glassformer.analysis.uncertainty import mean, standard_error
from glassformer.labelled import Coordinate, Labelled
from glassformer.render.terminal.matrix import matrix
from glassformer.render.terminal.tables import (
    QUIET,
    STRONG,
    bar,
    label_of,
    largest,
    section,
    table,
    tables,
    unranked,
    visible,
)
from glassformer.words import sentence, spoken, spoken_each

# entries of a table; the smallest share that is more than nothing beside a whole of 1
N_CELLS, LEAST = 6, 0.0005
MEANINGS = {
    "denoising": sentence("clean values put into the corrupt run: is the value enough?"),
    "noising": sentence("corrupt values put into the clean run: is the value needed?"),
}
DIRECTIONS = {"denoising": sentence("denoising"), "noising": sentence("noising")}
KINDS = {
    "state": sentence("the stream after a layer"),
    "mlp": sentence("the outputs of a window of MLPs"),
    "attn": sentence("the outputs of a window of attentions"),
    "state_without_mlp": sentence("the stream, MLPs behind it severed"),
    "state_without_attn": sentence("the stream, attention behind it severed"),
}


@tables.register
def _(result: Patched) -> RenderableType:
    parts = [_runs(result), *(_patched("", result, i, N_CELLS) for i in range(result.values.size("metric")))]
    return Group(*spaced(parts))


@unranked.register
def _(result: TracesByRole) -> Text:
    metrics, total = result.values.labels("metric"), result.average_total.values.tolist()
    lost = spoken(", ").join(f"{value:+.3f} {spoken(str(name))}" for name, value in zip(metrics, total))
    return Text.assemble(
        (spoken("Causal traces of {n} prompts", n=result.values.size("prompt")), STRONG),
        spoken("  noise on the subject costs {lost}", lost=lost),
    )


@tables.register
def _(result: TracesByRole) -> RenderableType:
    title, metrics = unranked(result), result.values.labels("metric")
    if not bool(result.share.values[0].isfinite().any()):
        return title
    share, off = mean(result.share).select(metric=0), standard_error(result.share).select(metric=0)
    maps = [
        section(
            spoken("{kind}: share of {metric} brought back", kind=_kind(kind), metric=spoken(str(metrics[0]))),
            *matrix(share.select(kind=i), spoken("token"), scale=1.0, error=off.select(kind=i)),
        )
        for i, kind in enumerate(result.values.labels("kind"))
    ]
    return Group(*spaced([title, *maps]))


@largest.register
def _(result: Patching, top: int = N_CELLS) -> RenderableType:
    first = next(iter(result.values()))
    title = Text.assemble(
        (spoken("Patching, {direction}", direction=DIRECTIONS[result.direction]), STRONG),
        f"  {spoken(MEANINGS[result.direction])}",
    )
    work = spoken(
        "{n:,} cells; {share:.0f} % of the work of one whole run each", n=result.rows, share=100 * result.work
    )
    parts: list[RenderableType] = [Group(title, Text(work, style=QUIET)), _runs(first)]
    for i in range(first.values.size("metric")):
        parts += [_patched(name, table, i, top) for name, table in result.items()]
    return Group(*spaced(parts))


@unranked.register
def _(result: Patching) -> RenderableType:
    tables = [_changes(name, table, i) for name, table in result.items() for i in range(table.values.size("metric"))]
    return Group(*spaced([_runs(next(iter(result.values()))), *tables]))


@unranked.register
def _(result: Patched) -> RenderableType:
    metrics = range(result.values.size("metric"))
    return Group(*spaced([_runs(result), *(_changes(spoken("values"), result, i) for i in metrics)]))


@unranked.register
def _(result: CausalTrace) -> RenderableType:
    return Group(*spaced(_traced(result)))


@largest.register
def _(result: CausalTrace, top: int = N_CELLS) -> RenderableType:
    parts = _traced(result)
    metrics = [str(name) for name in result.values.labels("metric")]
    told = [i for i in range(len(metrics)) if bool(result.share.values[i].isfinite().any())]
    share, off = _starred(mean(result.share), result.subject), standard_error(result.share)
    for i, kind in enumerate(share.labels("kind") if told else ()):
        at = {"metric": told[0], "kind": i}
        cells = _cells(share.select(**at), off.select(**at), top, None)
        picture = matrix(share.select(**at), spoken("token \\ layer"), scale=1.0, error=off.select(**at))
        what = {"kind": _kind(kind), "metric": spoken(metrics[told[0]])}
        parts.append(section(spoken("Restoring {kind}: share of {metric} brought back", **what), *picture, *cells))
    return Group(*spaced(parts))


def _traced(result: CausalTrace) -> list[RenderableType]:
    """Return what was traced, and what the noise does to each metric."""
    numbers = table(*spoken_each("metric", "clean", "corrupted", "total effect"))
    n = result.corrupt.size("sample")
    for i, name in enumerate(result.clean.labels("metric")):
        corrupt = result.corrupt.values[i].double()
        spread = "" if n < 2 else f" ± {float(corrupt.std() / n**0.5):.3f}"
        effect = float(result.total_effect.values[i])
        numbers.add_row(
            spoken(str(name)),
            f"{float(result.clean.values[i]):.3f}",
            f"{float(corrupt.mean()):.3f}{spread}",
            f"{effect:+.3f}{spread}",
        )
    title = Text.assemble(
        (spoken("Causal trace of {answer}", answer=visible(result.answer)), STRONG),
        spoken(" against {wrong}", wrong=visible(result.wrong)),
    )
    about = spoken(
        "noise of {noise:.3g} on the subject (*), {draws}, seed {seed}; windows of {layers}",
        noise=result.noise, seed=result.seed,
        draws=spoken("{n} draw" if n == 1 else "{n} draws", n=n),
        layers=spoken("{n} layer" if result.window == 1 else "{n} layers", n=result.window),
    )  # fmt: skip
    return [Group(title, Text(about, style=QUIET)), numbers]


def cell_name(axes: Sequence[str], where: Sequence[Coordinate]) -> str:
    """Return what a cell is called: `L1H6`, `L0 2:cat`, `L3N70`."""
    at = dict(zip(axes, where))
    name = f"L{at.pop('layer')}" if "layer" in at else ""
    for axis, letter in (("head", "H"), ("kv_head", "H"), ("neuron", "N")):
        if axis in at and name:
            name += f"{letter}{at.pop(axis)}"
    bare = ("pos", "site", "role")
    rest = [label_of(axis, x, 32) if axis in bare else f"{axis} {label_of(axis, x)}" for axis, x in at.items()]
    return " ".join(filter(None, [name, *rest]))


def spaced(parts: Sequence[RenderableType]) -> list[RenderableType]:
    """Parts with an empty line between any two."""
    return [line for i, part in enumerate(parts) for line in ([Text("")] if i else []) + [part]]


def _runs(found: Patched) -> RenderableType:
    n = found.clean.size("batch")
    without = found.undefined.values.sum(-1).tolist()
    first = spoken("mean of {n} ± error", n=n) if n > 1 else ""
    grid = table(first, *spoken_each("clean run", "corrupt run", "no difference" if any(without) else ""))
    for i, name in enumerate(found.clean.labels("metric")):
        ends = []
        for run in (found.clean, found.corrupt):
            values = run.values[i].double()
            ends.append(f"{float(values.mean()):.3f}" + ("" if n < 2 else f" ± {float(values.std() / n**0.5):.3f}"))
        grid.add_row(spoken(str(name)), *ends, spoken("{n} of {all}", n=without[i], all=n) if without[i] else "")
    return grid


def _patched(name: str, found: Patched, metric: int, top: int) -> RenderableType:
    carried = found.carried.select(metric=metric)
    measured = spoken(str(found.values.labels("metric")[metric]))
    title = (name + spoken(": ")) * bool(name) + spoken("share of the difference in {metric} carried", metric=measured)
    n, off = found.n.select(metric=metric), found.error("fraction").select(metric=metric)
    flat = _counted(_turned(carried), _turned(n), found.clean.size("batch"))
    corner = f"{spoken(flat.axes[0])} \\ {spoken(flat.axes[1])}" if len(carried.axes) == 2 else ""
    picture = matrix(flat, corner, scale=1.0, error=_turned(off)) if corner else []
    return section(title, *picture, *_cells(carried, off, top, None if found.clean.size("batch") == 1 else n))


def _changes(name: str, found: Patched, metric: int) -> RenderableType:
    """Return what replacing each cell changes, in the order of the model."""
    change, error = (_turned(of.select(metric=metric)) for of in (found.mean("change"), found.error("change")))
    title = spoken("{name}: change of {metric}", name=name, metric=spoken(str(found.values.labels("metric")[metric])))
    two = len(change.axes) == 2
    corner = f"{spoken(change.axes[0])} \\ {spoken(change.axes[1])}" if two else ""
    return section(title, *(matrix(change, corner, error=error) if two else []))


def _turned(found: Labelled) -> Labelled:
    """Return positions down and layers across; other axes as they are."""
    if found.axes[:2] != ("layer", "pos") or len(found.axes) != 2:
        return found
    return Labelled(found.values.T, ("pos", "layer"), {axis: found.labels(axis) for axis in ("pos", "layer")})


def _counted(found: Labelled, n: Labelled, pairs: int) -> Labelled:
    """Return a table whose rows say of how many prompts they are, where that is not all of them."""
    rows = found.axes[0]
    fewer = [int(of.max()) for of in n.values.flatten(1)] if len(n.axes) == 2 else []
    if all(of == pairs for of in fewer):
        return found
    names = [str(name) if of == pairs else f"{name}({of})" for name, of in zip(found.labels(rows), fewer)]
    return dataclasses.replace(found, coords={**found.coords, rows: names})


def _cells(share: Labelled, error: Labelled, top: int, n: Labelled | None) -> list[RenderableType]:
    """Return the cells with the largest shares, and how sure they are; those below two standard errors faintly.

    `n` says how many prompts each is a mean of: what is of one alone is not ranked among them. None if all are of one.
    """
    ranking = share.values.nan_to_num(0.0) if n is None else share.values.nan_to_num(0.0).masked_fill(n.values < 2, 0.0)
    ranked = Labelled(ranking, share.axes, share.coords).top(top, by_size=True)
    grid = table(*spoken_each("largest", "share", "", "" if n is None else "n"), left=(0, 2))
    index = {axis: {label: i for i, label in enumerate(share.labels(axis))} for axis in share.axes}
    for where, value in ranked:
        if abs(value) < LEAST:
            continue
        at = tuple(index[axis][label] for axis, label in zip(share.axes, where))
        off = float(error.values[at])
        digits = max(2, 1 - math.floor(math.log10(abs(value))))
        told = f"{value:.{digits}f}" + ("" if math.isnan(off) else f" ± {off:.{digits}f}")
        style = QUIET if abs(value) < 2 * off else ""
        of = "" if n is None else str(int(n.values[at]))
        grid.add_row(cell_name(share.axes, where), told, bar(value, 1.0), of, style=style)
    return [Text(spoken("nothing changes it"), style=QUIET)] if not grid.rows else [grid]


def _starred(found: Labelled, subject: Sequence[int]) -> Labelled:
    names = [f"*{label}" if i in subject else str(label) for i, label in enumerate(found.labels("pos"))]
    return Labelled(found.values, found.axes, {**found.coords, "pos": names})


def _kind(kind: Coordinate) -> str:
    return spoken(KINDS.get(str(kind), str(kind)))
