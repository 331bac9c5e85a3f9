"""A circuits report on the terminal: tables that fit 80 columns."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from glassformer.analysis.reports import Circuits
from glassformer.analysis.reports.circuits_document import HeadCircuits, StrongestPairs
from glassformer.render.terminal.tables import QUIET, STRONG, bar, context_of, section, table, tables, visible
from glassformer.words import listed, spoken, spoken_each

# a terminal shows the heads that stand out, the page all of them
N_HEADS, N_EDGES, N_PAIRS, N_RULES = 16, 10, 5, 10


@tables.register
def _(report: Circuits) -> RenderableType:
    model = report.model
    about = spoken(
        "{parameters:,} parameters, {layers} layers of {heads} heads, {mechanisms}, {context}",
        parameters=model.parameters, layers=model.n_layers, heads=model.n_heads,
        mechanisms=", ".join(model.mechanisms), context=context_of(model),
    )  # fmt: skip
    parts: list[RenderableType] = [
        Text.assemble((spoken("The circuits of {model}", model=model.name), STRONG), f"  {about}"),
        _bullets(report.findings),
        _heads(report),
    ]
    parts += [_verdicts(report)] if any(head.verdict or head.doubts for head in report.heads) else []
    parts += [_edges(report)] if report.edges else []
    parts += [_induction(report)] if report.induction else []
    parts += [_trigrams(report)] if report.trigrams else []
    parts += [_pairs(pairs) for pairs in report.pairs[:3]]
    parts += [_importance(report)] if report.importance else []
    parts += [_losses(report)] if report.losses else []
    if report.training is not None and report.training.change is not None:
        when = report.training.change
        parts.append(Text(spoken("In training, in-context learning set in fastest at {n:,} tokens.", n=when)))
    lacks = [(u.analysis, " ".join(u.why.split())) for u in report.unavailable]
    notes = [
        Text(spoken("Not available: {analysis}: {why}", analysis=analysis, why=why), style=QUIET)
        for analysis, why in lacks
    ]
    return Group(*[line for part in parts for line in (part, Text(""))], *notes)


def _heads(report: Circuits) -> RenderableType:
    seen = spoken_each("head", "prev", "prefix", "dup", "first", "curr", "copies")
    found = table(*seen, *spoken_each("OV", "behind", "offset", "loss", "ICL"))
    telling = sorted(report.heads, key=lambda h: (not h.verdict, -(h.ablation_loss or 0.0)))[:N_HEADS]
    shown = {head.label for head in telling}
    for head in report.heads:
        if head.label in shown:
            found.add_row(*_head_row(head), style=STRONG if head.verdict else "")
    rest = len(report.heads) - len(shown)
    legend = spoken(
        "Seen on repeated random tokens: prev prefix dup first curr, share of attention on the previous token, on what "
        "followed earlier copies, on earlier copies, on the first token, on itself; copies, raise of the attended "
        "token over the average one's. By weights: OV, copying by eigenvalues; behind, of tokens as they reach it; "
        "offset, where position alone would send it, and its share. Loss, ICL: change without the head, nats."
    ) + (spoken(" {n} more heads: --html or --json.", n=rest) if rest else "")
    return section(spoken("Heads by role"), found, Text(legend, style=QUIET), *_bandwidth(report))


def _bandwidth(report: Circuits) -> list[RenderableType]:
    reads = [h.read_dimensions for h in report.heads if h.read_dimensions is not None]
    writes = [h.write_dimensions for h in report.heads if h.write_dimensions is not None]
    if not reads or not writes:
        return []
    read, written = (spoken("{least} to {most}", least=f"{min(x):.0f}", most=f"{max(x):.0f}") for x in (reads, writes))
    said = spoken(
        "Bandwidth: heads read {read} and write {written} effective dimensions of {width}.",
        read=read, written=written, width=report.model.d_model,
    )  # fmt: skip
    return [Text(said)]


def _head_row(head: HeadCircuits) -> list[str]:
    roles = ("previous_token", "prefix_matching", "duplicate_token", "first_token", "current_token")
    times = "-" if head.copying_measured is None else f"{head.copying_measured:.1f}x"
    place = "-" if head.offset is None else f"{head.offset}: {_number(head.offset_score)}"
    return [
        head.label, *(_number(head.roles.get(role)) for role in roles), times, _number(head.copying, sign=True),
        _number(head.copying_through, sign=True), place, _number(head.ablation_loss, 3, sign=True),
        _number(head.ablation_icl, 3, sign=True),
    ]  # fmt: skip


def _verdicts(report: Circuits) -> RenderableType:
    lines = [
        spoken("{head}: {words}", head=head.label, words=listed((*head.verdict, *head.doubts)))
        for head in report.heads
        if head.verdict or head.doubts
    ]
    return section(spoken("What they do, with the evidence"), _bullets(lines))


def _bullets(lines: Iterable[str]) -> RenderableType:
    return Group(*(Padding(Text(f"- {spoken(line)}"), (0, 0, 0, 0)) for line in lines))


def _edges(report: Circuits) -> RenderableType:
    found = table(*spoken_each("edge", "kind", "score", "chance", ""), left=(0, 4))
    largest = max(edge.excess for edge in report.edges)
    for edge in report.edges[:N_EDGES]:
        chance = f"{edge.baseline:.3f} ± {edge.spread:.3f}"
        found.add_row(
            f"{edge.earlier} → {edge.later}", edge.kind, f"{edge.score:.3f}", chance, bar(edge.excess, largest)
        )
    return section(spoken("Largest compositions (norm of the product over the product of norms)"), found)


def _induction(report: Circuits) -> RenderableType:
    found = table(*spoken_each("circuit", "kind", "role", "match", "copy", "comp.", "role seen", "prefix seen"))
    for c in report.induction[:5]:
        numbers = (_number(x) for x in (c.role, c.match, c.copy, c.composition, c.role_seen, c.prefix_matching))
        found.add_row(f"{c.previous} → {c.induction}", c.kind, *numbers)
    legend = spoken(
        "role: attention one back by position alone (kind Q: to copies, as an eigenvalue ratio). match, copy: "
        "eigenvalue ratios. Seen: on repeated random tokens."
    )
    return section(spoken("Wired for induction, by weights alone"), found, Text(legend, style=QUIET))


def _trigrams(report: Circuits) -> RenderableType:
    found = table(*spoken_each("head", "source … destination → out", "attention", "logits"), left=(0, 1))
    for rule in report.trigrams[:N_RULES]:
        words = f"{visible(rule.source)} … {visible(rule.destination)} → {visible(rule.out)}"
        found.add_row(rule.head, words, f"{rule.attention:.2f}", f"{rule.effect:+.2f}")
    return section(spoken("Skip-trigrams of the first layer"), found)


def _pairs(pairs: StrongestPairs) -> RenderableType:
    found = table("", "", left=(0, 1))
    for name, rows in (("OV", pairs.ov), ("QK", pairs.qk)):
        words = "  ".join(f"{visible(p.first)} → {visible(p.second)} {p.value:+.1f}" for p in rows[:N_PAIRS])
        found.add_row(name, words or spoken("not defined here"))
    found.columns[1].no_wrap = False
    title = spoken("{head}: attending to … raises … (OV), a query for … looks for … (QK)", head=pairs.label)
    return section(title, found)


def _importance(report: Circuits) -> RenderableType:
    found = table(*spoken_each("paths through", "loss", "gain", "paths", ""), left=(0, 4))
    largest = max(abs(order.marginal) for order in report.importance)
    for order in report.importance:
        shown = bar(order.marginal, largest)
        found.add_row(spoken(order.name), f"{order.loss:.3f}", f"{order.marginal:+.3f}", f"{order.terms:,}", shown)
    title = spoken("Term importance: loss in nats with paths up to this order, patterns and norms frozen")
    return section(title, found)


def _losses(report: Circuits) -> RenderableType:
    found = table(spoken("position"), *(str(place) for place in _places(report.losses[0].positions)))
    for loss in report.losses:
        by_place = dict(zip(loss.positions, loss.loss))
        found.add_row(spoken("loss, nats"), *(_number(by_place[place]) for place in _places(loss.positions)))
    score = report.losses[0]
    interval = spoken(
        "In-context-learning score {icl:+.3f} nats (95 %: {low:+.3f} to {high:+.3f})",
        icl=score.icl, low=score.low, high=score.high,
    )  # fmt: skip
    return section(spoken("Loss by position"), found, Text(interval))


def _places(positions: tuple[int, ...]) -> list[int]:
    """Return about eight of the positions, each about twice the one before."""
    found, wanted = [], 1
    while wanted < positions[-1]:
        found.append(min(positions, key=lambda place: abs(place - wanted)))
        wanted *= 2
    return [*dict.fromkeys([*found, positions[-1]])]


def _number(x: float | None, digits: int = 2, *, sign: bool = False) -> str:
    if x is None:
        return "-"
    return (f"{x:+.{digits}f}" if sign else f"{x:.{digits}f}").replace("0.", ".", 1 if abs(x) < 1 else 0)
