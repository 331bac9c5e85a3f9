"""Results on the terminal: tables that fit 80 columns.

`show(explanation)` prints everything `explain` found; attributions, lenses and head scores print as one table each.
"""

import math
from collections.abc import Iterator
from functools import singledispatch

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassformer.analysis import Attribution, Explanation, HeadScores, Lens
from glassformer.analysis.explanation import Candidate, Contribution, HeadFacts, LensRow, TopHead
from glassformer.analysis.heads import ROLES
from glassformer.labelled import Result

BAR, N_COMPONENTS, N_LOOKS = 16, 12, 5
POSITIVE, NEGATIVE, QUIET, STRONG = "cyan", "yellow", "dim", "bold"
MEANINGS = {
    "previous_token": "looks at the token before",
    "induction": "looks at what followed this token earlier",
    "duplicate_token": "looks at earlier copies of this token",
    "first_token": "rests on the first token",
    "current_token": "looks at its own token",
}


def show(result: Result, console: Console | None = None) -> None:
    """Print a result as tables."""
    (console or Console()).print(tables(result))


@singledispatch
def tables(result: Result) -> RenderableType:
    """Return what `show` prints, for any rich console; results without a view of their own print as text."""
    return Text(repr(result))


@tables.register
def _(result: Explanation) -> RenderableType:
    parts = [_header(result), _pipeline(result), _next_token(result), _sampling(result)]
    parts += [_translation(result)] if result.translation is not None else []
    parts += [_lens(result.lens, result.answer.text), _attribution(result), _heads(result), _looks(result)]
    notes = [Text(f"Note: {note}", style=QUIET) for note in result.notes]
    spaced = [line for part in parts for line in (part, Text(""))]
    return Group(*spaced, *notes)


@tables.register
def _(result: Attribution) -> RenderableType:
    parts = [
        Contribution(c.label, c.kind, c.layer, c.part, c.head, value)
        for c, value in zip(result.components, result.contributions.values.tolist())
    ]
    raw = "" if result.cap is None else "raw "
    return _components(parts, f"Direct contributions to the {raw}logit", result.total)


@tables.register
def _(result: Lens) -> RenderableType:
    table = _table("row", "probability", "rank", "KL bits", "entropy bits")
    columns = (result.probability, result.rank, result.kl_bits, result.entropy_bits)
    for label, p, rank, kl, entropy in zip(result.probability.labels("row"), *(c.values.tolist() for c in columns)):
        table.add_row(str(label), _percent(p), str(rank), f"{kl:.2f}", f"{entropy:.2f}")
    return _section(f"Logit lens: token {result.answer}", table)


@tables.register
def _(result: HeadScores) -> RenderableType:
    table = _table("head", *[role.replace("_", " ") for role in ROLES], "reading")
    for label, values, reading in zip(result.scores.labels("head"), result.scores.values.tolist(), result.readings):
        table.add_row(str(label), *["-" if math.isnan(v) else f"{v:.2f}" for v in values], reading)
    return _section("Head roles", table)


def visible(text: str, width: int = 16) -> str:
    """Return a token as it can be shown in a table: spaces and line breaks as signs, nothing that moves the cursor."""
    signs = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
    shown = "".join(signs.get(c, c if c.isprintable() else f"\\u{ord(c):04x}") for c in text)
    return shown if cell_len(shown) <= width else set_cell_size(shown, width - 1).rstrip() + "…"


def bar(value: float, largest: float, width: int = BAR) -> Text:
    """Return a bar for a magnitude; negative values in the other colour."""
    eighths = round(8 * width * abs(value) / largest) if largest > 0 else 0
    blocks = "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")
    return Text(blocks, style=POSITIVE if value >= 0 else NEGATIVE)


def _table(*columns: str, left: tuple[int, ...] = (0,)) -> Table:
    table = Table(box=None, pad_edge=False, header_style=QUIET, show_header=any(columns[1:]))
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i in left else "right", no_wrap=True)
    return table


def _section(title: str, *parts: RenderableType) -> RenderableType:
    # a table's own title would be wrapped to the width of the table
    return Group(Text(title, style=STRONG), *parts)


def _header(found: Explanation) -> RenderableType:
    model = found.model
    size = f"{model.parameters:,} parameters, {model.n_layers} layers of up to {model.n_heads} heads"
    lines = [
        Text.assemble((model.name, STRONG), f"  {model.kind.replace('_', '-')}, {size}, {', '.join(model.mechanisms)}")
    ]
    if found.source_tokens is not None:
        lines.append(Text.assemble(("source  ", QUIET), "".join(visible(t.text) for t in found.source_tokens)))
    before = found.tokens[max(0, found.position - 30) : found.position + 1]
    context = " ".join(visible(token.text) for token in before)
    outcome = found.answer
    fate = f"  {_percent(outcome.probability)}, rank {outcome.rank}, logit {outcome.logit:.2f}"
    lines.append(Text.assemble(("reads   ", QUIET), ("… " if len(before) <= found.position else ""), context))
    lines.append(Text.assemble(("next    ", QUIET), (visible(outcome.text), f"{STRONG} {POSITIVE}"), fate))
    if found.against is not None:
        other = found.against
        fate = f"  {_percent(other.probability)}, rank {other.rank}, logit {other.logit:.2f}"
        lines.append(Text.assemble(("against ", QUIET), (visible(other.text), f"{STRONG} {NEGATIVE}"), fate))
    return Group(*lines)


def _pipeline(found: Explanation) -> RenderableType:
    table = _table("stage", "shape", "numbers", left=(0, 1, 2))
    table.columns[2].no_wrap = False
    for stage in found.pipeline:
        shape = " ".join(f"{axis}={size}" for axis, size in stage.shape.items() if axis != "batch")
        numbers = ", ".join(f"{name} {_number(value)}" for name, value in stage.numbers.items())
        if stage.stage == "ids":
            numbers = " ".join(str(t.id) for t in found.tokens[:10]) + (" …" if len(found.tokens) > 10 else "")
        table.add_row(stage.name, Text(shape, style=QUIET), numbers)
    return _section(f"From text to next token (norms at position {found.position})", table)


def _next_token(found: Explanation) -> RenderableType:
    table = _table("token", "probability", "", "logit", left=(0, 2))
    for candidate in found.next_token.candidates:
        shown = bar(candidate.probability, 1.0, 32)
        table.add_row(_token(candidate), _percent(candidate.probability), shown, f"{candidate.logit:.2f}")
    return _section(f"Next token (entropy {found.next_token.entropy_bits:.2f} bits)", table)


def _sampling(found: Explanation) -> RenderableType:
    table = _table("step", "setting", "left", "bits", "likeliest", left=(0, 4))
    table.columns[4].no_wrap = False
    for step in found.sampling.steps:
        setting = "" if step.setting is None else f"{step.setting:g}"
        likeliest = "  ".join(f"{visible(c.text, 10)} {_percent(c.probability)}" for c in step.candidates[:3])
        name = step.name.replace("_", "-")
        table.add_row(name, setting, f"{step.kept:,}", f"{step.entropy_bits:.2f}", likeliest)
    draw, seed = found.sampling.draw, found.sampling.settings.get("seed")
    table.add_row("draw", f"seed {seed}", "1", "", f"{visible(draw.text, 10)} {_percent(draw.probability)}")
    return _section("Sampling, step by step (tokens left, entropy in bits)", table)


def _translation(found: Explanation) -> RenderableType:
    assert found.translation is not None
    origin = "generated" if found.translation.generated else "given"
    table = _table("step", "reads", "writes", "probability", left=(1, 2))
    for step in found.translation.steps:
        table.add_row(str(step.index), visible(step.input), visible(step.output), _percent(step.probability))
    shown = "".join(c if c.isprintable() else " " for c in found.translation.text)
    return _section(f"Translation ({origin}): {shown}", Text("What the decoder reads and writes, step by step:"), table)


def _lens(rows: tuple[LensRow, ...], answer: str) -> RenderableType:
    table = _table("after", "likeliest", "probability", "rank", "KL bits", left=(0, 1))
    for row in rows:
        likeliest = "  ".join(visible(c.text, 10) for c in row.candidates[:3])
        table.add_row(
            row.label, likeliest, _percent(row.answer.probability), f"{row.answer.rank:,}", f"{row.kl_bits:.2f}"
        )
    return _section(f"Logit lens: what the model would say if it stopped there (numbers for {visible(answer)})", table)


def _attribution(found: Explanation) -> RenderableType:
    raw = "raw " if found.attribution.target.startswith("raw") else ""
    what = f"the {raw}logit of {visible(found.answer.text)}"
    if found.against is not None:
        what += f" minus that of {visible(found.against.text)}"
    return _components(list(found.attribution.components), f"What adds to {what}", found.attribution.total)


def _components(parts: list[Contribution], title: str, total: float) -> RenderableType:
    table = _table("component", "adds", "", left=(0, 2))
    largest = max((abs(p.contribution) for p in parts), default=0.0)
    chosen = sorted(parts, key=lambda p: -abs(p.contribution))[:N_COMPONENTS]
    for part in chosen:
        table.add_row(part.label, f"{part.contribution:+.3f}", bar(part.contribution, largest))
    rest = len(parts) - len(chosen)
    if rest:
        added = sum(p.contribution for p in parts) - sum(p.contribution for p in chosen)
        table.add_row(f"{rest} others", f"{added:+.3f}", bar(added, max(largest, abs(added))), style=QUIET)
    table.add_row(
        "sum",
        f"{sum(p.contribution for p in parts):+.3f}",
        Text(f"= {total:+.3f} in the model", style=QUIET),
        style=STRONG,
    )
    return _section(title, table)


def _heads(found: Explanation) -> RenderableType:
    table = _table("head", "adds", "roles on this text (score, positions)", left=(0, 2))
    table.columns[2].no_wrap = False
    facts = {head.label: head for head in found.heads}
    for top in found.top_heads:
        table.add_row(top.label, f"{top.contribution:+.3f}", _roles(facts[top.label]))
    shown = [name for name in ROLES if any(_plays(facts[top.label], name) for top in found.top_heads)]
    legend = [Text(f"{name.replace('_', '-')}: {MEANINGS[name]}", style=QUIET) for name in shown]
    return _section("Telling heads", table, *legend)


def _roles(head: HeadFacts) -> str:
    played = [r for r in head.roles if _plays(head, r.role)]
    if not head.roles:
        return "cross-attention" if head.part.startswith("cross") else "no pattern"
    sign = "" if head.reading == "mass" else " (signed)"
    return (
        ", ".join(f"{r.role.replace('_', '-')} {r.score:.2f} ({r.positions}){sign}" for r in played) or "none above 0.2"
    )


def _plays(head: HeadFacts, role: str) -> bool:
    return any(r.role == role and r.score is not None and abs(r.score) >= 0.2 for r in head.roles)


def _looks(found: Explanation) -> RenderableType:
    table = _table("", "", left=(0, 1))
    table.columns[1].no_wrap = False
    for top in found.top_heads:
        texts = found.source_tokens if top.key == "source_tokens" else found.tokens
        names = [f"{t.index}:{visible(t.text, 12)}" for t in texts or ()]
        table.add_row(top.label, _mixture(top, names))
    notes = []
    if any(top.basis == "norm" for top in found.top_heads):
        notes.append(Text("≈ rows do not sum to one: share of |weight| times the norm of the value", style=QUIET))
    return _section(f"Where they look from position {found.position} (shares of 1)", table, *notes)


def _mixture(top: TopHead, names: list[str]) -> Text:
    order = sorted(range(len(top.weights)), key=lambda i: -top.weights[i])
    shown = Text("≈ " if top.basis == "norm" else "")
    for i in order[:N_LOOKS]:
        if top.weights[i] >= 0.005:
            name = names[i] if i < len(names) else f"extra {i}"
            shown.append(name).append(f" {top.weights[i]:.2f}  ", style=POSITIVE)
    rest = sum(top.weights[i] for i in order if i not in order[:N_LOOKS] or top.weights[i] < 0.005)
    return shown.append(f"others {rest:.2f}", style=QUIET) if rest >= 0.005 else shown


def _token(candidate: Candidate) -> Text:
    return Text(visible(candidate.text))


def _percent(p: int | float) -> str:
    return f"{100 * p:.1f} %" if p >= 0.0005 or p == 0 else "< 0.1 %"


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def lines(result: Result, width: int = 100) -> Iterator[str]:
    """Return what `show` prints as plain lines, for logs and tests."""
    console = Console(width=width, color_system=None, record=False, file=None)
    with console.capture() as capture:
        console.print(tables(result))
    yield from capture.get().splitlines()
