"""The geometry of scores: how much of their variance lengths of queries, lengths of keys and angles make.

    score_ij = scale |q_i| |k_j| cos(q_i, k_j)

Each of the three factors is let vary over pairs or is held at its mean over pairs, and the variance of the product is
asked for each of the eight choices; with nothing varying it is zero. A factor's part is what letting it vary adds, mean
over the orders in which the three can be let vary (Shapley), so the three parts sum to the variance. A part is negative
where a factor works against the others. Two variances are split:

    pairs     over all visible pairs of all texts
    within    over the keys that one query sees, mean over pairs: softmax feels this one alone, since what all keys of a
              query share cancels; there a query's length is a temperature, and ranks nothing

Beyond the trained length, keys may have lengths and angles that training never showed. Norms of keys take the lengths
out of it (`QueryKeyNorm(gains="none", of="keys")`), and angles stay.

Source: Shapley 1953, "A Value for n-Person Games", for the shares; Su 2023, "Transformer Upgrade Road 15: Key
Normalization Helps Length Extrapolation", for the question.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.heads.roles import Head, heads
from glassformer.analysis.question import question
from glassformer.arguments import Count
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike
from glassformer.models.stack import make_context, with_source

FACTORS = ("query_norm", "key_norm", "angle")
VARIANCES = ("pairs", "within")
# by which a number lies outside a range for certain, in units of the range's larger end: half precision aside
ROUNDING = 1e-5


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreGeometry(Result):
    """What makes the scores of each head, and whether long texts lead to keys and angles that short ones do not.

    Heads with several queries and keys are in it with each: `L0H0 stream 1`.

    Args:
        shares: Of the variance of scores over all visible pairs, by `query_norm`, `key_norm` and `angle`, which sum to
            one, `head factor`; NaN where scores do not vary.
        shares_within: Of the variance within the keys that one query sees, same axes.
        variance: Of scores before positions add to them, before any cap and temperature, `head variance`.
        ranges: `lowest` and `highest` angle, in degrees, and length of a key, over pairs up to the trained length and
            over the others, `head measure reach bound`; NaN where there is no such pair.
        outside: Share of the pairs beyond the trained length whose angle, or key's length, lies outside the range of
            those up to it, `head measure`; NaN if there are no pairs beyond, or none up to it.
        pairs: How many visible pairs there are of both, `head reach`.
        length: The trained length, in positions.
        left_out: Heads whose scores are no product of a query and a key, and why.
    """

    HEADLINE = ("shares", "shares_within")
    SIGNED = ("shares", "shares_within")

    shares: Labelled
    shares_within: Labelled
    variance: Labelled
    ranges: Labelled
    outside: Labelled
    pairs: Labelled
    length: int
    left_out: Mapping[str, str]


def _sites_of_scores(model: ModelLike) -> list[str]:
    """Return what `score_geometry` reads: queries, keys and scores of the heads that it is of."""
    known, _ = _measurable(model)
    paths = dict.fromkeys(head.path for head in known)
    return [f"{path}.{what}" for path in paths for what in ("query", "key", "scores")]


@question(
    "Do lengths of queries and keys make scores, or the angles between them?",
    reads=_sites_of_scores,
    traits=("has_scores",),
)
@torch.no_grad()
def score_geometry(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    length: Count | None = None,
) -> ScoreGeometry:
    """Split the variance of scores, and compare pairs up to the trained length with those beyond it.

    Queries and keys are those that meet: behind norms, and turned by rotary positions. Keys that heads share in groups
    count for each of them. All texts of a batch count together, and padding does not.

    Args:
        length: Positions that count as trained: a pair is beyond if its query or its key is. By default the longest
            row of its training if that is known, else the longest text that it is meant for, `max_len` of its config,
            which no text goes beyond.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: No head has scores that are products of a query and a key.
    """
    run.require(_sites_of_scores(run.model), "score_geometry")
    known, left_out = _measurable(run.model)
    trained = length or run.model.familiar_length
    labels, found = list[str](), list[_Numbers]()
    for path, of_layer in itertools.groupby(known, lambda head: head.path):
        layer = list(of_layer)
        q, k, visible = queries_and_keys(run, path, layer[0].stack)
        scale = _layer(run.model, path).mixer.scale
        for stream, head in itertools.product(range(q.shape[1]), layer):
            labels.append(head.label if q.shape[1] == 1 else f"{head.label} stream {stream}")
            queries, keys, seen = (x[:, stream, head.head] for x in (q, k, visible))
            found.append(_numbers(queries, keys, seen, scale, trained))

    def of_all(name: str, part: Any = ..., **axes: tuple[str, ...]) -> Labelled:
        values = torch.stack([getattr(numbers, name)[part] for numbers in found]).cpu()
        return Labelled(values, ("head", *axes), {"head": labels, **axes})

    measures, reach = ("angle", "key_norm"), ("trained", "beyond")
    return ScoreGeometry(
        shares=of_all("shares", 0, factor=FACTORS),
        shares_within=of_all("shares", 1, factor=FACTORS),
        variance=of_all("variance", variance=VARIANCES),
        ranges=of_all("ranges", measure=measures, reach=reach, bound=("lowest", "highest")),
        outside=of_all("outside", measure=measures),
        pairs=of_all("pairs", reach=reach),
        length=trained,
        left_out=left_out,
    )


@dataclasses.dataclass(frozen=True)
class _Numbers:
    """What is measured of one head, as `ScoreGeometry` has it."""

    shares: Float[Tensor, "variance factor"]
    variance: Float[Tensor, " variance"]
    ranges: Float[Tensor, "measure reach bound"]
    outside: Float[Tensor, " measure"]
    pairs: Float[Tensor, " reach"]


def _measurable(model: ModelLike) -> tuple[list[Head], dict[str, str]]:
    """Return the heads whose scores are products of a query and a key, and the others with the reason."""
    known, left_out = list[Head](), dict[str, str]()
    for head in heads(model):
        if why := why_no_product(_layer(model, head.path)):
            left_out[head.label] = why
        else:
            known.append(head)
    if not known:
        why = ", ".join(dict.fromkeys(left_out.values())) or "no attention"
        raise AnalysisUnavailable(
            f"score_geometry needs scores that are products of one query and one key; found {why}.\n"
            "    head_roles(run) reads patterns, whatever they are made of."
        )
    return known, left_out


def why_no_product(layer: AttentionLayer) -> str | None:
    """Return why the scores of a layer are no products of one query and one key; None where they are."""
    # a cap bends scores behind the product: what counts is the kind, whatever its settings
    traits, kind = layer.config.mixer.traits, layer.config.mixer.kind
    if not traits.has_scores:
        return f'"{kind}" has no scores before a normaliser (has_scores=False)'
    if not traits.bilinear_scores:
        return f'scores of "{kind}" are no products (bilinear_scores=False)'
    if layer.positions.has_scores:
        return f'"{layer.config.positions.kind}" positions give a query several directions'
    return None


def _layer(model: ModelLike, path: str) -> AttentionLayer:
    layer = model.sub_layer(path).attention
    assert layer is not None, "the path of a head is that of an attention layer"
    return layer


def queries_and_keys(
    run: Run, path: str, stack: str
) -> tuple[
    Float[Tensor, "batch stream head query d_head"],
    Float[Tensor, "batch stream head key d_head"],
    Bool[Tensor, "batch stream head query key"],
]:
    """Return queries and keys of one layer as they meet, in float64, and which pairs are seen."""
    layer = _layer(run.model, path)
    q, k, scores = (run[f"{path}.{what}"].values for what in ("query", "key", "scores"))
    n, m = scores.shape[-2:]
    if layer.positions.at_read:
        context = make_context(len(q), n, q.device, is_causal=True)
        if layer.config.cross:
            context = with_source(context, m).source
            assert context is not None, "the context was made with the source"
        k = layer.positions.read(k, context)
    visible = scores > -math.inf
    if (real := run.inputs.real_lengths(stack == "encoder")) is not None:
        # rows of padding see what is real
        there = torch.arange(n, device=q.device) < real.to(q.device)[:, None]
        visible = visible & there.view(len(there), *[1] * (visible.ndim - 3), n, 1)
    q, k = layer.mixer.queries(q).double(), layer.mixer.keys(k).double()
    return tuple(x if x.ndim == 5 else x.unsqueeze(1) for x in (q, k, visible))  # type: ignore[return-value]


def _numbers(
    q: Float[Tensor, "batch query d_head"],
    k: Float[Tensor, "batch key d_head"],
    visible: Bool[Tensor, "batch query key"],
    scale: float,
    trained: int,
) -> _Numbers:
    sizes = q.norm(dim=-1)[:, :, None].expand(visible.shape), k.norm(dim=-1)[:, None].expand(visible.shape)
    lengths = sizes[0] * sizes[1]
    cosine = (q @ k.mT / torch.where(lengths > 0, lengths, 1.0)).clamp(-1, 1)
    shares, variance = shapley_shares((*sizes, cosine), visible)
    places = [torch.arange(n, device=q.device) < trained for n in visible.shape[1:]]
    known = visible & (places[0][:, None] & places[1])
    ranges, outside = list[Tensor](), list[Tensor]()
    for measure in (cosine.acos().rad2deg(), sizes[1]):
        inside, beyond = measure[known], measure[visible & ~known]
        ranges.append(torch.stack([_range(inside), _range(beyond)]))
        lowest, highest = ranges[-1][0]
        room = ROUNDING * highest
        out = ((beyond < lowest - room) | (beyond > highest + room)).double()
        outside.append(out.mean() if len(inside) else out.mean() * math.nan)
    counts = torch.stack([known.sum(), (visible & ~known).sum()]).double()
    return _Numbers(shares, variance * scale**2, torch.stack(ranges), torch.stack(outside), counts)


def _range(found: Float[Tensor, " pair"]) -> Float[Tensor, "2"]:
    return torch.stack(found.aminmax()) if len(found) else found.new_full((2,), math.nan)


def shapley_shares(
    factors: tuple[Float[Tensor, "batch query key"], ...], visible: Bool[Tensor, "batch query key"]
) -> tuple[Float[Tensor, "variance factor"], Float[Tensor, " variance"]]:
    """Return each factor's share of the variance of the product over visible pairs, and that variance.

    Both as `ScoreGeometry` has them: over all pairs, and within the keys of a query.
    """
    n, held = len(factors), [factor[visible].mean() for factor in factors]

    def product(varying: frozenset[int]) -> Tensor:
        chosen = [factors[i] if i in varying else held[i] for i in range(n)]
        return functools.reduce(torch.mul, chosen).expand(visible.shape)

    everything = frozenset(range(n))
    variance = {varying: _variances(product(varying), visible) for varying in _subsets(everything)}
    whole, parts = variance[everything], list[Tensor]()
    for i in range(n):
        added = [
            (variance[varying | {i}] - variance[varying]) / (n * math.comb(n - 1, len(varying)))
            for varying in _subsets(everything - {i})
        ]
        parts.append(torch.stack(added).sum(0))
    # what rounding leaves of scores that are all alike has no parts
    alike = whole <= 1e-24 * product(everything)[visible].square().mean()
    return torch.stack(parts, -1) / whole.masked_fill(alike, math.nan)[:, None], whole


def _subsets(of: frozenset[int]) -> Iterator[frozenset[int]]:
    for size in range(len(of) + 1):
        yield from map(frozenset, itertools.combinations(of, size))


def _variances(product: Float[Tensor, "batch query key"], visible: Bool[Tensor, "batch query key"]) -> Tensor:
    """Return the variance over visible pairs, and the mean over them of the variance within their query's keys."""
    numbers = product.masked_fill(~visible, 0.0)
    mean = numbers.sum() / visible.sum()
    row = numbers.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp_min(1)
    return torch.stack([(product - centre)[visible].square().mean() for centre in (mean, row)])
