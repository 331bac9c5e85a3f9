"""What a circuits report says in sentences: each with its evidence, and with what the other kind of evidence says.

A score names a head from a threshold on that is a habit of the field, not a law; the number stands beside the name.
"""

from collections.abc import Iterator, Sequence

from glassformer.analysis.circuits_report import Circuits, EdgeFacts, HeadCircuits

NAMED, COPIES, RAISES = 0.4, 0.5, 3.0
ROLE_WORDS = {
    "previous_token": "attends to the previous token",
    "prefix_matching": "attends to what followed earlier copies of the token (induction)",
    "duplicate_token": "attends to earlier copies of the token",
    "first_token": "rests on the first token",
    "current_token": "attends to its own token",
}


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
    return (own, "") if own >= behind else (behind, " as tokens reach it")


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
    others = (
        f" So is {', '.join(names[1:])}."
        if len(names) == 2
        else f" So are {', '.join(names[1:])}."
        if names[1:]
        else ""
    )
    times = best.copying_measured
    copies = "" if times is None else f", and it raises the token it finds {times:.1f} times as much as the average one"
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
    text += f" ({_names(direct)})" if direct else ""
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
    if len(report.importance) >= 2:
        parts = [f"{order.marginal:+.2f} through {order.name}" for order in report.importance[1:]]
        yield (
            f"The direct path alone brings the loss to {report.importance[0].loss:.2f} nats; paths are worth "
            f"{', '.join(parts)} (patterns and norms frozen)."
        )


def _names(heads: Sequence[HeadCircuits]) -> str:
    """Return the heads' labels; of many, how many there are."""
    return f"{len(heads)} heads" if len(heads) > 8 else ", ".join(head.label for head in heads)
