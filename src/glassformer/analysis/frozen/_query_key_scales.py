"""What norms of queries and keys divided by on a text: with these numbers held, scores are bilinear.

    score[i, j] = (x_i Q') R(i - j) (y_j K')' * scale / (s_i s_j)

Q' and K' have the norms' gains and the subtraction of means folded in (`AttentionWeights.looking`); s_i and s_j are one
positive number for each query and each key of a head, or of all heads together. Whatever weights say of a query and a
key by themselves is true up to these numbers, and exactly with them.

Where keys and values are made of normed latents, s_j is what divides the latent of a key, and so its value:

    key_j = [y_j K'_C / s_j | y_j K_R],     value_j = y_j V' / s_j

The part of a key that passes no norm is as it is, so QK is no one matrix up to s_j, but one with s_j held (`hold`).
"""
# torch does not type the parts of a module
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis._run import Run
from glassformer.analysis.question import question
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike, SubLayer, require_model
from glassformer.models.stack import make_context
from glassformer.numerics.precision import wide
from glassformer.weights import AttentionWeights, HeadScales, HeadWeights, WeightsLike
from glassformer.weights.heads import Side


@dataclasses.dataclass(frozen=True, eq=False)
class QueryKeyScales(Result):
    """What norms of queries and keys divided by.

    Args:
        query: Of each query, `head pos`; 1 where there is no norm. Two maps of one head are numbered, `L0H1/0`.
        key: Of the key that each query head uses, `head key`; NaN behind the shorter of two texts. Where latents are
            normed it is that of the latent, and so of the value.
        left_out: Heads whose scores are not bilinear even with scales held, and why.
    """

    HEADLINE = ("query", "key")

    query: Labelled
    key: Labelled
    left_out: Mapping[str, str]

    def at(self, layer: AttentionWeights, query: int, key: int) -> HeadScales:
        """Scales that `AttentionWeights.qk` takes, for one query and one key.

        Args:
            layer: A layer, or one head.
            query: Position of the query.
            key: Position of the key, in the source for cross-attention.

        Raises:
            AnalysisUnavailable: The layer was left out.
        """
        return HeadScales(
            self._of(layer, self.query, lambda rows: rows[:, query]),
            self._of(layer, self.key, lambda rows: rows[:, key]),
        )

    def hold(self, model: WeightsLike, query: int | None = None, key: int | None = None) -> HeadWeights:
        """Weights with scales of latents held, for analyses of weights in place of a model; other layers as they are.

        Args:
            model: A model, whose weights are folded first; or weights.
            query: Position of the query whose scale is held; by default the harmonic mean of all, at which QK is the
                mean of QK over queries.
            key: Position of the key, and of the value, likewise: OV is linear in one over the scale.

        Raises:
            AnalysisUnavailable: The numbers are of another model.

        Example:
            >>> scales = query_key_scales(model, "the cat sat on the")
            >>> composition(scales.hold(model))
        """

        def picked(position: int | None) -> Callable[[Tensor], Tensor]:
            if position is None:
                return lambda rows: 1 / rows.reciprocal().nanmean(1)
            return lambda rows: rows[:, position]

        def held(layer: AttentionWeights) -> AttentionWeights:
            if not layer.module.projection.norms_within:
                return layer
            of_query, of_key = self._of(layer, self.query, picked(query)), self._of(layer, self.key, picked(key))
            return layer.scaled_by(HeadScales(of_query, of_key))

        w = weights.matrices(model)
        return dataclasses.replace(w, attention=tuple(map(held, w.attention)))

    def mean(self, layer: AttentionWeights) -> HeadScales:
        """Mean scales, for all queries and keys of a head: geometric means over what was read."""

        def mean(rows: Tensor) -> Tensor:
            return rows.log().nanmean(1).exp()

        return HeadScales(self._of(layer, self.query, mean), self._of(layer, self.key, mean))

    def _of(self, layer: AttentionWeights, scales: Labelled, pick: Any) -> Float[Tensor, " head *stream"]:
        known = {label: i for i, label in enumerate(scales.labels("head"))}
        names = [name for names in _map_labels(layer) for name in names]
        if names[0] not in known:
            raise AnalysisUnavailable(
                f'query_key_scales: there are none of "{names[0]}".{nearest(names[0], map(str, known))}\n'
                f"    {self.left_out.get(names[0], 'They are of another model.')}"
            )
        return pick(scales.values[[known[name] for name in names]]).to(layer.Q).reshape(layer.Q.shape[:-2])


def scale_sites(model: ModelLike) -> list[str]:
    """Return the sites that `query_key_scales` reads: what queries and keys are made of."""
    model = require_model(model, "query_key_scales")
    return list(dict.fromkeys(site for layer in _layers(model) for site in _reads(model, layer)))


def with_scales(w: HeadWeights, *inputs: Any) -> HeadWeights:
    """Return weights with scales of latents held at their means over a text; weights without any as they are.

    Args:
        w: Weights.
        inputs: What the model reads: ids, for an encoder-decoder of both.
    """
    if not any(layer.module.projection.norms_within and not layer.scaled for layer in w):
        return w
    return query_key_scales(w.model, *inputs).hold(w)


@question("What do norms of queries and keys divide by on this text?", reads=scale_sites)
@torch.no_grad()
def query_key_scales(run: Any, text: Any = None, target: Any = None, *, row: int = 0) -> QueryKeyScales:
    """Query-key scales: what the norms of queries and keys divided by, at every position of a run.

    Args:
        run: A forward pass over whole documents (not packed) that read `[query_key_scales]`, or a model.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: No head has scores that are bilinear with scales held.

    Example:
        >>> scales = query_key_scales(run)
        >>> head = weights.of(model)["L1H6"]
        >>> head.qk(offset=3, scales=scales.at(head, query=7, key=4))
    """
    model = require_model(run.model, "query_key_scales")
    run.require(scale_sites(model), "query_key_scales")
    w = weights.of(model)
    layers, left_out = _bilinear(w)
    sides: tuple[list[Tensor], list[Tensor]] = [], []
    for layer in layers:
        for side, divided in zip(sides, _scales(run, model, w.sub_layers[layer.path], layer)):
            # maps of two streams come one after the other
            side += divided if divided.ndim == 2 else divided.flatten(0, 1)
    coords = {"head": [name for layer in layers for names in _map_labels(layer) for name in names]}
    query, key = (_stacked(side) for side in sides)
    return QueryKeyScales(Labelled(query, ("head", "pos"), coords), Labelled(key, ("head", "key"), coords), left_out)


def _bilinear(w: HeadWeights) -> tuple[list[AttentionWeights], dict[str, str]]:
    found, left_out, reason = list[AttentionWeights](), dict[str, str](), None
    for layer in w:
        try:
            # nothing is in the way of scales that latents have: they are what is asked for
            dataclasses.replace(layer, scaled=True).require_bilinear("query_key_scales")
            found.append(layer)
        except AnalysisUnavailable as error:
            reason = error
            left_out |= dict.fromkeys(layer.labels, str(error).partition("\n")[0])
    if not found:
        raise reason or AnalysisUnavailable("query_key_scales: this model has no attention heads.")
    return found, left_out


def _layers(model: Model) -> list[SubLayer]:
    every = [layer for stack in model.stacks for layer in model.sub_layers(stack)]
    return [layer for layer in every if layer.attention is not None]


def _reads(model: Model, layer: SubLayer) -> list[str]:
    """Return the sites of what a layer's queries and its keys read."""
    if not layer.crosses:
        return [layer.at_read]
    assert model.source is not None, "what crosses has a source"
    return [layer.at_read, model.stacks[model.source].final.at_out]


def _scales(run: Run, model: Model, place: SubLayer, layer: AttentionWeights) -> tuple[Tensor, Tensor]:
    """Return what is divided by, `head *stream pos`, of queries and of the keys that query heads use."""
    read = [wide(run[site].values) for site in _reads(model, place)]
    x, y = read[0], read[-1]
    context = make_context(1, x.shape[1], x.device, is_causal=True)
    x_q, x_k = layer.module.positions.inputs(x, y, context)

    def divided(side: Side, rows: Tensor) -> Tensor:
        matrix, bias = (layer.Q, layer.bQ) if side == "query" else (layer.K, layer.bK)
        if (within := layer.module.projection.scales(side, rows[0])) is not None:
            return within[:, 0].expand(*layer.Q.shape[:-2], -1)
        made = rows[0] @ matrix
        return layer.expanded(side, layer.divisor(side, made if bias is None else made + bias[..., None, :]))

    return divided("query", x_q), divided("key", x_k)


def _map_labels(layer: AttentionWeights) -> list[list[str]]:
    """Return the names of each head's maps: its label, or several that are numbered."""
    if layer.Q.ndim == 3:
        return [[label] for label in layer.labels]
    return [[f"{label}/{i}" for i in range(layer.Q.shape[1])] for label in layer.labels]


def _stacked(rows: list[Tensor]) -> Float[Tensor, "head pos"]:
    """Return rows of one width: texts of an encoder and a decoder differ in length."""
    width = max(row.shape[-1] for row in rows)
    return torch.stack([torch.nn.functional.pad(row, (0, width - row.shape[-1]), value=math.nan) for row in rows])
