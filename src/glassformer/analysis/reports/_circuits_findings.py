"""What a circuits report says in sentences: each with its evidence, and with what the other kind of evidence says.

A score names a head from a threshold on that is a habit of the field, not a law; the number stands beside the name.
"""

from collections.abc import Iterator, Sequence

from glassformer.analysis.heads._roles import NAMED
from glassformer.analysis.reports._circuits_document import Circuits, EdgeFacts, HeadCircuits

COPIES, RAISES = 0.5, 3.0
SAME = 0.005  # ratios that print alike
MANY = 8  # heads that are counted and no longer named
ROLE_WORDS = {
    "previous_token": "attends to the previous token",
    "prefix_matching": "attends to what followed earlier copies of the token (induction)",
    "duplicate_token": "attends to earlier copies of the token",
    "first_token": "rests on the first token",
    "current_token": "attends to its own token",
}
PORTS = {"K": "keys", "Q": "queries", "V": "values"}


def verdict(head: HeadCircuits) -> tuple[str, ...]:
    """Say what a head was seen to do, and what its weights say of it."""
    said = []
    for role, words in ROLE_WORDS.items():
        score = head.roles.get(role)
        if score is not None and score >= NAMED and role not in ("first_token", "current_token"):
            said.append(f"{words}: {score:.2f}, measured{_from_weights(head, role)}")
    if head.copying_measured is not None and head.copying_measured >= RAISES:
        ratio, where = _ratio(head)
        said.append(
            f"copies: it raises the token it attends to {head.copying_measured:.1f} times as much as the average "
            "token, measured; "
            + (f"by weights, eigenvalue ratio {ratio:+.2f}{where}" if ratio >= COPIES else "eigenvalues do not show it")
        )
    return tuple(said)


def doubts(head: HeadCircuits) -> tuple[str, ...]:
    """Say what a head's weights would let it do that it was not seen to do."""
    ratio, where = _ratio(head)
    if ratio < COPIES or head.copying_measured is None or head.copying_measured >= RAISES:
        return ()
    rests = head.roles.get("first_token", 0.0) >= NAMED
    return (
        f"could copy by its weights (eigenvalue ratio {ratio:+.2f}{where}), but on repeated random tokens it raised "
        f"what it attended to {head.copying_measured:.1f} times as much as the average token"
        + (" and rested on the first" if rests else ""),
    )


def _ratio(head: HeadCircuits) -> tuple[float, str]:
    """Return the higher of the two eigenvalue ratios, and which it is."""
    own, behind = (-1.0 if x is None else x for x in (head.copying, head.copying_through))
    return (own, "") if own >= behind - SAME else (behind, " as tokens reach it")


def _from_weights(head: HeadCircuits, role: str) -> str:
    if role != "previous_token" or head.offset_score is None:
        return ""
    return f"; by weights position alone would give {head.offset_score:.2f} at offset {head.offset}"


def induction_heads(heads: Sequence[HeadCircuits]) -> list[HeadCircuits]:
    """Return the heads that were seen to match prefixes, best first."""
    scored = [head for head in heads if head.roles.get("prefix_matching", 0.0) >= NAMED]
    return sorted(scored, key=lambda head: -head.roles["prefix_matching"])


def findings(report: Circuits) -> tuple[str, ...]:
    """Return the main results in sentences."""
    parts = (_induction, _compositions, _copying, _trigrams, _importance)
    return tuple(line for part in parts for line in part(report))


def _induction(report: Circuits) -> Iterator[str]:
    own_outputs = report.model.output_vocab_size is not None
    if own_outputs:
        yield (
            f"Its {report.model.output_vocab_size} outputs are not the {report.model.vocab_size} tokens it reads: no "
            "head can be said to copy."
        )
    if not report.heads:
        table = "a table from token to output" if own_outputs else "a bigram table"
        yield f"There are no attention heads: the direct path, {table}, is all there is."
    scored = [head for head in report.heads if "prefix_matching" in head.roles]
    if not scored:
        return
    found = induction_heads(scored)
    if not found:
        best = max(scored, key=lambda head: head.roles["prefix_matching"])
        score = best.roles["prefix_matching"]
        yield f"No head matches prefixes (best: {best.label}, {score:.2f}): there is no induction head."
        return
    best, *others = found
    if own_outputs:
        yield (
            f"{best.label} matches prefixes: {best.roles['prefix_matching']:.2f} of its attention goes to what "
            f"followed earlier copies of the token.{_so_are(others, 'does', 'do')}"
        )
        return
    times = best.copying_measured
    copies = "" if times is None else f", and it raises the token it finds {times:.1f} times as much as the average one"
    score = best.roles["prefix_matching"]
    yield (
        f"{best.label} is an induction head: {score:.2f} of its attention goes to what followed earlier copies of the "
        f"token{copies}.{_so_are(others, 'is', 'are')}"
    )
    edge = _source(report, best)
    if edge is not None:
        yield _reading(report, edge)
    yield from _without(report, [best] + ([] if edge is None else [report[edge.earlier]]))


def _so_are(others: Sequence[HeadCircuits], one: str, several: str) -> str:
    return f" So {one if len(others) == 1 else several} {_names(others)}." if others else ""


def _source(report: Circuits, head: HeadCircuits) -> EdgeFacts | None:
    """Return the composition that an induction head works by: that of its circuit, else the strongest into its keys."""
    circuit = next((c for c in report.induction if c.induction == head.label), None)
    into = [edge for edge in report.edges if edge.later == head.label]
    if circuit is not None:
        into.sort(key=lambda edge: (edge.kind, edge.earlier) != (circuit.kind, circuit.previous))
        if into and (into[0].kind, into[0].earlier) == (circuit.kind, circuit.previous):
            return into[0]
    return max((edge for edge in into if edge.kind == "K"), key=lambda edge: edge.score, default=None)


def _reading(report: Circuits, edge: EdgeFacts) -> str:
    role, words = {"K": ("previous_token", "the previous token"), "Q": ("duplicate_token", "earlier copies")}[edge.kind]
    score = report[edge.earlier].roles.get(role)
    looks = "" if score is None else f" ({score:.2f} on {words})"
    rank = 1 + sum(other.score > edge.score for other in report.edges)
    place = "the strongest of all compositions" if rank == 1 else f"number {rank} of all compositions"
    return (
        f"Its {PORTS[edge.kind]} read what {edge.earlier}{looks} writes: {edge.kind}-composition {edge.score:.3f} "
        f"against {edge.baseline:.3f} for random matrices, {place}."
    )


def _without(report: Circuits, chain: Sequence[HeadCircuits]) -> Iterator[str]:
    """Say what removing the heads of the circuit does to in-context learning."""
    icl = report.ablated_icl
    if icl is None or any(head.ablation_icl is None for head in chain):
        return
    parts = [f"without {head.label} {icl + (head.ablation_icl or 0.0):+.3f}" for head in chain]
    both = report.together
    if both is not None and both.ablation_icl is not None:
        many = "both" if len(both.heads) == 2 else f"all {len(both.heads)}"
        parts.append(f"without {many} induction heads {icl + both.ablation_icl:+.3f}")
    yield f"The in-context-learning score is {icl:+.3f} nats on the text given; {', '.join(parts)}."


def _compositions(report: Circuits) -> Iterator[str]:
    """Name the strongest composition of each kind."""
    parts = []
    for kind, port in PORTS.items():
        found = max((e for e in report.edges if e.kind == kind), key=lambda e: e.score, default=None)
        if found is not None:
            parts.append(f"{found.later}'s {port} with {found.earlier} ({kind} {found.score:.3f})")
    if parts:
        yield f"Strongest compositions by weights: {', '.join(parts)}; random matrices give {_chance(report)}."


def _chance(report: Circuits) -> str:
    ends = [f"{end(edge.baseline for edge in report.edges):.3f}" for end in (min, max)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _trigrams(report: Circuits) -> Iterator[str]:
    rule = next(iter(report.trigrams), None)
    if rule is not None:
        yield (
            f"Strongest skip-trigram: {rule.source!r} … {rule.destination!r} -> {rule.out!r} by {rule.head} "
            f"(attention {rule.attention:.2f}, {rule.effect:+.1f} logits)."
        )


def _copying(report: Circuits) -> Iterator[str]:
    known = [h for h in report.heads if h.copying is not None]
    if not known:
        return
    direct = [h for h in known if (h.copying or 0.0) >= COPIES]
    behind = [h for h in known if h not in direct and (h.copying_through or 0.0) >= COPIES]
    text = f"{len(direct)} of {len(known)} heads copy tokens by the eigenvalues of their own circuit"
    text += f" ({_names(direct)})" if 0 < len(direct) <= MANY else ""
    if behind:
        text += f"; {_names(behind)} by those of tokens as earlier layers hand them on"
    yield text + "."
    idle = [h for h in [*direct, *behind] if h.copying_measured is not None and h.copying_measured < RAISES]
    if idle:
        yield (
            f"Of these, {_names(idle)} did not copy on repeated random tokens: what a head is "
            "given to copy, weights alone do not tell."
        )


def _importance(report: Circuits) -> Iterator[str]:
    if not report.importance:
        return
    direct, *others = report.importance
    parts = [f"{order.marginal:+.2f} through {order.name}" for order in others]
    yield f"The direct path alone brings the loss to {direct.loss:.2f} nats" + (
        f"; paths are worth {', '.join(parts)} (patterns and norms frozen)." if parts else "."
    )


def _names(heads: Sequence[HeadCircuits]) -> str:
    """Return the heads' labels; of many, how many there are."""
    return f"{len(heads)} heads" if len(heads) > MANY else ", ".join(head.label for head in heads)
