"""An explanation on the terminal: everything `explain` found.

Attributions, lenses and head scores by themselves print as one table each.
"""

import itertools
import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from glassformer.analysis.attribution import DirectLogitAttribution
from glassformer.analysis.heads import HeadScores
from glassformer.analysis.heads._roles import ROLES
from glassformer.analysis.lens import Lens
from glassformer.analysis.reports import Explanation
from glassformer.analysis.reports._explanation import (
    Candidate,
    Contribution,
    HeadFacts,
    LensRow,
    RoleScore,
    Token,
    TopHead,
)
from glassformer.data import Marks, Spelled
from glassformer.render.terminal.tables import (
    NEGATIVE,
    POSITIVE,
    QUIET,
    STRONG,
    bar,
    context_of,
    largest,
    numbered,
    section,
    table,
    tables,
    visible,
)

N_COMPONENTS, N_LOOKS = 12, 5
MEANINGS = {
    "previous_token": "looks at the token before",
    "induction": "looks at what followed this token earlier",
    "duplicate_token": "looks at earlier copies of this token",
    "first_token": "rests on the first token",
    "current_token": "looks at its own token",
}


@tables.register
def _(result: Explanation) -> RenderableType:
    rest = [_lens(result.lens, result.answer.text), _pipeline(result), _sampling(result)]
    return _apart([*_first(result, N_COMPONENTS), *rest])


@largest.register
def _(result: Explanation, top: int = N_COMPONENTS) -> RenderableType:
    return _apart(_first(result, top))


@largest.register
def _(result: DirectLogitAttribution, top: int = N_COMPONENTS) -> RenderableType:
    if result.total.axes:
        return _over_places(result, top)
    parts = [
        Contribution(c.label, c.kind, c.layer, c.part, c.head, value)
        for c, value in zip(result.components, result.contributions.values.tolist())
    ]
    raw = "" if result.cap is None else "raw "
    what = f"{raw}logit" if result.against is None else f"{raw}logit difference"
    norms = "norms frozen" if result.norm == "frozen" else f"norm {result.norm}"
    return _components(parts, f"Direct contributions to the {what}, {norms}", float(result.total), top, result.norm)


def _over_places(result: DirectLogitAttribution, top: int) -> RenderableType:
    values = result.contributions.values.reshape(-1, len(result.components))
    size, mean, most = values.abs().mean(0), values.mean(0), values.abs().max(0).values
    grid = table("component", "size", "", "mean", "largest", left=(0, 2))
    order = size.argsort(descending=True).tolist()
    for i in order[:top]:
        shown = bar(float(mean[i].sign() * size[i]), float(size.max()))
        grid.add_row(result.components[i].label, f"{size[i]:.3f}", shown, f"{mean[i]:+.3f}", f"{most[i]:.3f}")
    rest = len(order) - top
    notes = [Text(f"{rest} others are smaller", style=QUIET)] if rest > 0 else []
    title = f"Direct logit attribution over {len(values)} places, norm {result.norm} (mean size in logits)"
    return section(title, grid, *notes)


@tables.register
def _(result: Lens) -> RenderableType:
    grid = table("row", "probability", "rank", "KL bits", "entropy bits")
    columns = (result.probability, result.rank, result.kl_bits, result.entropy_bits)
    for label, p, rank, kl, entropy in zip(result.probability.labels("row"), *(c.values.tolist() for c in columns)):
        grid.add_row(str(label), _percent(p), str(rank), f"{kl:.2f}", f"{entropy:.2f}")
    return section(f"Logit lens: token {result.answer}", grid)


@tables.register
def _(result: HeadScores) -> RenderableType:
    grid = table("head", *[role.replace("_", " ") for role in ROLES], "reading")
    for label, values, reading in zip(result.scores.labels("head"), result.scores.values.tolist(), result.readings):
        grid.add_row(str(label), *["-" if math.isnan(v) else f"{v:.2f}" for v in values], reading)
    return section("Head roles", grid)


def _first(found: Explanation, top: int) -> list[RenderableType]:
    """Return what is read first: the answer, what adds to it and the heads that tell."""
    parts = [_header(found), _next_token(found)]
    parts += [_translation(found)] if found.translation is not None else []
    return [*parts, _attribution(found, top), _heads(found), _looks(found)]


def _apart(parts: Sequence[RenderableType]) -> RenderableType:
    return Group(*[line for part in parts for line in (part, Text(""))])


def _header(found: Explanation) -> RenderableType:
    model = found.model
    size = f"{model.parameters:,} parameters, {model.n_layers} layers of up to {model.n_heads} heads"
    kind, mechanisms = model.kind.replace("_", "-"), ", ".join(model.mechanisms)
    lines = [Text.assemble((model.name, STRONG), f"  {kind}, {size}, {mechanisms}, {context_of(model)}")]
    if found.source_tokens is not None:
        lines.append(_numbered("source", found.source_tokens))
    # what reads both ways has read what comes after the position too
    encoder = model.kind == "encoder"
    read = found.tokens if encoder else found.tokens[: found.position + 1]
    lines.append(_numbered("reads ", read))
    outcome = found.answer
    fate = f"  {_percent(outcome.probability)}, rank {outcome.rank}, logit {outcome.logit:.2f}"
    asked = (f"{'there' if encoder else 'next':8}", QUIET)
    lines.append(Text.assemble(asked, (visible(outcome.text), f"{STRONG} {POSITIVE}"), fate))
    if found.against is not None:
        other = found.against
        fate = f"  {_percent(other.probability)}, rank {other.rank}, logit {other.logit:.2f}"
        lines.append(Text.assemble(("against ", QUIET), (visible(other.text), f"{STRONG} {NEGATIVE}"), fate))
    return Group(*lines)


def _numbered(name: str, tokens: Sequence[Token]) -> Text:
    unknown = tuple(token.index for token in tokens if token.unknown)
    first = [token.index for token in tokens if token.part == 0]
    lengths = [sum(1 for _ in itertools.takewhile(lambda t: t.part, tokens[i + 1 :])) for i in first]
    spelled = tuple(Spelled(i, i + 1 + n, tokens[i].character or "", True) for i, n in zip(first, lengths))
    return numbered(name, [token.text for token in tokens], Marks(unknown, spelled))


def _asked(found: Explanation) -> str:
    return "the token there" if found.model.kind == "encoder" else "next token"


def _pipeline(found: Explanation) -> RenderableType:
    grid = table("stage", "shape", "numbers", left=(0, 1, 2))
    grid.columns[2].no_wrap = False
    for stage in found.pipeline:
        shape = " ".join(f"{axis}={size}" for axis, size in stage.shape.items() if axis != "batch")
        numbers = ", ".join(f"{name} {_number(value)}" for name, value in stage.numbers.items())
        if stage.stage == "ids":
            numbers = " ".join(str(t.id) for t in found.tokens[:10]) + (" …" if len(found.tokens) > 10 else "")
        grid.add_row(stage.name, Text(shape, style=QUIET), numbers)
    return section(f"From text to {_asked(found)} (norms at position {found.position})", grid)


def _next_token(found: Explanation) -> RenderableType:
    grid = table("token", "probability", "", "logit", left=(0, 2))
    for candidate in found.next_token.candidates:
        shown = bar(candidate.probability, 1.0, 32)
        grid.add_row(_token(candidate), _percent(candidate.probability), shown, f"{candidate.logit:.2f}")
    return section(f"{_asked(found).capitalize()} (entropy {found.next_token.entropy_bits:.2f} bits)", grid)


def _sampling(found: Explanation) -> RenderableType:
    grid = table("step", "setting", "left", "bits", "likeliest", left=(0, 4))
    grid.columns[4].no_wrap = False
    for step in found.sampling.steps:
        setting = "" if step.setting is None else f"{step.setting:g}"
        likeliest = "  ".join(f"{visible(c.text, 10)} {_percent(c.probability)}" for c in step.candidates[:3])
        name = step.name.replace("_", "-")
        grid.add_row(name, setting, f"{step.kept:,}", f"{step.entropy_bits:.2f}", likeliest)
    draw, seed = found.sampling.draw, found.sampling.settings.get("seed")
    grid.add_row("draw", f"seed {seed}", "1", "", f"{visible(draw.text, 10)} {_percent(draw.probability)}")
    return section("Sampling, step by step (tokens left, entropy in bits)", grid)


def _translation(found: Explanation) -> RenderableType:
    assert found.translation is not None
    origin = "generated" if found.translation.generated else "given"
    grid = table("step", "reads", "writes", "probability", left=(1, 2))
    for step in found.translation.steps:
        grid.add_row(str(step.index), visible(step.input), visible(step.output), _percent(step.probability))
    shown = "".join(c if c.isprintable() else " " for c in found.translation.text)
    return section(f"Translation ({origin}): {shown}", Text("What the decoder reads and writes, step by step:"), grid)


def _lens(rows: tuple[LensRow, ...], answer: str) -> RenderableType:
    grid = table("after", "likeliest", "probability", "rank", "KL bits", left=(0, 1))
    for row in rows:
        likeliest = "  ".join(visible(c.text, 10) for c in row.candidates[:3])
        grid.add_row(
            row.label, likeliest, _percent(row.answer.probability), f"{row.answer.rank:,}", f"{row.kl_bits:.2f}"
        )
    return section(f"Logit lens: what the model would say if it stopped there (numbers for {visible(answer)})", grid)


def _attribution(found: Explanation, top: int) -> RenderableType:
    raw = "raw " if found.attribution.target.startswith("raw") else ""
    what = f"the {raw}logit of {visible(found.answer.text)}"
    if found.against is not None:
        what += f" minus that of {visible(found.against.text)}"
    return _components(list(found.attribution.components), f"What adds to {what}", found.attribution.total, top)


def _components(
    parts: list[Contribution], title: str, total: float, top: int = N_COMPONENTS, norm: str = "frozen"
) -> RenderableType:
    grid = table("component", "adds", "", left=(0, 2))
    most = max((abs(p.contribution) for p in parts), default=0.0)
    chosen = sorted(parts, key=lambda p: -abs(p.contribution))[:top]
    for part in chosen:
        grid.add_row(part.label, f"{part.contribution:+.3f}", bar(part.contribution, most))
    rest = len(parts) - len(chosen)
    if rest:
        added = sum(p.contribution for p in parts) - sum(p.contribution for p in chosen)
        grid.add_row(f"{rest} others", f"{added:+.3f}", bar(added, max(most, abs(added))), style=QUIET)
    grid.add_row(
        "sum",
        f"{sum(p.contribution for p in parts):+.3f}",
        Text(f"{'=' if norm == 'frozen' else 'of'} {total:+.3f} in the model", style=QUIET),
        style=STRONG,
    )
    return section(title, grid)


def _heads(found: Explanation) -> RenderableType:
    grid = table("head", "adds", "roles on this text (score, positions; on random tokens)", left=(0, 2))
    grid.columns[2].no_wrap = False
    facts = {head.label: head for head in found.heads}
    for top in found.top_heads:
        grid.add_row(top.label, f"{top.contribution:+.3f}", _roles(facts[top.label]))
    shown = [name for name in ROLES if any(_plays(facts[top.label], name) for top in found.top_heads)]
    legend = [Text(f"{name.replace('_', '-')}: {MEANINGS[name]}", style=QUIET) for name in shown]
    return section("Telling heads", grid, *legend)


def _roles(head: HeadFacts) -> str:
    played = [r for r in head.roles if _plays(head, r.role)]
    if not head.roles:
        return "cross-attention" if head.crosses else "no pattern"
    sign = "" if head.reading == "mass" else " (signed)"
    return ", ".join(f"{_role(r)}{sign}" for r in played) or "none above 0.2"


def _role(found: RoleScore) -> str:
    """Return a role as a head plays it here: it is named by one that it plays in general, and else resembles one."""
    name = found.role.replace("_", "-")
    wide = "" if found.model_wide is None else f"; {found.model_wide:.2f}"
    return f"{'resembles ' if found.named is False else ''}{name} {found.score:.2f} ({found.positions}{wide})"


def _plays(head: HeadFacts, role: str) -> bool:
    return any(r.role == role and r.score is not None and abs(r.score) >= 0.2 for r in head.roles)


def _looks(found: Explanation) -> RenderableType:
    grid = table("", "", left=(0, 1))
    grid.columns[1].no_wrap = False
    for top in found.top_heads:
        texts = found.source_tokens if top.key == "source_tokens" else found.tokens
        names = [f"{t.index}:{visible(t.text, 12)}" for t in texts or ()]
        grid.add_row(top.label, _mixture(top, names))
    notes = []
    if any(top.basis == "norm" for top in found.top_heads):
        notes.append(Text("≈ rows do not sum to one: share of |weight| times the norm of the value", style=QUIET))
    return section(f"Where they look from position {found.position} (shares of 1)", grid, *notes)


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
