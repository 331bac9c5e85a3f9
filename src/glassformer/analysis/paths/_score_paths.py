"""Attention scores of one head as a sum over what the query and what the key is made of.

    score[i, j] = scale * sum over a, b of  (a_i W_Q) R(i - j) (b_j W_K)'  + position bias

a and b run over the components of the stream that the head reads: token, position, every earlier head, biases, what
MLPs wrote; further over what queries and keys get besides it: `positions` (added to queries and keys only) and `bias`
(of the norm and of the projection). Terms fall in four classes by whether earlier heads had a part in them: `direct` in
neither side, `Q` in the query, `K` in the key, `QK` in both. MLPs count as direct: a leaf of its own.

Where keys are mixed with those before them (smeared), so is each of their components: a term at a key then holds its
share of the key before. Norms divide by the scale they had in the run (frozen), those on queries and keys too; then
the terms sum to the score. Where scores are capped they sum to the raw score, before the cap.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (path expansion of attention scores,
Q- and K-composition).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.components import Component, head_labels
from glassformer.analysis.frozen.addends import each_write, residual_sites
from glassformer.analysis.frozen.norm import FrozenNorm
from glassformer.analysis.question import question
from glassformer.attention import AttentionLayer
from glassformer.attention.context import Context
from glassformer.attention.positions import QueryKeyOnlyPositions
from glassformer.attention.projections import (
    ActivatedProjection,
    ConvolvedProjection,
    ShiftedProjection,
    SmearedProjection,
)
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import ModelLike, SubLayer
from glassformer.models.stack import make_context
from glassformer.provenance import tell
from glassformer.weights.heads import CAPPED

CLASSES = ("direct", "Q", "K", "QK")
MOST_TERMS = 1 << 22  # that a page carries: those of all queries and keys of a long text fit into no memory


@dataclasses.dataclass(frozen=True, eq=False)
class ScorePaths(Result):
    """Where one head's scores come from.

    The numbers of a query matter up to what they have in common over keys, which softmax does not see.

    Args:
        queries: What each component makes of the queries, the scale of scores included, `query_component [stream]
            [query] d_head`; `query` (and `key` below) only where no single position was asked for.
        keys: What each makes of the keys, `key_component [stream] [key] d_head`.
        classes: Sum of the terms of each class, `[stream] class [query key]`. What is not attended to is computed too.
        position_bias: What is added to the score for the distance alone (ALiBi), `[query key]`; 0 without.
        total: The sum of all of it, `[stream] [query key]`; where scores are capped the raw score, which is the sum of
            the terms: the position bias is added behind the cap.
        label: The head.
    """

    HEADLINE = ("classes", "total")
    SIGNED = ("queries", "keys", "classes", "position_bias", "total")

    queries: Labelled
    keys: Labelled
    classes: Labelled
    position_bias: Labelled
    total: Labelled
    label: str

    @property
    def terms(self) -> Labelled:
        """The terms, `[stream] query_component key_component [query key]`, in units of scores: queries times keys.

        Of all queries and keys they are components squared times positions squared; ask for one `query` of a long text.
        A page carries them where they are not more than four million.
        """
        names: list[str] = ["stream", "query_component", "key_component", "query", "key", "d_head"]
        letters = dict(zip(names, "sabijd"))
        q, k = ("".join(letters[axis] for axis in side.axes) for side in (self.queries, self.keys))
        order = [axis for axis in names[:-1] if letters[axis] in q + k]
        values = torch.einsum(
            f"{q},{k}->{''.join(letters[axis] for axis in order)}", self.queries.values, self.keys.values
        )
        return Labelled(values, tuple(order), {**self.queries.coords, **self.keys.coords})

    def _derived(self) -> list[str]:
        streams = self.queries.size("stream") if "stream" in self.queries.axes else 1
        n = self.queries.values.numel() * self.keys.values.numel() // (self.queries.size("d_head") ** 2 * streams)
        return [name for name in super()._derived() if name != "terms" or n <= MOST_TERMS]


def score_sites(model: ModelLike, head: str | None = None, done: Run | None = None) -> list[str]:
    """Return the sites that `score_paths` reads, to be passed as `read=`: of one head those written before it.

    Args:
        done: As for `residual_sites`.
    """
    layers = model.sub_layers()
    asked = layers if head is None else [layer for layer in layers if head in head_labels(layer)]
    found = residual_sites(model, place=asked[0].at_stream if head is not None and asked else None, done=done)
    before = [layer.before for layer in asked]
    found += [norm.at_scale for norm in before if norm is not None and not norm.identity]
    within = [layer for layer in asked if (a := layer.self_attention) and a.projection.norms_within]
    return found + [layer.at_read for layer in within]


@question(
    "What makes a head look there?",
    reads=score_sites,
    traits=("bilinear_raw_scores",),
    holds=("norm scales", "query-key scales"),
)
@torch.no_grad()
def score_paths(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    head: str,
    query: int | None = None,
    key: int | None = None,
    row: int = 0,
) -> ScorePaths:
    """Split the scores of one self-attention head by what wrote the query and what wrote the key.

    Args:
        run: A forward pass over whole documents (not packed) that read `[score_paths]`, or a model.
        head: Label of a head in the stack that ends in the logits.
        query: One position only; negative ones count from the end.
        key: One position only.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: No such head, it is cross-attention, or its scores are not bilinear.
    """
    layer, part, h = _find(run.model, head)
    run.require(score_sites(run.model, head, run), "score_paths")
    context = make_context(1, len(run.tokens), part.projection.qkv.weight.device, is_causal=True)
    places = [None if p is None else run.place(p) for p in (query, key)]
    kept = [slice(None) if p is None else slice(p, p + 1) for p in places]
    components, q, k = _projected(run, layer, part, h, kept, context)
    q *= part.mixer.scale
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    bias = q.new_zeros(n_queries, n_keys)
    if part.mixer.traits.capped_scores:
        tell([CAPPED])
    if part.positions.has_bias:
        whole = part.positions.bias(context)[0, h].to(bias)
        for axis, p in enumerate(places):
            whole = whole if p is None else whole.narrow(axis, p, 1)
        bias = whole
    earlier = torch.tensor([c.head is not None for c in components], device=q.device)
    # the terms of a class sum to the product of the sums of its components
    asking, asked = ([u[there].sum(0) for there in (~earlier, earlier)] for u in (q, k))
    classes = torch.stack([asking[i] @ asked[j].mT for j in (0, 1) for i in (0, 1)], -3)
    total = classes.sum(-3)
    total = total if part.mixer.traits.capped_scores else total + bias
    return _labelled(run, head, [c.label for c in components], (q, k), classes, bias, total, places)


def _projected(
    run: Run, layer: SubLayer, part: AttentionLayer, h: int, kept: Sequence[slice], context: Context
) -> tuple[list[Component], Tensor, Tensor]:
    """Return the components of one head's queries and keys that are kept, `component [stream] pos d_head`."""
    projection, components = part.projection, list[Component]()

    def by_head(flat: Tensor) -> tuple[Tensor, Tensor]:
        flat_q, flat_k = flat.split(projection.widths[:2], -1)
        q, k = projection.by_head(*(_heads(part, flat, n) for flat, n in zip((flat_q, flat_k), projection.made)))
        if not projection.norms_within:
            return q, k
        # norms between the matrices: linear once each addend is divided by the scale of what was read
        read = run[layer.at_read].values
        return _within(q, projection.scales("query", read)), _within(k, projection.scales("key", read))

    whole, norms = None, projection.norms
    if norms is not None:
        whole = by_head(torch.stack([flat.sum(0) for _, flat in _inputs(run, layer, part, context)]).sum(0)[None])
    # bias and positions besides what is written
    most = sum(len(found) for found, _ in each_write(run, layer.at_stream)) + 2
    sides: list[Tensor] = []
    for found, flat in _inputs(run, layer, part, context):
        components += found
        q, k = by_head(flat)
        if norms is not None and whole is not None:
            q, k = (_normed(*one, found == [_bias(layer)]) for one in zip(norms, (q, k), whole))
        if isinstance(projection, SmearedProjection):
            k = projection.smear(k, context.positions)[0]
        turned_q, turned_k = part.positions.rotate(q, k, context)
        assert turned_k is not None
        q, k = part.mixer.queries(turned_q, context), part.mixer.keys(turned_k)
        q, k = q[..., h, kept[0], :], k[..., h, kept[1], :]
        # in one piece from the start: pieces that stay between larger ones that go would leave holes of their size
        sides = sides or [one.new_empty(most, *one.shape[1:]) for one in (q, k)]
        for side, one in zip(sides, (q, k)):
            side[len(components) - len(found) : len(components)] = one
    q, k = (side[: len(components)] for side in sides)
    return components, q, k


def _inputs(
    run: Run, layer: SubLayer, part: AttentionLayer, context: Context
) -> Iterator[tuple[list[Component], Float[Tensor, "component pos width"]]]:
    """Yield components of what queries and keys are, before their heads, norms and positions, some at a time."""
    norm = FrozenNorm.of(layer.before, lambda site: run[site].values[0])
    projection = part.projection
    weight, own = projection.qkv.weight[: sum(projection.widths[:2])], projection.qkv.bias
    for found, vectors in each_write(run, layer.at_stream):
        yield found, norm(vectors) @ weight.mT
    nothing = weight.new_zeros(1, len(run.tokens), weight.shape[1])
    constant = None if norm.bias is None else norm.bias @ weight.mT
    if own is not None:
        constant = own[: len(weight)] if constant is None else constant + own[: len(weight)]
    if constant is None and projection.norms is not None and any(one.bias is not None for one in projection.norms):
        constant = weight.new_zeros(len(weight))
    if constant is not None:
        yield [_bias(layer)], constant.expand(1, nothing.shape[1], -1)
    if isinstance(part.positions, QueryKeyOnlyPositions):
        positions = [Component("positions", "position", layer.layer, layer.name)]
        yield positions, part.positions.inputs(nothing, nothing, context)[0] @ weight.mT


def _bias(layer: SubLayer) -> Component:
    return Component("bias", "attn_bias", layer.layer, layer.name)


def _heads(part: AttentionLayer, x: Tensor, heads: int) -> Float[Tensor, "component *stream head pos d_head"]:
    streams, width = part.mixer.traits.streams, part.dims.d_head
    if streams == 1:
        return x.unflatten(-1, (heads, width)).transpose(1, 2)
    return x.unflatten(-1, (heads, streams, width)).permute(0, 3, 2, 1, 4)


def _within(x: Tensor, scale: Tensor | None) -> Tensor:
    """Return addends of heads, `component [stream] head pos d_head`, divided by scales, `1 pos width`."""
    return x if scale is None else x / scale[(slice(None), *[None] * (x.ndim - 3))]


def _normed(norm: Any, addends: Tensor, whole: Tensor, with_bias: bool) -> Tensor:
    """Return addends of a whole through the norm on queries or keys, whose bias goes with the others."""
    linear = norm.linear(addends, whole)
    return linear + norm.shift(linear) if with_bias else linear


def _find(model: ModelLike, label: str) -> tuple[SubLayer, AttentionLayer, int]:
    known = {name: (layer, h) for layer in model.sub_layers() for h, name in enumerate(head_labels(layer))}
    if label not in known:
        raise AnalysisUnavailable(f'score_paths: no head "{label}".{nearest(label, known)}')
    layer, h = known[label]
    part = layer.attention
    assert part is not None, "heads are those of attention"
    if part.config.cross:
        raise AnalysisUnavailable(
            f'score_paths: the keys of "{label}" come from another stack, which this stream says nothing of.\n'
            f'    Read its scores: gf.run(…, read=["{part.at.scores}"]).'
        )
    if part.projection.clip is not None:
        raise AnalysisUnavailable(
            f"score_paths: layer {part.dims.layer} cuts its queries and keys off at {part.projection.clip:g} (clip), "
            f'so its scores are no sum over paths.\n    Read them: gf.run(…, read=["{part.at.scores}"]).'
        )
    bent = (ActivatedProjection, ConvolvedProjection, ShiftedProjection)
    if part.positions.has_scores or isinstance(part.projection, bent):
        kind = part.config.positions.kind if part.positions.has_scores else part.config.projection.kind
        raise AnalysisUnavailable(
            f'score_paths: layer {part.dims.layer} has "{kind}" scores, which are no product of one query and one key.'
            f'\n    Read them: gf.run(…, read=["{part.at.scores}"]).'
        )
    if not part.mixer.traits.bilinear_raw_scores:
        raise AnalysisUnavailable(
            f'score_paths: layer {part.dims.layer} uses "{part.config.mixer.described}", whose scores are not bilinear '
            "in query and key (bilinear_scores=False).\n    Its patterns are in gf.run(…, "
            f'read=["{part.at.pattern}"]), its values in analysis.paths.expand_paths(run).'
        )
    return layer, part, h


def _labelled(
    run: Run, head: str, names: list[str], sides: tuple[Tensor, Tensor], classes: Tensor, bias: Tensor, total: Tensor,
    places: list[int | None],
) -> ScorePaths:  # fmt: skip
    tokens: list[Coordinate] = [f"{i}:{token}" for i, token in enumerate(run.tokens)]
    kept: dict[str, Any] = {}
    factors: list[Labelled] = []
    lead = ("stream",) if classes.ndim == 4 else ()
    for name, place, side in zip(("query", "key"), places, sides):
        own: dict[str, Any] = {} if place is not None else {name: tokens[: side.shape[-2]]}
        values = side if place is None else side[..., 0, :]
        axes = (f"{name}_component", *lead, *own, "d_head")
        factors.append(Labelled(values, axes, {f"{name}_component": names} | own))
        kept |= own
    where = tuple(slice(None) if place is None else 0 for place in places)
    tail = tuple(kept)
    return ScorePaths(
        factors[0],
        factors[1],
        Labelled(classes[(..., *where)], (*lead, "class", *tail), {"class": list(CLASSES)} | kept),
        Labelled(bias[where], tail, kept),
        Labelled(total[(..., *where)], (*lead, *tail), kept),
        head,
    )
