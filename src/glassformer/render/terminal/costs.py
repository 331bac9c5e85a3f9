"""What attention mechanisms cost, on the terminal: a table for each call, by length, and how costs grow."""

import math

from rich.console import Group, RenderableType
from rich.text import Text

from glassformer.bench.costs import CALLS, FUSED, AttentionCosts
from glassformer.labelled import Labelled
from glassformer.render.terminal.causal import spaced
from glassformer.render.terminal.tables import QUIET, section, table, tables
from glassformer.words import spoken, spoken_each


@tables.register
def _(result: AttentionCosts) -> RenderableType:
    facts = spoken(
        "{heads} heads of {width}, batch {batch}, {dtype}, {device}, threads: {threads}; ratios with 95 % intervals, "
        "and below them the least and the largest of a round",
        heads=result.n_heads, width=result.d_head, batch=result.batch, dtype=result.dtype,
        device=result.processor if result.device == "cpu" else result.device, threads=result.threads,
    )  # fmt: skip
    asides = [
        Text(f"{spoken(name)}: {spoken(words)}", style=QUIET)
        for name, words in result.measured_by.items()
        if name not in CALLS
    ]
    lengths = _lengths(result)
    parts = [section(spoken("Attention costs"), Text(facts, style=QUIET))]
    parts += [
        section(spoken(call), *_otherwise(result, call), _by_length(result, call))
        for call in CALLS
        if any(lengths[call])
    ]
    parts.append(section(spoken("Bytes of state that a decode step carries"), _states(result)))
    title = spoken("Growth with length: exponents, in brackets those between neighbouring lengths")
    parts.append(section(title, _growth(result)))
    left_out = [
        Text(spoken(": ").join((*map(spoken, what.split(": ")), spoken(why)))) for what, why in result.left_out.items()
    ]
    parts += [section(spoken("Left out"), *left_out)] if left_out else []
    return Group(*spaced([*parts, Group(*asides)]))


def _lengths(result: AttentionCosts) -> dict[str, list[bool]]:
    """Return for each call at which lengths the baseline was measured."""
    return {call: result.seconds.select(call=call, mechanism=FUSED).values.isfinite().tolist() for call in CALLS}


def _otherwise(result: AttentionCosts, call: str) -> list[Text]:
    """Return what the baseline does otherwise in a call, if it does."""
    return [Text(spoken(result.measured_by[call]), style=QUIET)] if call in result.measured_by else []


def _by_length(result: AttentionCosts, call: str) -> RenderableType:
    grid = table(*spoken_each("mechanism", "length", "time", "x fused", "A/A", "memory", "x fused"))
    # a name with its settings may be long, and gives way to numbers
    grid.columns[0].no_wrap = False
    names, lengths = result.seconds.labels("mechanism"), result.seconds.labels("length")
    for i, name in enumerate(names):
        for j, length in enumerate(lengths):
            at = {"call": call, "mechanism": name, "length": j}
            seconds = _number(result.seconds, **at)
            if math.isnan(seconds):
                continue
            compared = [] if i == 0 else _compared(result, at)
            ratio, same, memory = compared or ("", "", "")
            held = bytes_said(_number(result.peak_bytes, **at))
            grid.add_row(spoken(str(name)), f"{length:,}", seconds_said(seconds), ratio, same, held, memory)
    return grid


def _compared(result: AttentionCosts, at: dict[str, object]) -> tuple[str, str, str]:
    ratio, low, high = (_number(value, **at) for value in (result.ratio, result.ratio_low, result.ratio_high))
    rounds = (_number(value, **at) for value in (result.ratio_least, result.ratio_largest))
    same = (_number(value, **at) for value in (result.same_low, result.same_high))
    memory = _number(result.memory_ratio, **at)
    median = f"{_three(ratio)} ({_three(low)}-{_three(high)})"
    return f"{median}\n{'-'.join(map(_three, rounds))}", "-".join(map(_three, same)), _three(memory)


def _states(result: AttentionCosts) -> RenderableType:
    states = result.state_bytes
    lengths = states.labels("length")
    measured = [j for j in range(len(lengths)) if states.values[:, j].isfinite().any()]
    grid = table(spoken("mechanism"), *(f"{lengths[j]:,}" for j in measured))
    for name in states.labels("mechanism"):
        grid.add_row(spoken(str(name)), *(bytes_said(_number(states, mechanism=name, length=j)) for j in measured))
    return grid


def _growth(result: AttentionCosts) -> RenderableType:
    """Return a table for each call, under its name."""
    grids = []
    for call in CALLS:
        grid = table(spoken(call), *spoken_each("time", "memory"))
        for name in result.growth.labels("mechanism"):
            cells = [_exponent(result, {"cost": cost, "call": call, "mechanism": name}) for cost in ("time", "memory")]
            if any(cells):
                grid.add_row(spoken(str(name)), *cells)
        grids += [grid] if grid.row_count else []
    return Group(*grids)


def _exponent(result: AttentionCosts, at: dict[str, object]) -> str:
    exponent, low, high = (_number(one, **at) for one in (result.growth, result.growth_low, result.growth_high))
    return "" if math.isnan(exponent) else f"{exponent:.2f} ({low:.2f}…{high:.2f})"


def _number(value: Labelled, **at: object) -> float:
    return float(value.select(**at))  # type: ignore[arg-type]


def _three(number: float) -> str:
    """Return a ratio with three digits, two of them behind the point at most."""
    return "" if math.isnan(number) else f"{number:.2f}" if number < 10 else f"{number:.3g}"


def seconds_said(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def bytes_said(number: float) -> str:
    if math.isnan(number):
        return ""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if number >= 1024**power:
            return f"{number / 1024**power:.3g} {unit}"
    return f"{number:.0f} B"
