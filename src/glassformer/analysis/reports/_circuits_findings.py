"""What a circuits report says in sentences: each with its evidence, and with what the other kind of evidence says.

A score names a head from a threshold on that is a habit of the field, not a law; the number stands beside the name.
"""

import functools
from collections.abc import Iterator, Sequence

from glassformer.analysis.heads.roles import NAMED
from glassformer.analysis.reports.circuits_document import Circuits, EdgeFacts, HeadCircuits, TrigramFacts
from glassformer.words import Sentence, listed, sentence

COPIES, RAISES = 0.5, 3.0
SAME = 0.005  # ratios that print alike
MANY = 8  # heads that are counted and no longer named
ROLE_WORDS = {
    "previous_token": sentence("attends to the previous token"),
    "prefix_matching": sentence("attends to what followed earlier copies of the token (induction)"),
    "duplicate_token": sentence("attends to earlier copies of the token"),
    "first_token": sentence("rests on the first token"),
    "current_token": sentence("attends to its own token"),
}
PORTS = {"K": sentence("keys"), "Q": sentence("queries"), "V": sentence("values")}


def copies_from(n: int | None) -> float:
    """Return the eigenvalue ratio from which a circuit of n eigenvalues copies: one that chance hardly ever makes.

    Eigenvalues of random matrices lie around zero. Their sum has a deviation of 1.5 / n of the sum of their sizes,
    and of up to 1.9 / n where the vocabulary is no larger than the width; four of these are chance's.
    """
    return COPIES if n is None else max(COPIES, 7.5 / max(n, 1))


def verdict(head: HeadCircuits, copies: float) -> tuple[Sentence, ...]:
    """Say what a head was seen to do, and what its weights say of it."""
    said: list[Sentence] = []
    for role, words in ROLE_WORDS.items():
        score = head.roles.get(role)
        if score is not None and score >= NAMED and role not in ("first_token", "current_token"):
            weights = _from_weights(head, role)
            said.append(sentence("{words}: {score:.2f}, measured{weights}", words=words, score=score, weights=weights))
    if head.copying_measured is not None and head.copying_measured >= RAISES:
        ratio, where = _ratio(head)
        weights = sentence("by weights, eigenvalue ratio {ratio:+.2f}{where}", ratio=ratio, where=where)
        said.append(
            sentence(
                "copies: it raises the token it attends to {times:.1f} times as much as the average token, measured; "
                "{weights}",
                times=head.copying_measured,
                weights=weights if ratio >= copies else sentence("eigenvalues do not show it"),
            )
        )
    return tuple(said)


def doubts(head: HeadCircuits, copies: float) -> tuple[Sentence, ...]:
    """Say what a head's weights would let it do that it was not seen to do."""
    ratio, where = _ratio(head)
    if ratio < copies or head.copying_measured is None or head.copying_measured >= RAISES:
        return ()
    rests = head.roles.get("first_token", 0.0) >= NAMED
    return (
        sentence(
            "could copy by its weights (eigenvalue ratio {ratio:+.2f}{where}), but on repeated random tokens it raised "
            "what it attended to {times:.1f} times as much as the average token{rests}",
            ratio=ratio, where=where, times=head.copying_measured,
            rests=sentence(" and rested on the first" if rests else ""),
        ),
    )  # fmt: skip


def _ratio(head: HeadCircuits) -> tuple[float, str]:
    """Return the higher of the two eigenvalue ratios, and which it is."""
    own, behind = (-1.0 if x is None else x for x in (head.copying, head.copying_through))
    return (own, "") if own >= behind - SAME else (behind, sentence(" as tokens reach it"))


def _from_weights(head: HeadCircuits, role: str) -> str:
    if role != "previous_token" or head.offset_score is None:
        return ""
    return sentence(
        "; by weights position alone would give {score:.2f} at offset {offset}",
        score=head.offset_score, offset=head.offset,
    )  # fmt: skip


def induction_heads(heads: Sequence[HeadCircuits]) -> list[HeadCircuits]:
    """The heads that were seen to match prefixes, best first."""
    scored = [head for head in heads if head.roles.get("prefix_matching", 0.0) >= NAMED]
    return sorted(scored, key=lambda head: -head.roles["prefix_matching"])


def findings(report: Circuits, chance: float) -> tuple[Sentence, ...]:
    """Return the main results in sentences; `chance` is what the largest skip-trigram adds with weights drawn anew."""
    trigrams = functools.partial(_trigrams, chance=chance)
    parts = (_induction, _compositions, _copying, trigrams, _importance)
    return tuple(line for part in parts for line in part(report))


def _induction(report: Circuits) -> Iterator[Sentence]:
    own_outputs = report.model.output_vocab_size is not None
    if own_outputs:
        yield sentence(
            "Its {outputs} outputs are not the {tokens} tokens it reads: no head can be said to copy.",
            outputs=report.model.output_vocab_size, tokens=report.model.vocab_size,
        )  # fmt: skip
    if not report.heads:
        table = sentence("a table from token to output" if own_outputs else "a bigram table")
        yield sentence("There are no attention heads: the direct path, {table}, is all there is.", table=table)
    scored = [head for head in report.heads if "prefix_matching" in head.roles]
    if not scored:
        return
    found = induction_heads(scored)
    if not found:
        best = max(scored, key=lambda head: head.roles["prefix_matching"])
        score = best.roles["prefix_matching"]
        yield sentence(
            "No head matches prefixes (best: {head}, {score:.2f}): there is no induction head.",
            head=best.label, score=score,
        )  # fmt: skip
        return
    best, *others = found
    names, one = _names(others), len(others) == 1
    if own_outputs:
        so = sentence(" So does {heads}." if one else " So do {heads}.", heads=names) if others else ""
        yield sentence(
            "{head} matches prefixes: {score:.2f} of its attention goes to what followed earlier copies of the "
            "token.{others}",
            head=best.label, score=best.roles["prefix_matching"], others=so,
        )  # fmt: skip
        return
    times, score = best.copying_measured, best.roles["prefix_matching"]
    copies = "" if times is None else sentence(
        ", and it raises the token it finds {times:.1f} times as much as the average one", times=times
    )  # fmt: skip
    yield sentence(
        "{head} is an induction head: {score:.2f} of its attention goes to what followed earlier copies of the "
        "token{copies}.{others}",
        head=best.label, score=score, copies=copies,
        others=sentence(" So is {heads}." if one else " So are {heads}.", heads=names) if others else "",
    )  # fmt: skip
    edge = _source(report, best)
    if edge is not None:
        yield _reading(report, edge)
    yield from _without(report, [best] + ([] if edge is None else [report[edge.earlier]]))


def _source(report: Circuits, head: HeadCircuits) -> EdgeFacts | None:
    """Return the composition that an induction head works by: that of its circuit, else the strongest into its keys."""
    circuit = next((c for c in report.induction if c.induction == head.label), None)
    into = [edge for edge in report.edges if edge.later == head.label]
    if circuit is not None:
        into.sort(key=lambda edge: (edge.kind, edge.earlier) != (circuit.kind, circuit.previous))
        if into and (into[0].kind, into[0].earlier) == (circuit.kind, circuit.previous):
            return into[0]
    return max((edge for edge in into if edge.kind == "K"), key=lambda edge: edge.score, default=None)


def _reading(report: Circuits, edge: EdgeFacts) -> Sentence:
    previous, copies = sentence("the previous token"), sentence("earlier copies")
    role, words = {"K": ("previous_token", previous), "Q": ("duplicate_token", copies)}[edge.kind]
    score = report[edge.earlier].roles.get(role)
    looks = "" if score is None else sentence(" ({score:.2f} on {words})", score=score, words=words)
    rank = 1 + sum(other.score > edge.score for other in report.edges)
    strongest = sentence("the strongest of all compositions")
    return sentence(
        "Its {port} read what {head}{looks} writes: {kind}-composition {score:.3f} against {baseline:.3f} for random "
        "matrices, {place}.",
        port=PORTS[edge.kind], head=edge.earlier, looks=looks, kind=edge.kind, score=edge.score, baseline=edge.baseline,
        place=strongest if rank == 1 else sentence("number {rank} of all compositions", rank=rank),
    )  # fmt: skip


def _without(report: Circuits, chain: Sequence[HeadCircuits]) -> Iterator[Sentence]:
    """Say what removing the heads of the circuit does to in-context learning."""
    icl = report.ablated_icl
    if icl is None or any(head.ablation_icl is None for head in chain):
        return
    parts = [
        sentence("without {head} {icl:+.3f}", head=head.label, icl=icl + (head.ablation_icl or 0.0)) for head in chain
    ]
    both = report.together
    if both is not None and both.ablation_icl is not None:
        left, n = icl + both.ablation_icl, len(both.heads)
        two = sentence("without both induction heads {icl:+.3f}", icl=left)
        parts.append(two if n == 2 else sentence("without all {n} induction heads {icl:+.3f}", n=n, icl=left))
    yield sentence(
        "The in-context-learning score is {icl:+.3f} nats on the text given; {parts}.",
        icl=icl, parts=listed(parts, commas=True),
    )  # fmt: skip


def _compositions(report: Circuits) -> Iterator[Sentence]:
    """Name the largest composition of each kind, beside what random matrices give: a number, and no finding."""
    parts = []
    for kind, port in PORTS.items():
        found = max((e for e in report.edges if e.kind == kind), key=lambda e: e.score, default=None)
        if found is not None:
            parts.append(
                sentence(
                    "{later}'s {port} with {earlier} ({kind} {score:.3f})",
                    later=found.later, port=port, earlier=found.earlier, kind=kind, score=found.score,
                )
            )  # fmt: skip
    if parts:
        yield sentence(
            "Largest compositions by weights: {parts}; random matrices give {chance}.",
            parts=listed(parts, commas=True), chance=_chance(report),
        )  # fmt: skip


def _chance(report: Circuits) -> str:
    least, most = (f"{end(edge.baseline for edge in report.edges):.3f}" for end in (min, max))
    return least if least == most else sentence("{least} to {most}", least=least, most=most)


def stands_out(rule: TrigramFacts, chance: float) -> bool:
    """Whether a skip-trigram adds more than twice what the largest does with weights drawn anew."""
    return rule.score > 2 * chance


def _trigrams(report: Circuits, chance: float) -> Iterator[Sentence]:
    rule = next(iter(report.trigrams), None)
    if rule is None:
        return
    if not stands_out(rule, chance):
        yield sentence(
            "No skip-trigram stands out: the largest adds {score:.2f}, with weights drawn anew {chance:.2f}.",
            score=rule.score, chance=chance,
        )  # fmt: skip
        return
    yield sentence(
        "Strongest skip-trigram: {source!r} … {destination!r} -> {out!r} by {head} (attention {attention:.2f}, "
        "{effect:+.1f} logits); with weights drawn anew the largest adds {chance:.2f}.",
        chance=chance, source=rule.source, destination=rule.destination, out=rule.out, head=rule.head,
        attention=rule.attention, effect=rule.effect,
    )  # fmt: skip


def _copying(report: Circuits) -> Iterator[Sentence]:
    known = [h for h in report.heads if h.copying is not None]
    if not known:
        return
    least = {spectrum.label: copies_from(len(spectrum.values)) for spectrum in report.eigenvalues}
    direct = [h for h in known if (h.copying or 0.0) >= least.get(h.label, COPIES)]
    behind = [h for h in known if h not in direct and (h.copying_through or 0.0) >= least.get(h.label, COPIES)]
    text = sentence(
        "{n} of {all} heads copy tokens by the eigenvalues of their own circuit", n=len(direct), all=len(known)
    )
    if 0 < len(direct) <= MANY:
        text = sentence("{heads} ({names})", heads=text, names=_names(direct))
    if behind:
        through = sentence("{heads} by those of tokens as earlier layers hand them on", heads=_names(behind))
        text = listed([text, through])
    yield sentence("{parts}.", parts=text)
    idle = [h for h in [*direct, *behind] if h.copying_measured is not None and h.copying_measured < RAISES]
    if idle:
        yield sentence(
            "Of these, {heads} did not copy on repeated random tokens: what a head is given to copy, weights alone do "
            "not tell.",
            heads=_names(idle),
        )


def _importance(report: Circuits) -> Iterator[Sentence]:
    if not report.importance:
        return
    direct, *others = report.importance
    if not others:
        yield sentence("The direct path alone brings the loss to {loss:.2f} nats.", loss=direct.loss)
        return
    parts = [sentence("{gain:+.2f} through {order}", gain=order.marginal, order=order.name) for order in others]
    yield sentence(
        "The direct path alone brings the loss to {loss:.2f} nats; paths are worth {parts} (patterns and norms "
        "frozen).",
        loss=direct.loss, parts=listed(parts, commas=True),
    )  # fmt: skip


def _names(heads: Sequence[HeadCircuits]) -> str:
    """Return the heads' labels; of many, how many there are."""
    labels = ", ".join(head.label for head in heads)
    return sentence("{n} heads", n=len(heads)) if len(heads) > MANY else labels
