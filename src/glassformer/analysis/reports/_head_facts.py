"""What each head does in the pass that is explained: its roles, what it adds, where it looks; which heads tell most."""

import math
from collections.abc import Iterable
from typing import Literal, TypedDict

from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.attribution import DirectLogitAttribution
from glassformer.analysis.attribution.parts_of_effects import SourceEffects, by_key
from glassformer.analysis.attribution.target import aim
from glassformer.analysis.components import head_labels
from glassformer.analysis.frozen.directions import pull_back
from glassformer.analysis.heads import roles
from glassformer.analysis.places import places
from glassformer.analysis.reports.explanation import HeadFacts, Pattern, RoleScore, Sink, TopHead
from glassformer.attention import per_query_head
from glassformer.errors import AnalysisUnavailable
from glassformer.provenance import Note
from glassformer.words import sentence

N_TOP_HEADS = 6
# a head belongs among the top heads for its role, whatever it adds itself, from this score on
TELLING_SCORE = 0.3
N_SEQUENCES, N_TOKENS = 4, 400  # random ones, at least: some 300 repetitions, and few patterns to hold


def head_facts(run: Run, split: DirectLogitAttribution) -> tuple[tuple[HeadFacts, ...], list[Note]]:
    """Return every head with its roles, and what could not be said about some."""
    scores, notes = _role_scores(run)
    added = dict(zip((c.label for c in split.components), split.contributions.values.tolist()))
    facts = tuple(
        HeadFacts(
            label=h.label,
            stack=h.stack,
            part=h.part,
            layer=h.layer,
            head=h.head,
            mechanism=h.mechanism,
            contribution=added.get(h.label),
            reading=h.reading,
            roles=scores.get(h.label, ()),
            sink=_sink(run, h),
        )
        for h in roles.heads(run.model)
    )
    without = {h.mechanism for h in facts if h.reading is None}
    several = {h.mechanism for h in roles.patterned(run.model)} & without
    notes += [
        Note(sentence('Heads of "{kind}" have no pattern.', kind=kind), sentence("They have no roles and no picture."))
        for kind in sorted(without - several)
    ]
    notes += [
        Note(
            sentence('Heads of "{kind}" have several values at each position, with a pattern each.', kind=kind),
            sentence("There is a picture of each, L0H1/0 of the first."),
            sentence("" if run.model.patches else "head_scores(model) has roles of each pattern."),
        )
        for kind in sorted(several)
    ]
    signed = sorted({h.mechanism for h in facts if h.reading == "signed"})
    notes += [
        Note(
            sentence('Rows of "{kind}" patterns do not sum to one.', kind=kind),
            sentence("Role scores are signed mass over absolute mass."),
        )
        for kind in signed
    ]
    return facts, notes


def _role_scores(run: Run) -> tuple[dict[str, tuple[RoleScore, ...]], list[Note]]:
    """Return scores by head, and why there are none in a stack."""
    if run.model.patches is not None:
        seen = sentence("Roles of heads go by tokens of a text, and patches of an image are none.")
        return {}, [Note(seen, sentence("Heads are shown with what they add and where they look."))]
    scores: dict[str, tuple[RoleScore, ...]] = {}
    notes: list[Note] = []
    general = _model_wide(run)
    for stack in run.model.stacks:
        try:
            found = roles.head_roles(run, stack=stack)
        except AnalysisUnavailable as error:
            notes.append(Note(str(error).split("\n")[0]))
            continue
        counts = found.positions.values.tolist()
        for label, values in zip(found.scores.labels("head"), found.scores.values.tolist()):
            wide = general.get(str(label), (None,) * len(roles.ROLES))
            scores[str(label)] = tuple(
                RoleScore(role, None if math.isnan(v) else v, n, w, None if w is None else abs(w) >= roles.NAMED)
                for role, v, n, w in zip(roles.ROLES, values, counts, wide)
            )
    return scores, notes


def _model_wide(run: Run) -> dict[str, tuple[float | None, ...]]:
    """Return what heads do on repeated random tokens, by head; nothing where that is not defined."""
    try:
        n = max(N_SEQUENCES, N_TOKENS // run.model.familiar_length)
        found = roles.head_scores(run.model, n_sequences=n, repeats=roles.repeats_for(run.model))
    except AnalysisUnavailable:
        return {}
    return {
        str(label): tuple(None if math.isnan(v) else v for v in values)
        for label, values in zip(found.scores.labels("head"), found.scores.values.tolist())
    }


def _sink(run: Run, head: roles.Head) -> Sink | None:
    """Return how far a head rests on the first token, where rows of its pattern are mixtures of tokens."""
    if head.reading != "mass" or head.crosses or f"{head.path}.value" not in run:
        return None
    pattern = run[f"{head.path}.pattern"].values
    value = per_query_head(run[f"{head.path}.value"].values, pattern)[0, head.head]
    weights = pattern[0, head.head, 1:].double()
    if not len(weights) or weights.shape[-1] != len(weights) + 1:
        return None
    moved = weights * value.double().norm(dim=-1)
    whole = float(moved.sum())
    return Sink(float(weights[:, 0].mean()), float(moved[:, 0].sum()) / whole if whole > 0 else 0.0)


class Aimed(TypedDict, total=False):
    """What contributions are to: a token, a difference of two, or a direction."""

    answer: int
    against: int | None
    direction: Float[Tensor, " d_model"]


def top_heads(run: Run, split: DirectLogitAttribution, facts: Iterable[HeadFacts], aimed: Aimed) -> tuple[TopHead, ...]:
    """Choose the heads that add most either way, then the best head of each role that any head plays well."""
    # what a head takes of each token is all it writes where nothing else is mixed in
    whole = {
        label
        for layer in run.model.sub_layers()
        if layer.attention is not None and layer.attention.traits.has_patterns
        for label in head_labels(layer)
    }
    candidates = [h for h in facts if h.contribution is not None and h.reading is not None and h.label in whole]
    by_size = sorted(candidates, key=lambda h: -abs(h.contribution or 0.0))
    chosen = {h.label: (h, "contribution") for h in by_size[:N_TOP_HEADS]}
    for i, role in enumerate(roles.ROLES[:3]):
        scored = [(h.roles[i].score or 0.0, h) for h in candidates if h.roles and h.roles[i].named is not False]
        score, head = max(scored, key=lambda pair: pair[0], default=(0.0, None))
        if head is not None and score >= TELLING_SCORE:
            chosen.setdefault(head.label, (head, role))
    taken = _taken(run, int(split.position), list(chosen), aimed)
    return tuple(_top_head(run, int(split.position), taken, head, because) for head, because in chosen.values())


def _taken(run: Run, position: int, labels: Iterable[str], aimed: Aimed) -> SourceEffects:
    """Return what some heads, all with patterns, take from each token: `source_effects` refuses layers without one."""
    at = places(run, position, single=True)
    answer, against, direction = aimed.get("answer"), aimed.get("against"), aimed.get("direction")
    directions = aim(run, answer, against, direction, at, "explain").directions
    wanted = set(labels)
    layers = [layer for layer in run.model.sub_layers() if wanted & set(head_labels(layer))]
    return by_key(run, pull_back(run, directions, at), at, layers)


def _top_head(run: Run, position: int, taken: SourceEffects, head: HeadFacts, because: str) -> TopHead:
    path = next(h.path for h in roles.heads(run.model) if h.label == head.label)
    row = run[f"{path}.pattern"].values[0, head.head, position].double()
    basis: Literal["pattern", "norm"] = "pattern" if head.reading == "mass" else "norm"
    if basis == "norm":
        value = per_query_head(run[f"{path}.value"].values, run[f"{path}.pattern"].values)[0, head.head]
        row = row.abs() * value.double().norm(dim=-1)
    total = float(row.sum())
    weights = (row / total if total > 0 else row).tolist()
    crossed = head.crosses
    key: Literal["tokens", "source_tokens"] = "source_tokens" if crossed else "tokens"
    by_token = tuple(taken[head.label].values.tolist())
    return TopHead(
        label=head.label,
        because=because,
        contribution=head.contribution or 0.0,
        basis=basis,
        weights=tuple(weights),
        sources=by_token,
        key=key,
    )


def patterns(run: Run) -> tuple[Pattern, ...]:
    """Return the pattern of every head that has one; of several values each has its own, `L0H1/0`."""
    found = []
    for h in roles.patterned(run.model):
        query: Literal["tokens", "source_tokens"] = "source_tokens" if h.stack == "encoder" else "tokens"
        key: Literal["tokens", "source_tokens"] = "source_tokens" if h.crosses else query
        weights = roles.rows_of(run[f"{h.path}.pattern"].values)[0, h.row]
        found.append(
            Pattern(
                label=h.label,
                stack=h.stack,
                part=h.part,
                layer=h.layer,
                head=h.head,
                query=query,
                key=key,
                weights=weights,
                looks_ahead=h.crosses or run.model.reads_ahead(h.stack or None),
            )
        )
    return tuple(found)
