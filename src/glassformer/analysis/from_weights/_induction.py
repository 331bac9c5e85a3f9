"""Induction circuits from weights alone: a previous-token head, and a head whose keys read what it wrote.

Three things make a pair an induction circuit, and each is a number that needs no text:

- previous: the earlier head attends one position back by position alone;
- match: the K-composed QK circuit of the pair, E QK2 OV1' E', looks for its own token: the sum of its eigenvalues over
  the sum of their sizes, in [-1, 1]; those that are not zero are the ones of a d_head x d_head matrix;
- copy: the later head's OV circuit raises what it looks at: the same ratio of E OV2 U.

A pointer does the same through Q-composition: an earlier head that attends to a copy of its token (duplicate: the ratio
of E QK1 E') writes where that was, and the later head looks one position further (pointer: the ratio of P OV1 QK2 P',
keys shifted by one). It needs position vectors in the stream.

E is what a layer reads of each token by itself, with or without what was written where the token stands: see
`token_reads`. With rotary positions QK is a mean over offsets. Where queries and keys are normed, QK has the norms'
gains, and their scales are set to one, or to the means of a run that are given; where scores are capped, QK is of raw
scores.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (induction heads, from weights); Olsson
et al. 2022, appendix (the trace over all earlier heads).
"""
# torch does not type its linear algebra
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer import weights
from glassformer.analysis.from_weights._composition import Composition, composition
from glassformer.analysis.from_weights._copying import rounding
from glassformer.analysis.from_weights._reads_and_writes import comes_before
from glassformer.analysis.from_weights.selection import LeftOut, labels_of, layers_for, token_choice, values_of
from glassformer.analysis.from_weights.token_reads import Through, TokenReads, TokenSums, by_position
from glassformer.analysis.frozen import QueryKeyScales, query_key_scales, with_gates, with_scales
from glassformer.analysis.heads.roles import head_scores, repeated_inputs
from glassformer.analysis.question import question
from glassformer.arguments import Count, Natural
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.numerics import decompositions
from glassformer.provenance import tell
from glassformer.weights import AttentionWeights, HeadWeights, WeightsLike
from glassformer.weights.heads import UP_TO_SCALES

MOST_TOKENS = 8192  # by default, evenly spread over larger vocabularies
Totals = dict[int, tuple[slice, Tensor]]
# what heads of an earlier layer take from tokens times what a later one reads of them, `head d_value d_model`
Moved = Callable[[AttentionWeights, AttentionWeights], Tensor]


class Circuit(NamedTuple):
    """A pair of heads that is wired for induction.

    Args:
        kind: `K`: a previous-token head is read by keys; `Q`: a duplicate-token head by queries.
        earlier: The head that is read.
        later: The induction head.
        role: `previous` of the earlier head (its `duplicate` if the kind is `Q`).
        match: `match` of the pair (`pointer`).
        copy: `copy` of the later head.
        composition: Composition score of that kind.
        over_null: The same over its mean for random matrices.
        strength: role * match * copy * over_null, what is negative counting as zero.
    """

    kind: Literal["K", "Q"]
    earlier: str
    later: str
    role: float
    match: float
    copy: float
    composition: float
    over_null: float
    strength: float


@dataclasses.dataclass(frozen=True, eq=False)
class InductionCircuits(Result):
    """What weights say of every pair of self-attention heads.

    Args:
        previous: Attention one position back of the position-only pattern, by `head`, in [0, 1]; NaN for a head that
            knows no positions.
        current: Attention to the token itself, likewise.
        duplicate: Eigenvalue ratio of the QK circuit between tokens, by `head`, in [-1, 1].
        copy: Eigenvalue ratio of the full OV circuit, by `head`, in [-1, 1].
        match: Eigenvalue ratio of the K-composed QK circuit, `earlier later`; NaN where the later head does not come
            after the earlier one, and for earlier heads that were not looked at (see `induction_circuits`).
        trace: Sum of these eigenvalues, in units of the score summed over the vocabulary, `earlier later`; in units of
            its own for each later head with normed queries and keys, unless scales are given.
        pointer: Eigenvalue ratio of the Q-composed QK circuit from a position to the next, `earlier later`; NaN as in
            `match`, and everywhere without position vectors in the stream.
        combined: Eigenvalue ratio of the K-composed QK circuits of all earlier heads together, each weighted by its
            `previous`, by `head`; NaN in the first layer.
        composition: Composition scores of the same weights.
        through: What E is, `token` or `stream`.
        n_tokens: Tokens that counted.
        offsets: Over which QK is a mean where positions are rotary.
        left_out: Heads the analysis is not defined for, and why.
    """

    HEADLINE = ("combined", "match", "pointer", "copy")
    SIGNED = ("duplicate", "copy", "match", "trace", "pointer", "combined")

    previous: Labelled
    current: Labelled
    duplicate: Labelled
    copy: Labelled
    match: Labelled
    trace: Labelled
    pointer: Labelled
    combined: Labelled
    composition: Composition
    through: Through
    n_tokens: int
    offsets: tuple[int, ...]
    left_out: LeftOut

    def circuits(self, k: int = 10) -> list[Circuit]:
        """The k strongest pairs of either kind, best first; pairs without strength are left out."""
        found = self._ranked("K", self.previous, self.match) + self._ranked("Q", self.duplicate, self.pointer)
        return sorted(found, key=lambda circuit: -circuit.strength)[:k]

    def _ranked(self, kind: Literal["K", "Q"], role: Labelled, match: Labelled) -> list[Circuit]:
        labels = match.labels("earlier")
        score = self.composition.scores.select(kind=kind)
        null = self.composition.null_mean.select(kind=kind)
        at = [score.labels("earlier").index(label) for label in labels]
        composed, mean = (u.values[at][:, at].to(match.values.dtype) for u in (score, null))
        # a score of rounding errors is none
        over = (composed / mean).where(composed > 64 * torch.finfo(composed.dtype).eps, 0.0)
        roles, copies = role.values[:, None].clamp_min(0), self.copy.values[None].clamp_min(0)
        strength = (roles * match.values.clamp_min(0) * copies * over).nan_to_num()
        found = []
        for i, j in (strength > 0).nonzero().tolist():
            numbers = (role.values[i], match.values[i, j], self.copy.values[j], composed[i, j], over[i, j])
            found.append(
                Circuit(kind, str(labels[i]), str(labels[j]), *map(float, numbers), float(strength[i, j]))  # type: ignore[arg-type]
            )
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class MatchingTrace(Result):
    """Whether weights foretell which heads match prefixes.

    Args:
        trace: Trace of the K-composed QK circuits of all earlier heads, each weighted by the attention it was seen to
            pay to the previous token, by `head`; NaN in the first layer. It grows with the size of weights.
        ratio: The same over the sum of the eigenvalues' sizes, in [-1, 1].
        prefix_matching: Measured induction score, by `head`.
        current: Measured attention to the token itself, by `head`.
        correlation: Pearson's, of `ratio` and of `trace` with `prefix_matching` over the heads that have both; NaN
            for fewer than three.
        through: As in `InductionCircuits`; n_tokens, offsets alike.
        left_out: Heads the analysis is not defined for, and why.
    """

    HEADLINE = ("ratio", "prefix_matching")
    SIGNED = ("trace", "ratio")

    trace: Labelled
    ratio: Labelled
    prefix_matching: Labelled
    current: Labelled
    correlation: dict[str, float]
    through: Through
    n_tokens: int
    offsets: tuple[int, ...]
    left_out: LeftOut


@question(
    "Which pairs of heads could do induction?", of="weights", holds=("query-key scales", "gates", "latent scales")
)
def induction_circuits(
    model: WeightsLike,
    *,
    through: Through = "stream",
    tokens: Int[Tensor, " n"] | Sequence[int] | None = None,
    offsets: Iterable[int] = range(1, 33),
    most: Count = 16,
    draws: Natural = 128,
    seed: int = 0,
    scales: QueryKeyScales | None = None,
) -> InductionCircuits:
    """Look for induction circuits in weights, running no text.

    Args:
        through: What layers read of a token: its vector alone (`token`, the paper's), or also what MLPs, and heads that
            by position alone attend to the token itself, wrote where it stands (`stream`).
        tokens: Ids that count; by default all, or 8192 evenly spread over a larger vocabulary.
        offsets: For rotary positions, how far before the query keys are thought to be.
        most: Eigenvalues of pairs, the costly part, are taken for so many earlier heads: those with the highest
            `previous` (`duplicate` for pointers). The trace is there for all.
        draws: As for `composition`.
        scales: What norms of queries and keys divided by on some text, `query_key_scales(run)`: each head's geometric
            mean brings its circuits to units of scores there. By default ones; it changes no ratio.

    Raises:
        AnalysisUnavailable: No head has OV and QK circuits that can be composed; the model is post-norm; or its logits
            are not of the tokens it reads.
    """
    w, offsets = weights.matrices(model), tuple(offsets)
    w.model.require_one_vocabulary("induction_circuits")
    layers, left_out = _layers(w)
    read = _Looks(offsets, scales)
    if scales is None and any(layer.normalises for layer in layers):
        tell([UP_TO_SCALES])
    labels, ids = labels_of(layers), _choice(w, tokens)
    n = len(labels)
    scores = composition(w, offsets=offsets, draws=draws, seed=seed)
    current, previous = (u.to(w.E.dtype) for u in by_position(w, labels))
    sums = TokenSums(_reads(w, layers, through, current), ids)
    ovs = [(layer.ov(), sums.to_logits[layer.path]) for layer in layers]
    copy = torch.cat([_ratio(ov.right @ (between @ ov.left), rounding(ov, between)) for ov, between in ovs])
    duplicate = torch.cat([_ratio(_own(layer, sums.own[layer.path], read)) for layer in layers])
    match, trace, pointer = (copy.new_full((n, n), torch.nan) for _ in range(3))
    combined = copy.new_full((n,), torch.nan)
    weight = previous.nan_to_num()
    # nothing reads the last layer
    chosen, pointing = (_largest(u.nan_to_num()[: n - len(layers[-1].Q)], most, n) for u in (previous, duplicate))
    totals: Totals = {}
    for rows, columns, small in _pairs(w, layers, sums.moved, read):
        trace[rows, columns] = small.diagonal(dim1=-2, dim2=-1).sum(-1)
        match[rows, columns] = _ratio_of(small, chosen[rows])
        _add(totals, columns, weight[rows], small)
    for columns, total in totals.values():
        combined[columns] = _ratio(total)
    if w.P is not None and all(w.in_stream(layer) for layer in layers):
        for rows, columns, small in _pairs(w, layers, partial(_shifted, w), read, pointer=True):
            pointer[rows, columns] = _ratio_of(small, pointing[rows])

    def by_head(values: Tensor) -> Labelled:
        return Labelled(values, ("head",), {"head": labels})

    def by_pair(values: Tensor) -> Labelled:
        return Labelled(values, ("earlier", "later"), {"earlier": labels, "later": labels})

    turned = any(layer.module.positions.rotates for layer in layers)
    return InductionCircuits(
        previous=by_head(previous),
        current=by_head(current),
        duplicate=by_head(duplicate),
        copy=by_head(copy),
        match=by_pair(match),
        trace=by_pair(trace),
        pointer=by_pair(pointer),
        combined=by_head(combined),
        composition=scores,
        through=through,
        n_tokens=len(ids),
        offsets=offsets if turned else (),
        left_out=left_out,
    )


@question(
    "Which heads match prefixes, foretold from weights?",
    of="weights",
    holds=("query-key scales", "gates", "latent scales"),
)
def matching_trace(
    model: WeightsLike,
    *,
    through: Through = "stream",
    tokens: Int[Tensor, " n"] | Sequence[int] | None = None,
    offsets: Iterable[int] = range(1, 33),
    seed: int = 0,
) -> MatchingTrace:
    """Foretell from weights which heads match prefixes, and compare with what they do on repeated random tokens.

    What heads do enters through attention to the previous token, as in the paper, to the token itself (`stream`), and
    through the means of gates, and of what norms of queries and keys divide by, on those tokens.

    Args:
        model: A decoder or an encoder-decoder.
        through: As for `induction_circuits`.
        tokens: As for `induction_circuits`.
        offsets: As for `induction_circuits`.

    Raises:
        AnalysisUnavailable: As for `induction_circuits`.
        NoPattern: No head has a pattern.

    Source: Olsson et al. 2022, appendix on data collection: the trace of the QK circuit through earlier heads.
    """
    w, offsets = weights.matrices(model), tuple(offsets)
    drawn = repeated_inputs(w.model, seed=seed)
    w = with_scales(with_gates(w, *drawn), *drawn)
    layers, left_out = _layers(w)
    labels, ids = labels_of(layers), _choice(w, tokens)
    measured = head_scores(w.model, seed=seed).scores
    roles = ("current_token", "previous_token", "induction")
    current, previous, prefix = (values_of(measured.select(role=role), labels) for role in roles)
    sums = TokenSums(_reads(w, layers, through, current), ids)
    trace, ratio = (prefix.new_full((len(labels),), torch.nan) for _ in range(2))
    weight, totals = previous.nan_to_num(), Totals()
    normed = any(layer.normalises for layer in layers)
    scales = query_key_scales(w.model, *drawn) if normed else None
    for rows, columns, small in _pairs(w, layers, sums.moved, _Looks(offsets, scales)):
        _add(totals, columns, weight[rows], small)
    if not totals:
        raise AnalysisUnavailable(
            "matching_trace composes heads with heads of earlier layers, and no two heads of this model compose; found "
            f"QK and OV circuits of {labels[0]} to {labels[-1]}.\n"
            "    What heads do on random tokens: analysis.heads.head_scores(model)."
        )
    for columns, total in totals.values():
        trace[columns] = total.diagonal(dim1=-2, dim2=-1).sum(-1)
        ratio[columns] = _ratio(total)
    trace, ratio, measured, current = (
        Labelled(u, ("head",), {"head": labels}) for u in (trace, ratio, prefix, current)
    )
    correlation = {"ratio": _correlation(ratio.values, prefix), "trace": _correlation(trace.values, prefix)}
    turned = any(layer.module.positions.rotates for layer in layers)
    return MatchingTrace(
        trace=trace,
        ratio=ratio,
        prefix_matching=measured,
        current=current,
        correlation=correlation,
        through=through,
        n_tokens=len(ids),
        offsets=offsets if turned else (),
        left_out=left_out,
    )


def _layers(w: HeadWeights) -> tuple[list[AttentionWeights], LeftOut]:
    def check(layer: AttentionWeights) -> None:
        w.require_logits(layer, "induction circuits")
        layer.require_ov("induction circuits")
        layer.require_bilinear("induction circuits")
        if layer.crosses or layer.Q.ndim > 3:
            kind = layer.module.mixer.config.kind
            what = "reads another stack" if layer.crosses else f'("{kind}") has two maps per head'
            raise AnalysisUnavailable(
                f"induction circuits: {layer.labels[0]} {what}; one QK circuit within a stack is needed.\n"
                "    Composition is defined for it: analysis.from_weights.composition(model)."
            )

    return layers_for(w, None, check)


def _reads(w: HeadWeights, layers: Sequence[AttentionWeights], through: Through, current: Tensor) -> TokenReads:
    instead = "Composition takes those gains into account: analysis.from_weights.composition(model)."
    own = current.nan_to_num().split([len(layer.Q) for layer in layers])
    return TokenReads(w, layers, through, own, analysis="induction circuits", instead=instead)


def _pairs(
    w: HeadWeights, layers: Sequence[AttentionWeights], moved: Moved, read: "_Looks", *, pointer: bool = False
) -> Iterator[tuple[slice, slice, Float[Tensor, "earlier later d_head d_head"]]]:
    """Yield, by pair of layers, the small matrices with the eigenvalues of composed QK circuits."""
    starts = [sum(len(a.Q) for a in layers[:i]) for i in range(len(layers) + 1)]
    for j, later in enumerate(layers):
        query, key = read(later)
        # tokens come to the query directly and to the key through the earlier head; a pointer the other way round
        direct, composed = (key, query) if pointer else (query, key)
        for i, earlier in enumerate(layers[:j]):
            if not comes_before(w.sub_layers[earlier.path], w.sub_layers[later.path], "K"):
                continue
            ov = earlier.ov()
            passed = torch.einsum("ivd,jde->ijve", ov.right, composed)
            met = torch.einsum("ivd,jde->ijve", moved(earlier, later), direct)
            small = (passed.mT @ met) * later.scale
            yield slice(*starts[i : i + 2]), slice(*starts[j : j + 2]), small


def _add(totals: Totals, columns: slice, weight: Tensor, small: Float[Tensor, "earlier later n n"]) -> None:
    """Add the small matrices of some earlier heads, weighted, to those of the later heads they meet."""
    total = torch.einsum("i,ijab->jab", weight.to(small), small)
    totals[columns.start] = columns, total + totals[columns.start][1] if columns.start in totals else total


def _own(layer: AttentionWeights, total: Tensor, read: "_Looks") -> Float[Tensor, "head d_head d_head"]:
    """Return the small matrices with the eigenvalues of E QK E'."""
    query, key = read(layer)
    return key.mT @ total @ query


def _shifted(
    w: HeadWeights, earlier: AttentionWeights, later: AttentionWeights
) -> Float[Tensor, "head d_value d_model"]:
    """Return the sum over positions of what heads take there times what keys read one further on."""
    taken, read = w.source_rows(earlier, "value", "position")[:-1], w.source_rows(later, "key", "position")[1:]
    return (taken @ earlier.ov().left).mT @ read


class _Looks(NamedTuple):
    """How the two factors of QK are taken: over which offsets, and with which scales of norms."""

    offsets: tuple[int, ...]
    scales: QueryKeyScales | None

    def __call__(
        self, layer: AttentionWeights
    ) -> tuple[Float[Tensor, "head d_model d_head"], Float[Tensor, "head d_model d_head"]]:
        """Return what queries are made by, turned, and what the keys of each query head are."""
        qk = layer.qk(self.offsets, None if self.scales is None else self.scales.mean(layer))
        return qk.left, qk.right.mT


def _choice(w: HeadWeights, tokens: Int[Tensor, " n"] | Sequence[int] | None) -> Int[Tensor, " n"]:
    ids = token_choice(w, tokens)
    if tokens is not None or len(ids) <= MOST_TOKENS:
        return ids
    return torch.linspace(0, len(ids) - 1, MOST_TOKENS, device=ids.device).long()


def _largest(values: Tensor, most: int, n: int) -> Tensor:
    """Return which of n heads are among those with the largest values."""
    chosen = torch.zeros(n, dtype=torch.bool, device=values.device)
    chosen[values.topk(min(most, len(values))).indices] = True
    return chosen


def _ratio_of(small: Float[Tensor, "earlier later n n"], chosen: Tensor) -> Float[Tensor, "earlier later"]:
    found = small.new_full(small.shape[:2], torch.nan)
    if chosen.any():
        found[chosen] = _ratio(small[chosen])
    return found


def _ratio(small: Float[Tensor, "*batch n n"], floor: Float[Tensor, "*batch"] | None = None) -> Float[Tensor, "*batch"]:
    """Return the sum of the eigenvalues over the sum of their sizes; NaN if all are zero, or below a floor."""
    values = decompositions.eigenvalues(small)
    ratio = values.real.sum(-1) / values.abs().sum(-1)
    return ratio if floor is None else ratio.where(values.abs().amax(-1) > floor, torch.nan)


def _correlation(first: Tensor, second: Tensor) -> float:
    both = first.isfinite() & second.isfinite()
    if int(both.sum()) < 3:
        return float("nan")
    return float(torch.corrcoef(torch.stack((first[both], second[both])))[0, 1])
