"""An explanation on the terminal: everything `explain` found.

Attributions, lenses and head scores by themselves print as one table each.
"""

import itertools
import math
from collections.abc import Sequence

from rich.cells import set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from glassformer.analysis.attribution import DirectLogitAttribution
from glassformer.analysis.heads import HeadScores
from glassformer.analysis.heads.roles import ROLES
from glassformer.analysis.lens import Lens
from glassformer.analysis.reports import Explanation
from glassformer.analysis.reports.explanation import (
    Candidate,
    Contribution,
    HeadFacts,
    LensRow,
    Outcome,
    RoleScore,
    Token,
    TopHead,
)
from glassformer.data import Marks, Spelled
from glassformer.models.model import ANSWERS, LogitsOf
from glassformer.render.terminal.memories import memories
from glassformer.render.terminal.tables import (
    HELD,
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
from glassformer.words import sentence, spoken, spoken_each, spoken_label

N_COMPONENTS, N_LOOKS = 12, 5
# from nothing to the most
SHADES = "·░▒▓█"
READINGS = {"mass": sentence("mass"), "signed": sentence("signed")}
MEANINGS = {
    "previous_token": sentence("looks at the token before"),
    "induction": sentence("looks at what followed this token earlier"),
    "duplicate_token": sentence("looks at earlier copies of this token"),
    "first_token": sentence("rests on the first token"),
    "current_token": sentence("looks at its own token"),
}
# what a table is of, and what one speaks of otherwise
KINDS = {
    "decoder": sentence("decoder"),
    "encoder": sentence("encoder"),
    "encoder_decoder": sentence("encoder-decoder"),
}
STEPS = {"temperature": sentence("temperature"), "repetition_penalty": sentence("repetition-penalty")}
PLAYED = {
    "previous_token": sentence("previous-token"),
    "induction": sentence("induction"),
    "duplicate_token": sentence("duplicate-token"),
    "first_token": sentence("first-token"),
    "current_token": sentence("current-token"),
}
# what is asked about, and the way there; by what logits are of
ASKED = {
    "next_token": sentence("next"),
    "token": sentence("there"),
    "text_class": sentence("class"),
    "token_class": sentence("class"),
}
WAYS = {
    "next_token": sentence("From text to next token"),
    "token": sentence("From text to the token there"),
    "text_class": sentence("From text to its class"),
    "token_class": sentence("From text to the class of a token"),
}
TARGETS = {
    "logit": sentence("logit"),
    "difference": sentence("logit difference"),
    "raw logit": sentence("raw logit"),
    "raw difference": sentence("raw logit difference"),
    "slope": sentence("slope of the log-probability"),
}


@tables.register
def _(result: Explanation) -> RenderableType:
    rest = [_lens(result.lens, result.answer.text), _pipeline(result)]
    # classes are told, not drawn
    rest += [_sampling(result)] if _asks_token(result) else []
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
    raw, aim = "" if result.cap is None else "raw ", "logit" if result.against is None else "difference"
    norms = sentence("norms frozen") if result.norm == "frozen" else sentence("norm {norm}", norm=HELD[result.norm])
    title = spoken("Direct contributions to the {target}, {norms}", target=TARGETS[f"{raw}{aim}"], norms=norms)
    return _components(parts, title, float(result.total), top, result.norm)


def _over_places(result: DirectLogitAttribution, top: int) -> RenderableType:
    values = result.contributions.values.reshape(-1, len(result.components))
    size, mean, most = values.abs().mean(0), values.mean(0), values.abs().max(0).values
    grid = table(*spoken_each("component", "size", "", "mean", "largest"), left=(0, 2))
    order = size.argsort(descending=True).tolist()
    for i in order[:top]:
        shown = bar(float(mean[i].sign() * size[i]), float(size.max()))
        label = spoken_label(result.components[i].label)
        grid.add_row(label, f"{size[i]:.3f}", shown, f"{mean[i]:+.3f}", f"{most[i]:.3f}")
    rest = len(order) - top
    notes = [Text(spoken("{n} others are smaller", n=rest), style=QUIET)] if rest > 0 else []
    title = spoken(
        "Direct logit attribution over {n} places, norm {norm} (mean size in logits)",
        n=len(values),
        norm=HELD[result.norm],
    )
    return section(title, grid, *notes)


@tables.register
def _(result: Lens) -> RenderableType:
    grid = table(*spoken_each("row", "probability", "rank", "KL bits", "entropy bits"))
    columns = (result.probability, result.rank, result.kl_bits, result.entropy_bits)
    for label, p, rank, kl, entropy in zip(result.probability.labels("row"), *(c.values.tolist() for c in columns)):
        grid.add_row(spoken_label(str(label)), _percent(p), str(rank), f"{kl:.2f}", f"{entropy:.2f}")
    return section(spoken("Logit lens: token {token}", token=result.answer), grid)


@tables.register
def _(result: HeadScores) -> RenderableType:
    grid = table(spoken("head"), *(spoken(role.replace("_", " ")) for role in ROLES), spoken("reading"))
    for label, values, reading in zip(result.scores.labels("head"), result.scores.values.tolist(), result.readings):
        grid.add_row(str(label), *["-" if math.isnan(v) else f"{v:.2f}" for v in values], spoken(READINGS[reading]))
    return section(spoken("Head roles"), grid)


def _first(found: Explanation, top: int) -> list[RenderableType]:
    """Return what is read first: the answer, what adds to it and the heads that tell."""
    parts = [_header(found), _answers(found)]
    parts += [_translation(found)] if found.translation is not None else []
    parts += [_attribution(found, top), _heads(found), _looks(found)]
    return [*parts, memories(found)] if found.memories else parts


def _of(found: Explanation) -> LogitsOf:
    assert found.model.logits_of is not None, "what is explained has logits"
    return found.model.logits_of


def _asks_token(found: Explanation) -> bool:
    return _of(found) in ("next_token", "token")


def _apart(parts: Sequence[RenderableType]) -> RenderableType:
    return Group(*[line for part in parts for line in (part, Text(""))])


def _header(found: Explanation) -> RenderableType:
    model = found.model
    about = spoken(
        "{kind}, {parameters:,} parameters, {layers} layers of up to {heads} heads, {mechanisms}, {context}",
        kind=KINDS[model.kind], parameters=model.parameters, layers=model.n_layers, heads=model.n_heads,
        mechanisms=", ".join(model.mechanisms), context=context_of(model),
    )  # fmt: skip
    lines = [Text.assemble((model.name, STRONG), f"  {about}")]
    if found.source_tokens is not None:
        lines.append(_numbered(spoken("source"), found.source_tokens))
    # what reads both ways has read what comes after the position too
    read = found.tokens if model.kind == "encoder" else found.tokens[: found.position + 1]
    lines.append(_numbered(spoken("reads "), read))
    outcome = found.answer
    asked = (set_cell_size(spoken(ASKED[_of(found)]), 8), QUIET)
    lines.append(Text.assemble(asked, (visible(outcome.text), f"{STRONG} {POSITIVE}"), _fate(outcome)))
    if found.against is not None:
        other = found.against
        asked = (set_cell_size(spoken("against"), 8), QUIET)
        lines.append(Text.assemble(asked, (visible(other.text), f"{STRONG} {NEGATIVE}"), _fate(other)))
    return Group(*lines)


def _fate(outcome: Outcome) -> str:
    chance = _percent(outcome.probability)
    return spoken(
        "  {probability}, rank {rank}, logit {logit:.2f}", probability=chance, rank=outcome.rank, logit=outcome.logit
    )


def _numbered(name: str, tokens: Sequence[Token]) -> Text:
    unknown = tuple(token.index for token in tokens if token.unknown)
    first = [token.index for token in tokens if token.part == 0]
    lengths = [sum(1 for _ in itertools.takewhile(lambda t: t.part, tokens[i + 1 :])) for i in first]
    spelled = tuple(Spelled(i, i + 1 + n, tokens[i].character or "", True) for i, n in zip(first, lengths))
    return numbered(name, [token.text for token in tokens], Marks(unknown, spelled))


def _pipeline(found: Explanation) -> RenderableType:
    grid = table(*spoken_each("stage", "shape", "numbers"), left=(0, 1, 2))
    grid.columns[2].no_wrap = False
    for stage in found.pipeline:
        shape = " ".join(f"{spoken(axis)}={size}" for axis, size in stage.shape.items() if axis != "batch")
        numbers = spoken(", ").join(f"{spoken(name)} {_number(value)}" for name, value in stage.numbers.items())
        if stage.stage == "ids":
            numbers = " ".join(str(t.id) for t in found.tokens[:10]) + (" …" if len(found.tokens) > 10 else "")
        grid.add_row(spoken(stage.name), Text(shape, style=QUIET), numbers)
    title = spoken("{way} (norms at position {position})", way=WAYS[_of(found)], position=found.position)
    return section(title, grid)


def _answers(found: Explanation) -> RenderableType:
    answer = spoken("token" if _asks_token(found) else "class")
    grid = table(answer, *spoken_each("probability", "", "logit"), left=(0, 2))
    for candidate in found.next_token.candidates:
        shown = bar(candidate.probability, 1.0, 32)
        grid.add_row(_token(candidate), _percent(candidate.probability), shown, f"{candidate.logit:.2f}")
    bits = found.next_token.entropy_bits
    title = spoken("{answer} (entropy {bits:.2f} bits)", answer=ANSWERS[_of(found)], bits=bits)
    return section(title, grid)


def _sampling(found: Explanation) -> RenderableType:
    grid = table(*spoken_each("step", "setting", "left", "bits", "likeliest"), left=(0, 4))
    grid.columns[4].no_wrap = False
    for step in found.sampling.steps:
        setting = "" if step.setting is None else f"{step.setting:g}"
        likeliest = "  ".join(f"{visible(c.text, 10)} {_percent(c.probability)}" for c in step.candidates[:3])
        name = spoken(STEPS.get(step.name, step.name.replace("_", "-")))
        grid.add_row(name, setting, f"{step.kept:,}", f"{step.entropy_bits:.2f}", likeliest)
    draw, seed = found.sampling.draw, found.sampling.settings.get("seed")
    grid.add_row(
        spoken("draw"),
        spoken("seed {seed}", seed=seed),
        "1",
        "",
        f"{visible(draw.text, 10)} {_percent(draw.probability)}",
    )
    return section(spoken("Sampling, step by step (tokens left, entropy in bits)"), grid)


def _translation(found: Explanation) -> RenderableType:
    assert found.translation is not None
    origin = sentence("generated" if found.translation.generated else "given")
    grid = table(*spoken_each("step", "reads", "writes", "probability"), left=(1, 2))
    for step in found.translation.steps:
        grid.add_row(str(step.index), visible(step.input), visible(step.output), _percent(step.probability))
    shown = "".join(c if c.isprintable() else " " for c in found.translation.text)
    title = spoken("Translation ({origin}): {text}", origin=origin, text=shown)
    return section(title, Text(spoken("What the decoder reads and writes, step by step:")), grid)


def _lens(rows: tuple[LensRow, ...], answer: str) -> RenderableType:
    grid = table(*spoken_each("after", "likeliest", "probability", "rank", "KL bits"), left=(0, 1))
    for row in rows:
        likeliest = "  ".join(visible(c.text, 10) for c in row.candidates[:3])
        grid.add_row(
            spoken_label(row.label),
            likeliest,
            _percent(row.answer.probability),
            f"{row.answer.rank:,}",
            f"{row.kl_bits:.2f}",
        )
    title = spoken(
        "Logit lens: what the model would say if it stopped there (numbers for {answer})", answer=visible(answer)
    )
    return section(title, grid)


def _attribution(found: Explanation, top: int) -> RenderableType:
    asked = found.attribution.target
    target = TARGETS[asked if asked == "slope" else "raw logit" if asked.startswith("raw") else "logit"]
    answer = visible(found.answer.text)
    if found.against is None:
        title = spoken("What adds to the {target} of {answer}", target=target, answer=answer)
    else:
        other = visible(found.against.text)
        title = spoken(
            "What adds to the {target} of {answer} minus that of {other}", target=target, answer=answer, other=other
        )
    return _components(list(found.attribution.components), title, found.attribution.total, top)


def _components(
    parts: list[Contribution], title: str, total: float, top: int = N_COMPONENTS, norm: str = "frozen"
) -> RenderableType:
    grid = table(*spoken_each("component", "adds", ""), left=(0, 2))
    most = max((abs(p.contribution) for p in parts), default=0.0)
    chosen = sorted(parts, key=lambda p: -abs(p.contribution))[:top]
    for part in chosen:
        grid.add_row(spoken_label(part.label), f"{part.contribution:+.3f}", bar(part.contribution, most))
    rest = len(parts) - len(chosen)
    if rest:
        added = sum(p.contribution for p in parts) - sum(p.contribution for p in chosen)
        grid.add_row(spoken("{n} others", n=rest), f"{added:+.3f}", bar(added, max(most, abs(added))), style=QUIET)
    grid.add_row(
        spoken("sum"),
        f"{sum(p.contribution for p in parts):+.3f}",
        Text(
            spoken("= {n:+.3f} in the model" if norm == "frozen" else "of {n:+.3f} in the model", n=total), style=QUIET
        ),
        style=STRONG,
    )
    return section(title, grid)


def _heads(found: Explanation) -> RenderableType:
    heads = spoken_each("head", "adds", "roles on this text (score, positions; on random tokens)")
    grid = table(*heads, left=(0, 2))
    grid.columns[2].no_wrap = False
    facts = {head.label: head for head in found.heads}
    for top in found.top_heads:
        grid.add_row(spoken_label(top.label), f"{top.contribution:+.3f}", _roles(facts[top.label]))
    shown = [name for name in ROLES if any(_plays(facts[top.label], name) for top in found.top_heads)]
    legend = [
        Text(spoken("{role}: {meaning}", role=PLAYED[name], meaning=MEANINGS[name]), style=QUIET) for name in shown
    ]
    return section(spoken("Telling heads"), grid, *legend)


def _roles(head: HeadFacts) -> str:
    played = [r for r in head.roles if _plays(head, r.role)]
    if not head.roles:
        if head.reading is not None and not head.crosses:
            return spoken("roles go by tokens")
        return spoken("cross-attention" if head.crosses else "no pattern")
    sign = "" if head.reading == "mass" else spoken(" (signed)")
    return spoken(", ").join(f"{_role(r)}{sign}" for r in played) or spoken("none above 0.2")


def _role(found: RoleScore) -> str:
    """Return a role as a head plays it here: it is named by one that it plays in general, and else resembles one."""
    name, wide = spoken(PLAYED[found.role]), "" if found.model_wide is None else f"; {found.model_wide:.2f}"
    name = spoken("resembles {role}", role=name) if found.named is False else name
    return f"{name} {found.score:.2f} ({found.positions}{wide})"


def _plays(head: HeadFacts, role: str) -> bool:
    return any(r.role == role and r.score is not None and abs(r.score) >= 0.2 for r in head.roles)


def _looks(found: Explanation) -> RenderableType:
    grid = table("", "", left=(0, 1))
    grid.columns[1].no_wrap = False
    for top in found.top_heads:
        texts = found.source_tokens if top.key == "source_tokens" else found.tokens
        names = [f"{t.index}:{visible(t.text, 12)}" for t in texts or ()]
        grid.add_row(spoken_label(top.label), _mixture(top, names))
    notes = []
    if any(top.basis == "norm" for top in found.top_heads):
        about = spoken("≈ rows do not sum to one: share of |weight| times the norm of the value")
        notes.append(Text(about, style=QUIET))
    title = spoken("Where they look from position {position} (shares of 1)", position=found.position)
    pictures = [] if found.grid is None else [_on_image(found.top_heads, found.grid)]
    return section(title, grid, *pictures, *notes)


def _on_image(tops: Sequence[TopHead], grid: tuple[int, int, int]) -> Text:
    """Return the rows of some heads as pictures side by side: the fuller a patch's mark, the more it is looked at.

    Args:
        tops: The heads.
        grid: Rows and columns of patches, and how many tokens stand before them.
    """
    rows, columns, outside = grid
    width = 2 * columns
    shown = [top for top in tops if len(top.weights) == outside + rows * columns]
    lines = [[f"{spoken_label(top.label):<{width}}" for top in shown]]
    for row in range(rows):
        first = outside + row * columns
        shares = (
            [top.weights[i] / max(max(top.weights), 1e-9) for i in range(first, first + columns)] for top in shown
        )
        lines.append(["".join(2 * SHADES[_shade(share)] for share in of_row).ljust(width) for of_row in shares])
    return Text("\n".join("   ".join(line) for line in lines))


def _shade(share: float) -> int:
    return min(len(SHADES) - 1, max(0, round(share * (len(SHADES) - 1))))


def _mixture(top: TopHead, names: list[str]) -> Text:
    order = sorted(range(len(top.weights)), key=lambda i: -top.weights[i])
    shown = Text("≈ " if top.basis == "norm" else "")
    for i in order[:N_LOOKS]:
        if top.weights[i] >= 0.005:
            name = names[i] if i < len(names) else spoken("extra {n}", n=i)
            shown.append(name).append(f" {top.weights[i]:.2f}  ", style=POSITIVE)
    rest = sum(top.weights[i] for i in order if i not in order[:N_LOOKS] or top.weights[i] < 0.005)
    return shown.append(spoken("others {share:.2f}", share=rest), style=QUIET) if rest >= 0.005 else shown


def _token(candidate: Candidate) -> Text:
    return Text(visible(candidate.text))


def _percent(p: int | float) -> str:
    return f"{100 * p:.1f} %" if p >= 0.0005 or p == 0 else "< 0.1 %"


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
