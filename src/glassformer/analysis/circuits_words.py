"""What a circuits report says in sentences: each with its evidence, and with what the other kind of evidence says.

A score names a head from a threshold on that is a habit of the field, not a law; the number stands beside the name.
"""

from collections.abc import Iterator

from glassformer.analysis.circuits_report import Circuits, EdgeFacts, HeadCircuits

NAMED, COPIES = 0.4, 0.5
ROLE_WORDS = {
    "previous_token": "attends to the previous token",
    "prefix_matching": "attends to what followed earlier copies of the token (induction)",
    "duplicate_token": "attends to earlier copies of the token",
    "first_token": "rests on the first token",
    "current_token": "attends to its own token",
}


def verdict(head: HeadCircuits) -> list[str]:
    """Say what a head does, with the evidence from weights and from activations, and where they disagree."""
    said = []
    for role, words in ROLE_WORDS.items():
        score = head.roles.get(role)
        if score is not None and score >= NAMED and role not in ("first_token", "current_token"):
            said.append(f"{words}: {score:.2f}, measured" + _from_weights(head, role))
    ratios = [x for x in (head.copying, head.copying_through) if x is not None]
    by_weights, behind = max(ratios, default=-1.0) >= COPIES, head.copying is None or head.copying < COPIES
    ratio = f"eigenvalues {max(ratios, default=0.0):+.2f}" + (" behind the first layer" if behind else "")
    measured = head.copying_measured
    if by_weights and measured is not None and measured >= COPIES:
        said.append(f"copies what it attends to: {measured:+.2f} measured, {ratio}")
    elif by_weights and measured is not None:
        where = [ROLE_WORDS[role] for role, x in head.roles.items() if x >= NAMED and role in ROLE_WORDS]
        said.append(
            f"could copy by its weights ({ratio}), yet did not on repeated tokens ({measured:+.2f})"
            + (f": it {where[0]}" if where else "")
        )
    elif measured is not None and measured >= COPIES:
        said.append(f"copies what it attends to: {measured:+.2f} measured, not shown by eigenvalues")
    return said


def _from_weights(head: HeadCircuits, role: str) -> str:
    if role != "previous_token" or head.offset_score is None:
        return ""
    return f"; by weights position alone would give {head.offset_score:.2f} at offset {head.offset}"


def findings(report: Circuits) -> tuple[str, ...]:
    """Return the main results in sentences."""
    return (*_induction(report), *_copying(report), *_importance(report))


def _induction(report: Circuits) -> Iterator[str]:
    scored = {h.label: h for h in report.heads if "prefix_matching" in h.roles}
    if not scored:
        return
    ranked = sorted(scored.values(), key=lambda h: -h.roles["prefix_matching"])
    best = ranked[0]
    score = best.roles["prefix_matching"]
    if score < NAMED:
        yield f"No head matches prefixes (best: {best.label}, {score:.2f}): there is no induction head."
        return
    names = [h.label for h in ranked if h.roles["prefix_matching"] >= NAMED]
    others = f" So is {', '.join(names[1:])}." if len(names) == 2 else f" So are {', '.join(names[1:])}." if names[1:] else ""
    copies = "" if best.copying_measured is None else f", and its copying score is {best.copying_measured:+.2f}"
    yield (
        f"{best.label} is an induction head: {score:.2f} of its attention goes to what followed earlier copies of the "
        f"token{copies}.{others}"
    )
    edge = _source(report, best)
    if edge is not None:
        earlier = scored.get(edge.earlier)
        looks = "" if earlier is None else f" ({earlier.roles.get('previous_token', 0.0):.2f} on the previous token)"
        rank = 1 + sum(other.score > edge.score for other in report.edges)
        place = "the strongest of all compositions" if rank == 1 else f"number {rank} of all compositions"
        yield (
            f"Its keys read what {edge.earlier}{looks} writes: K-composition {edge.score:.3f} against "
            f"{edge.baseline:.3f} for random matrices, {place}."
        )
    chain = [best] + ([] if edge is None else [report[edge.earlier]])
    if report.ablated_icl is not None and all(h.ablation_icl is not None for h in chain):
        parts = [f"without {h.label} to {report.ablated_icl + (h.ablation_icl or 0.0):+.3f}" for h in chain]
        yield (
            f"The in-context-learning score is {report.ablated_icl:+.3f} nats on the text given; it goes "
            f"{' and '.join(parts)}."
        )


def _source(report: Circuits, head: HeadCircuits) -> EdgeFacts | None:
    """Return the strongest composition into a head's keys."""
    into = [edge for edge in report.edges if edge.kind == "K" and edge.later == head.label]
    return max(into, key=lambda edge: edge.score, default=None)


def _copying(report: Circuits) -> Iterator[str]:
    known = [h for h in report.heads if h.copying is not None]
    if not known:
        return
    direct = [h for h in known if (h.copying or 0.0) >= COPIES]
    behind = [h for h in known if h not in direct and (h.copying_through or 0.0) >= COPIES]
    text = f"{len(direct)} of {len(known)} heads copy tokens by the eigenvalues of their own circuit"
    text += f" ({', '.join(h.label for h in direct)})" if 0 < len(direct) <= 8 else ""
    if behind:
        text += f"; {', '.join(h.label for h in behind)} once tokens have passed the first layer"
    yield text + "."
    idle = [h for h in [*direct, *behind] if h.copying_measured is not None and h.copying_measured < COPIES]
    if idle:
        yield f"Of these, {', '.join(h.label for h in idle)} did not copy when run: weights alone do not tell."


def _importance(report: Circuits) -> Iterator[str]:
    if len(report.importance) >= 2:
        parts = [f"{order.marginal:+.2f} through {order.name}" for order in report.importance[1:]]
        yield (
            f"The direct path alone brings the loss to {report.importance[0].loss:.2f} nats; paths are worth "
            f"{', '.join(parts)} (patterns and norms frozen)."
        )
