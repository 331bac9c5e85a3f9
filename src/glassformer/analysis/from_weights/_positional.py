"""Heads that go by position: which offset they attend to, from weights and from what they do.

Position-only scores are what is left when tokens are drawn at random and averaged over, on both sides:

    S_ij = (mean query + P_i Q) . (mean key + P_j K) * scale     position vectors
    S_ij = (mean query) R(i - j) (mean key)' * scale             rotary positions
    S_ij - slope * abs(i - j)                                    ALiBi

biases included (a key's bias matters under rotary positions). Where queries and keys are normed, means are of what the
norms make of each token's (see `HeadWeights.projected`). The softmax of these scores over the keys a query may see is
the position-only pattern; a cap acts on S_ij first, before what ALiBi adds. An offset's score is the mean of that
pattern at (query, query - offset) over queries, the first rows left out, which attend near in any case.

Source: Elhage et al. 2021 and Olsson et al. 2022 (previous-token heads).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis.from_weights._token_moments import TokenMoments
from glassformer.analysis.from_weights.selection import LeftOut, layers_for
from glassformer.analysis.heads.roles import patterned, rows_of
from glassformer.analysis.question import question
from glassformer.arguments import Count, Several, checked
from glassformer.attention import Context
from glassformer.errors import AnalysisUnavailable, NoPattern
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike
from glassformer.models.stack import make_context
from glassformer.numerics import decompositions
from glassformer.numerics.precision import wide
from glassformer.trace import Site
from glassformer.weights import AttentionWeights, HeadWeights, WeightsLike
from glassformer.weights.heads import Side


@dataclasses.dataclass(frozen=True, eq=False)
class PositionalHeads(Result):
    """Where heads attend if only position counts.

    Args:
        scores: Mean attention at each offset, `head offset`, in [0, 1].
        patterns: The position-only patterns, `head query key`; rows sum to one.
        position_share: Of the variance of scores within rows, tokens being drawn at random, the share of the
            position-only scores, by `head`, in [0, 1].
        kinds: For each head, what tells it positions: `vectors`, `rotary`, `alibi`, `relative_bias`, or several
            joined by `+`.
        first_query: First query that counts in `scores`.
        folded: Whether norms were folded into the matrices.
        left_out: Heads the analysis is not defined for, and why.
    """

    HEADLINE = ("scores", "position_share")

    scores: Labelled
    patterns: Labelled
    position_share: Labelled
    kinds: tuple[str, ...]
    first_query: int
    folded: bool
    left_out: LeftOut

    def best(self, offset: int) -> tuple[str, float]:
        """The head with the highest score at an offset, and the score."""
        (label, *_), score = self.scores.select(offset=str(offset)).top(1)[0]
        return str(label), score


@dataclasses.dataclass(frozen=True, eq=False)
class Offsets(Result):
    """Where heads did attend, by offset.

    Args:
        scores: Mean attention at each offset, `head offset`; by value where a head has several (`L0H1/0`).
        without_first: The same with the first key left out and rows rescaled to what they sum to without it: position 0
            often draws all attention that has nowhere to go.
        explained: Share of the variance of scores within rows that offset alone explains, by `head`, in [0, 1]; NaN
            where a mechanism has no scores.
        first_query: First query that counts.
    """

    HEADLINE = ("scores", "without_first", "explained")

    scores: Labelled
    without_first: Labelled
    explained: Labelled
    first_query: int


@question("Which heads look by position?", of="weights", holds=("latent scales",))
def positional_heads(
    model: WeightsLike,
    heads: Several[str] | None = None,
    *,
    length: Count | None = None,
    offsets: Count = 8,
    first_query: int | None = None,
) -> PositionalHeads:
    """Find heads that attend by position, from weights alone.

    Behind the first layer queries and keys read more than token and position vectors: this is their direct path.

    Args:
        heads: Labels; by default all self-attention heads that know positions.
        length: Positions to look at; the model's context by default, at most 256.
        offsets: How many offsets to score, from 0 on.
        first_query: First query that counts; `offsets` by default, so that all offsets are scored on the same queries.

    Raises:
        AnalysisUnavailable: A named head, or every head, has no bilinear scores, or knows nothing of positions.
    """
    w = weights.matrices(model)
    layers, left_out = layers_for(w, heads, lambda layer: _require_positions(w, layer))
    length = _length(layers, length)
    first_query = min(offsets if first_query is None else first_query, length - 1)
    labels: list[str] = []
    patterns, shares, kinds = [], [], []
    for layer, parts in _each_layer(w, layers, length):
        names = parts.names()
        labels += names
        patterns.append(parts.pattern())
        shares.append(parts.share().flatten())
        kinds += ["+".join(kinds_of(w, layer))] * len(names)
    pattern = torch.cat(patterns)
    return PositionalHeads(
        scores=_by_offset(pattern, labels, offsets, first_query),
        patterns=Labelled(pattern, ("head", "query", "key"), {"head": labels}),
        position_share=Labelled(torch.cat(shares), ("head",), {"head": labels}),
        kinds=tuple(kinds),
        first_query=first_query,
        folded=w.folded,
        left_out=left_out,
    )


def offsets_by_position(w: HeadWeights, offsets: int, first_query: int) -> Labelled:
    """Return the `scores` of `positional_heads` by themselves; raises as it does."""
    layers, _ = layers_for(w, None, lambda layer: _require_positions(w, layer))
    length = _length(layers, None)
    labels, patterns = list[str](), list[Tensor]()
    for _, parts in _each_layer(w, layers, length):
        labels += parts.names()
        patterns.append(parts.pattern())
    return _by_offset(torch.cat(patterns), labels, offsets, min(first_query, length - 1))


@checked
def position_scores(w: HeadWeights, layer: AttentionWeights, length: int) -> Float[Tensor, "head *stream query key"]:
    """The scores that position alone gives, scale included, no mask.

    Args:
        w: The weights.
        layer: The layer whose heads these are.
        length: How many positions.
    """
    return _QueriesAndKeys.of(TokenMoments(w), layer, length).scores()


@checked
def position_bias(layer: AttentionWeights, length: int) -> Float[Tensor, "head *stream query key"]:
    """Position bias: what distance alone adds to scores (ALiBi, relative bias), or zeros: `head query key`.

    Args:
        layer: The layer whose heads these are.
        length: How many positions.
    """
    bias = layer.Q.new_zeros(len(layer.Q), length, length)
    if layer.module.positions.has_bias:
        context = make_context(1, length, bias.device, is_causal=True)
        every = layer.module.positions.bias(context)[0].detach().to(bias)
        bias = every if layer.head is None else every[layer.head : layer.head + 1]
    return bias if layer.Q.ndim == 3 else bias[:, None]


@question("How do a head's scores change with distance?", of="weights", holds=("latent scales",))
def offset_profile(model: WeightsLike, heads: Several[str] | None = None, *, offsets: Count = 64) -> Labelled:
    """Offset profile: the score of an average query for an average key, by how far back, less its mean.

    Defined for rotary positions (mean query turned by the offset, times mean key) and ALiBi; with position vectors
    scores depend on both positions: see `positional_heads`.

    Args:
        offsets: How many offsets to score, from 0 on.

    Returns:
        Scores over `head offset`, centred over offsets.

    Raises:
        AnalysisUnavailable: A named head, or every head, has neither.
    """
    w = weights.matrices(model)

    def check(layer: AttentionWeights) -> None:
        _require_positions(w, layer)
        if "vectors" in kinds_of(w, layer):
            raise AnalysisUnavailable(
                f"offset_profile: layer {layer.layer} knows positions by their vectors, so that scores depend on both "
                "positions.\n    See positional_heads(model)."
            )

    layers, _ = layers_for(w, heads, check)
    rows, labels = [], []
    for layer in layers:
        last = position_scores(w, layer, offsets)[..., -1, :].flip(-1)
        labels += layer.labels if last.ndim == 2 else [f"{x}/{i}" for x in layer.labels for i in range(last.shape[1])]
        rows.append(last.flatten(0, -2))
    profile = torch.cat(rows)
    return Labelled(
        profile - profile.mean(-1, keepdim=True), ("head", "offset"), {"head": labels, "offset": list(range(offsets))}
    )


def offset_sites(model: ModelLike) -> list[str]:
    """Return the sites that `offset_scores` reads: patterns of self-attention, and scores where there are any."""
    w = weights.of(model)
    found = []
    for layer in w.of_stack():
        traits = layer.module.mixer.traits
        found += [f"{layer.path}.pattern"] if traits.shows_patterns else []
        found += [f"{layer.path}.scores"] if traits.has_scores and traits.streams == 1 else []
    return found


@question("Which heads look a fixed distance back on this text?", reads=offset_sites, traits=("shows_patterns",))
def offset_scores(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    offsets: Count = 8,
    first_query: int | None = None,
) -> Offsets:
    """Score heads by the offset they attend to on what was run; on random tokens, content plays no part.

    Args:
        offsets: How many offsets to score, from 0 on.
        first_query: First query that counts; `offsets` by default.

    Raises:
        SiteNotRead: The run lacks a pattern.
        NoPattern: No head has one.
        AnalysisUnavailable: Rows are of different lengths: ask of each, `offset_scores(run.prompt(i))`.
    """
    sites = offset_sites(run.model)
    if not any(Site.named(site).quantity == "pattern" for site in sites):
        raise NoPattern("offset_scores reads attention patterns, and this model has none.")
    if run.lengths is not None and bool((run.lengths < run.lengths.max()).any()):
        raise AnalysisUnavailable(
            "offset_scores: rows of different lengths hold different offsets; give rows of one length, or ask of each "
            "by itself:\n    [offset_scores(run.prompt(i)) for i in range(len(run.ids))]"
        )
    run.require(sites, "offset_scores")
    labels = dict[str, list[str]]()
    for head in patterned(run.model):
        if f"{head.path}.pattern" in sites:
            labels.setdefault(head.path, []).append(head.label)
    patterns, bare, explained = [], [], []
    for path in labels:
        pattern = wide(rows_of(run[f"{path}.pattern"].values))
        n = pattern.shape[-2]
        pattern = pattern[..., -n:]
        kept = pattern.clone()
        kept[..., 0] = 0
        total = kept.sum(-1, keepdim=True)
        # a row that had nothing else is left at zero: it attends to no offset
        kept = torch.where(total.abs() > 0, kept / total * pattern.sum(-1, keepdim=True), 0.0)
        patterns.append(pattern.mean(0))
        bare.append(kept.mean(0))
        name = f"{path}.scores"
        explained.append(
            _explained(wide(run[name].values[..., -n:]))
            if name in sites
            else pattern.new_full((pattern.shape[1],), torch.nan)
        )
    pattern, names = torch.cat(patterns), [name for of_layer in labels.values() for name in of_layer]
    first_query = min(offsets if first_query is None else first_query, pattern.shape[-1] - 1)
    return Offsets(
        _by_offset(pattern, names, offsets, first_query),
        _by_offset(torch.cat(bare), names, offsets, first_query),
        Labelled(torch.cat(explained), ("head",), {"head": names}),
        first_query,
    )


def kinds_of(w: HeadWeights, layer: AttentionWeights) -> list[str]:
    """Return what tells a layer's scores about positions."""
    found = ["vectors"] if "position" in w.sources(layer) else []
    found += ["rotary"] if layer.module.positions.rotates else []
    return found + ([layer.module.positions.config.kind] if layer.module.positions.has_bias else [])


def _require_positions(w: HeadWeights, layer: AttentionWeights) -> None:
    layer.require_bilinear("positional heads")
    if layer.crosses:
        raise AnalysisUnavailable(
            f"positional heads: keys of cross-attention layer {layer.layer} are positions of another text.\n"
            "    Read patterns instead: gf.run(…, read=['decoder.blocks.*.cross.pattern'])."
        )
    if not kinds_of(w, layer):
        raise AnalysisUnavailable(
            f"positional heads: nothing tells layer {layer.layer} about positions but the mask "
            f'(positions "{layer.module.positions.config.kind}").\n    What it does: analysis.heads.head_scores(model).'
        )


def _bias_row(w: HeadWeights, layer: AttentionWeights, side: Side) -> Tensor | None:
    try:
        return w.projected(layer, side, "bias")
    except AnalysisUnavailable:
        # only the other side has one
        return None


def _allowed(layer: AttentionWeights, length: int, context: Context) -> Bool[Tensor, "#head *stream query key"]:
    """Return which keys the queries see."""
    seen = layer.module.mixer.visible(context, length, length)
    if seen is None:
        return torch.ones((1,) * (layer.Q.ndim - 2) + (length, length), dtype=torch.bool, device=layer.Q.device)
    seen = seen[0].movedim(-3, 0)
    if seen.ndim < layer.Q.ndim:
        seen = seen[:, None]
    return (seen if len(seen) == 1 else seen[layer.which]).to(layer.Q.device)


def _pattern(layer: AttentionWeights, scores: Tensor, allowed: Tensor) -> Float[Tensor, "*map query key"]:
    scores = scores.masked_fill(~allowed, -torch.inf)
    return layer.module.mixer.normalised(scores, heads=layer.which).detach()


def _length(layers: Sequence[AttentionWeights], length: int | None) -> int:
    """Return how many positions are looked at."""
    return min([length or 256] + [layer.module.dims.max_len for layer in layers])


def _each_layer(
    w: HeadWeights, layers: Sequence[AttentionWeights], length: int
) -> "Iterator[tuple[AttentionWeights, _QueriesAndKeys]]":
    moments = TokenMoments(w)
    for layer in layers:
        yield layer, _QueriesAndKeys.of(moments, layer, length)


def _by_offset(pattern: Tensor, labels: Sequence[str], offsets: int, first_query: int) -> Labelled:
    n = pattern.shape[-1]
    found = [
        pattern.diagonal(-d, -2, -1)[..., max(first_query - d, 0) :].mean(-1) for d in range(min(offsets, n))
    ]  # fmt: skip
    return Labelled(
        torch.stack(found, -1),
        ("head", "offset"),
        {"head": list(labels), "offset": [str(d) for d in range(len(found))]},
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _QueriesAndKeys:
    """Queries and keys as random tokens give them: the mean at each position, and the covariance over tokens.

    The means are turned by where they stand, as rotary positions turn queries and keys.
    """

    layer: AttentionWeights
    query: Float[Tensor, "head *stream pos d_head"]
    key: Float[Tensor, "head *stream pos d_head"]
    query_spread: Float[Tensor, "head *stream d_head d_head"]
    key_spread: Float[Tensor, "head *stream d_head d_head"]
    context: Context

    @classmethod
    def of(cls, moments: TokenMoments, layer: AttentionWeights, length: int) -> "_QueriesAndKeys":
        w, means, spreads = moments.w, list[Tensor](), list[Tensor]()
        sides: tuple[Side, Side] = ("query", "key")
        for side in sides:
            mean, spread = moments(layer, side)
            spreads.append(spread)
            bias = _bias_row(w, layer, side)
            mean = mean if bias is None else mean + bias
            if "position" in w.sources(layer):
                mean = mean + w.projected(layer, side, "position")[..., :length, :]
            means.append(_turned(layer, mean.expand(*mean.shape[:-2], length, mean.shape[-1])))
        context = make_context(1, length, layer.Q.device, is_causal=not w.reads_ahead(layer.stack))
        return cls(layer, layer.asked(means[0], context), means[1], *spreads, context=context)

    @cached_property
    def allowed(self) -> Bool[Tensor, "#head *stream query key"]:
        return _allowed(self.layer, self.query.shape[-2], self.context)

    def names(self) -> list[str]:
        """Return the labels of the maps: several maps of one head are read one by one."""
        labels = self.layer.labels
        if self.query.ndim == 3:
            return labels
        return [f"{label}/{i}" for label in labels for i in range(self.query.shape[1])]

    def scores(self) -> Float[Tensor, "head *stream query key"]:
        return self.content + position_bias(self.layer, self.query.shape[-2])

    @cached_property
    def content(self) -> Float[Tensor, "head *stream query key"]:
        """Return the scores without what is added by distance alone."""
        return self.query @ self.key.mT * self.layer.scale

    def pattern(self) -> Float[Tensor, "map query key"]:
        seen = self.layer.module.mixer.capped(self.content) + position_bias(self.layer, self.query.shape[-2])
        return _pattern(self.layer, seen, self.allowed).flatten(0, -3)

    def share(self) -> Float[Tensor, " head *stream"]:
        """Return var(mean score) / var(score) within rows, for independent tokens at all positions."""
        scores, query, key = self.scores(), self.query, self.key
        allowed = self.allowed.to(scores.dtype)
        count = allowed.sum(-1, keepdim=True).clamp_min(1)
        mean = (scores * allowed).sum(-1, keepdim=True) / count
        of_position = ((scores - mean).square() * allowed).sum((-2, -1))

        def over_keys(values: Float[Tensor, "head *stream key d_head d_head"]) -> Tensor:
            """Return the sums over the keys that a query sees."""
            return (allowed @ values.flatten(-2)).unflatten(-1, values.shape[-2:])

        # second moments, position by position, as seen from the position turned to
        query_spread = self._asked(self._spread(self.query_spread))
        seen = over_keys(self._spread(self.key_spread))
        of_keys = (seen * query_spread).sum((-3, -2, -1)) + ((seen @ query[..., None])[..., 0] * query).sum((-2, -1))
        # what a query token's deviation makes of the keys' positions
        average = allowed @ key
        between = over_keys(_squared(key)) - _squared(average) / count[..., None]
        of_queries = (query_spread * between).sum((-3, -2, -1))
        return of_position / (of_position + (of_keys + of_queries) * self.layer.scale**2).clamp_min(1e-300)

    def _asked(
        self, spread: Float[Tensor, "head *stream pos d_head d_head"]
    ) -> Float[Tensor, "head *stream pos d_head d_head"]:
        """Return the spread of queries as the mechanism lets them meet keys."""
        for _ in range(2):
            spread = self.layer.asked(spread.movedim(-2, 0), self.context).movedim(0, -2).mT
        return spread

    def _spread(
        self, spread: Float[Tensor, "head *stream d_head d_head"]
    ) -> Float[Tensor, "head *stream pos d_head d_head"]:
        """Return a spread as it is at every position."""
        n = self.query.shape[-2]
        spread = spread[..., None, :].expand(*spread.shape[:-1], n, spread.shape[-1])
        # head [stream] d_head pos d_head: what stands last is turned, one side after the other
        for _ in range(2):
            spread = _turned(self.layer, spread).transpose(-3, -1)
        return spread.movedim(-2, -3)


def _turned(layer: AttentionWeights, rows: Float[Tensor, "*n pos d_head"]) -> Float[Tensor, "*n pos d_head"]:
    """Turn the rows of all positions by where they stand: what rotary positions do to queries and keys."""
    positions = layer.module.positions
    return positions.placed(rows, torch.arange(rows.shape[-2])) if positions.rotates else rows


def _squared(rows: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d d"]:
    return rows[..., :, None] * rows[..., None, :]


def _explained(scores: Float[Tensor, "batch head query key"]) -> Float[Tensor, " head"]:
    """Return the share of the variance within rows that a function of the offset fits (least squares)."""
    n = scores.shape[-1]
    at = torch.arange(n, device=scores.device)
    back = at[:, None] - at[None]
    seen = scores.isfinite().flatten(0, 1).all(0) & (back >= 0)
    count = seen.sum(-1, keepdim=True).clamp_min(1)
    values = torch.where(seen, scores, 0.0).double()
    values = torch.where(seen, values - values.sum(-1, keepdim=True) / count, 0.0)
    total = values.square().sum((0, 2, 3))
    # a row holds each offset at most once: its indicators, less their mean, are what a function of the offset spans
    holds = torch.zeros(n, n, dtype=torch.double, device=scores.device)
    holds[at[:, None].expand_as(back)[seen], back[seen]] = 1
    normal = torch.diag(holds.sum(0)) - (holds / count).mT @ holds
    sums = torch.zeros(scores.shape[1], n, dtype=torch.double, device=scores.device)
    sums.index_add_(1, back[seen], values[..., seen].sum(0))
    undo = decompositions.pseudo_inverse(normal, hermitian=True)
    fitted = torch.einsum("hd,de,he->h", sums, undo, sums) / len(scores)
    return torch.where(total > 0, fitted / total, torch.nan).to(scores.dtype)
