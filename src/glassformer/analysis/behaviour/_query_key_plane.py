"""One query among the keys it sees: a plane that holds its scores whole, with lengths and angles.

    product_j = scale |q| |k_j| cos(q, k_j) = scale |q| x_j        x_j: coordinate of key j along the query

The first axis of the plane points along the query, so that how far a key lies along it is the key's score but for a
constant, and nothing of the score lies outside. The others are the principal axes, about zero, of what is left of the
keys: where there are more dimensions than axes, keys look shorter than they are, and angles wider or narrower. How long
each key is and at which angle it stands to the query are numbers beside its place, of the vectors whole.

Queries and keys are those that meet: behind norms, and turned by rotary positions. What positions add to scores, and
caps that bend them, are no part of a product: `scores` has these, and is the product where there are none.

Source: Vaswani et al. 2017, section 3.2.1, for the product; the projection is ours.
"""

import dataclasses
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.behaviour._score_geometry import queries_and_keys, why_no_product
from glassformer.analysis.heads.roles import Head, heads
from glassformer.analysis.places import position_labels, text_positions
from glassformer.analysis.question import question
from glassformer.arguments import Count, Natural
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike
from glassformer.numerics import decompositions
from glassformer.numerics.precision import ROUNDING


@dataclasses.dataclass(frozen=True, eq=False)
class QueryKeyPlane(Result):
    """One query of a head and the keys it sees, in a plane through the query; keys that a mask hides are NaN.

    Args:
        query: Coordinates of the query, `axis`: its length, then zeros.
        keys: Coordinates of every key, `key axis`.
        explained: Share of the keys' squared lengths along each axis, `axis`; 1 in sum where no more axes are needed.
        lengths: Of the keys, whole, `key`.
        angles: Between the query and each key, whole, in degrees, `key`.
        products: What queries and keys alone make of the scores, `key`: the scale times the product of their vectors.
        scores: What the pattern is made of, `key`.
        length: Of the query.
        scale: That products are multiplied with.
        head: Its label.
        position: Index of the query.
        stream: Which of the head's maps.
        streams: How many it has.
    """

    HEADLINE = ("products", "angles")
    SIGNED = ("query", "keys", "products", "scores")

    query: Labelled
    keys: Labelled
    explained: Labelled
    lengths: Labelled
    angles: Labelled
    products: Labelled
    scores: Labelled
    length: float
    scale: float
    head: str
    position: int
    stream: int
    streams: int


def _sites_of_plane(model: ModelLike, head: str | None = None) -> list[str]:
    """Return what is read of one head, or of all that have a plane."""
    found = [_known(model, head)] if head is not None else [one for one in heads(model) if not _refusal(model, one)]
    paths = dict.fromkeys(one.path for one in found)
    return [f"{path}.{what}" for path in paths for what in ("query", "key", "scores")]


def _layer(model: ModelLike, head: Head) -> AttentionLayer:
    layer = model.sub_layer(head.path).attention
    assert layer is not None, "the path of a head is that of an attention layer"
    return layer


def _refusal(model: ModelLike, head: Head) -> str | None:
    return why_no_product(_layer(model, head))


def _known(model: ModelLike, label: str) -> Head:
    """Return a head by its label; raises `AnalysisUnavailable` where there is none, or its scores are no products."""
    known = {head.label: head for head in heads(model)}
    if label not in known:
        raise AnalysisUnavailable(f'query_key_plane: no head "{label}".{nearest(label, known)}')
    if why := _refusal(model, known[label]):
        raise AnalysisUnavailable(
            f"query_key_plane needs scores that are products of one query and one key; of {label}, {why}.\n"
            "    What its pattern weighs: head_roles(run); what it writes: frozen.write_sources(run, label=…)."
        )
    return known[label]


@question(
    "How does a query find its keys?",
    reads=_sites_of_plane,
    traits=("has_scores",),
)
@torch.no_grad()
def query_key_plane(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    head: str,
    position: int = -1,
    stream: Natural = 0,
    axes: Count = 3,
    row: int = 0,
) -> QueryKeyPlane:
    """Place the keys that one query sees in a plane through the query.

    Args:
        head: Its label, `L1H6`.
        position: Of the query; negative ones count from the end of what the head's queries are of.
        stream: Which map, of a head that has several queries and keys.
        axes: How many, at most: the query's, and principal axes of what is left of the keys.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: There is no such head, or its scores are no product of a query and a key, or the query is
            zero, which points nowhere.
        ShapeMismatch: There is no such position or map.
    """
    found = _known(run.model, head)
    run.require(_sites_of_plane(run.model, head), "query_key_plane")
    layer = _layer(run.model, found)
    queries, keys, visible = queries_and_keys(run, found.path, found.stack)
    streams = queries.shape[1]
    if stream >= streams:
        raise ShapeMismatch(f"query_key_plane: {head} has {streams} map{'s'[: streams > 1]}, and no map {stream}.")
    (at,) = text_positions([position], queries.shape[-2])
    own: tuple[int, int, int] = (0, stream, found.head)
    q, k, seen = queries[own][at], keys[own], visible[own][at]
    length = q.norm()
    if not bool(length > 0):
        raise AnalysisUnavailable(
            f"query_key_plane: the query of {head} at position {at} is zero, so every key stands at no angle to it.\n"
            "    Give another position."
        )
    directions, explained = _axes(q / length, k[seen], axes)
    sizes, scale = k.norm(dim=-1), layer.mixer.scale
    cosines = (k @ q) / (sizes * length).clamp_min(torch.finfo(k.dtype).tiny)
    scores = run[f"{found.path}.scores"].values
    scores = (scores if scores.ndim == 5 else scores.unsqueeze(1))[own][at].to(k)
    names = {"key": position_labels(_key_tokens(run, found))}
    names = names if len(names["key"]) == len(k) else {}

    def of_keys(values: Tensor, *more: str) -> Labelled:
        hidden = ~seen if not more else ~seen[:, None]
        return Labelled(values.masked_fill(hidden, math.nan), ("key", *more), names)

    return QueryKeyPlane(
        query=Labelled(q @ directions.mT, ("axis",)),
        keys=of_keys(k @ directions.mT, "axis"),
        explained=Labelled(explained, ("axis",)),
        lengths=of_keys(sizes),
        angles=of_keys(cosines.clamp(-1, 1).acos().rad2deg()),
        products=of_keys(scale * (k @ q)),
        scores=of_keys(scores),
        length=float(length),
        scale=float(scale),
        head=head,
        position=at,
        stream=stream,
        streams=streams,
    )


def _axes(
    along: Float[Tensor, " d_head"], keys: Float[Tensor, "key d_head"], most: int
) -> tuple[Float[Tensor, "axis d_head"], Float[Tensor, " axis"]]:
    """Return the query's direction and the principal axes, about zero, of what is left of the keys, with shares."""
    part = keys @ along
    rest = keys - part[:, None] * along
    _, sizes, others = decompositions.svd(rest)
    whole = keys.square().sum().clamp_min(torch.finfo(keys.dtype).tiny)
    some = sizes.square() > whole * ROUNDING**2
    others, sizes = others[some][: most - 1], sizes[some][: most - 1]
    # the last key lies on the positive side, as an axis has no sign of its own
    others = others * torch.where(others @ rest[-1] < 0, -1.0, 1.0)[:, None]
    energy = torch.cat([part.square().sum()[None], sizes.square()])
    return torch.cat([along[None], others]), energy / whole


def _key_tokens(run: Run, head: Head) -> list[str]:
    return run.source_tokens if head.crosses or (head.stack == "encoder" and run.source_tokens) else run.tokens
