"""Direct logit attribution: a logit as the sum of what every component wrote to the stream.

    logit = sum over components of  c . u  + constants,    u = the token's direction, carried back through the norms

What a component adds is the dot product of its write with the direction as it stands where it writes. In post-norm
stacks the direction passes every later norm, and each of those norms contributes its bias. Heads are read where their
values are mixed, with the direction carried on through the output matrix (u_h = W_O u), so that no head's write is
built. What later components made of a write is credited to them: effects are direct.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (expansion into direct paths).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.attribution._live_norm import FinalNorm
from glassformer.analysis.attribution.target import Target, aim, read_by_unembedding
from glassformer.analysis.components import Component, Kind, bias_of, vector_sites, written_by
from glassformer.analysis.frozen.directions import Directions, PulledDirections, Write, products, pull_back, scale_sites
from glassformer.analysis.places import Answers, Places, Positions, labelled_at, places
from glassformer.analysis.question import question
from glassformer.attention import AttentionLayer
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, SubLayer, require_model

NormMode = Literal["frozen", "live"]
_Parts = Iterator[tuple[list[Component], Tensor]]


@dataclasses.dataclass(frozen=True, eq=False)
class DirectLogitAttribution(Result):
    """Contributions to a logit, to a difference of two, or to a direction.

    Where all rows or several positions were asked for, every number has the axes `batch` or `pos`; one row and one
    position leave numbers without axes (`float(found.total)`).

    Args:
        contributions: In logits, over `component`.
        components: What each of them is, in the order of the forward pass.
        answer: Token id; None if a direction was given.
        against: Token id subtracted, or None.
        position: Index of the position whose next token is in question.
        total: The logit, difference, or dot product with the direction, as the model computed it.
        sum: Of the contributions. With frozen norms it is `total` up to rounding, unless the stream itself was edited;
            with live norms nothing makes it so, and what is missing is how far the norm's scale ties components
            together.
        norm: What the final norm divides by: `frozen`, what it divided by in this pass; `live`, the scale of what is
            left without the component, so that its contribution is what is lost with it.
        cap: The model's soft cap on logits, or None. With a cap, all numbers are of raw logits, before it: what comes
            after it is no sum.
    """

    HEADLINE = ("contributions",)
    SIGNED = ("contributions", "total", "sum")

    contributions: Labelled
    components: tuple[Component, ...]
    answer: Labelled | None
    against: Labelled | None
    position: Labelled
    total: Labelled
    sum: Labelled
    norm: NormMode
    cap: float | None

    def __getitem__(self, label: str) -> Labelled:
        """Return what one component adds, by its label."""
        return self.contributions.select(component=label)


def attribution_sites(model: ModelLike) -> list[str]:
    """Return the sites that `direct_logit_attribution` reads."""
    names = _component_sites(model)
    # what a direction is compared with, and what a live norm takes the scale of
    names += [layer.at_behind for layer in model.sub_layers()[-1:]] + [read_by_unembedding(model)]
    return names if model.unembed.cap is None else [*names, model.unembed.at_raw]


@question(
    "What adds to this logit?",
    reads=attribution_sites,
    holds=("norm scales", "readout"),
    judge="derivatives of a pass in which writes reach the logits directly or not at all; the logit as their sum",
)
def direct_logit_attribution(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    answer: Answers = None,
    against: Answers = None,
    direction: Float[Tensor, "*rows d_model"] | None = None,
    position: Positions = -1,
    row: int | None = 0,
    norm: NormMode = "frozen",
) -> DirectLogitAttribution:
    """Split a logit into the contributions of everything that wrote to the stream; or many, by row and position.

    Norm scales are frozen at the values they took in this pass, and so is what the activation of a readout multiplies
    its input by (act(u) / u), where the model has one; then the parts sum to the logit exactly (tested to
    1e-9 in float64). What is measured is the direct effect: what later components made of a write is credited to them.
    Of a model that caps its logits, the raw logit is split.

    Args:
        run: A forward pass that read `[direct_logit_attribution]`, or a model. If heads' writes were edited it also has
            to read `*.head_out`, which is preferred to `*.z` if it is there.
        answer: Token (text or id) whose logit is split: one, or ids with the axes `batch pos` of the result; one per
            row is one for all its positions. The likeliest next token of each position by default.
        against: Token whose logit is subtracted, likewise. Differences are free of the constant that logits are
            arbitrary up to.
        direction: In place of tokens, any direction of what the unembedding reads; one, or with the same axes.
        position: Position whose next token is in question; negative ones count from the end of the row's text. Several
            keep an axis `pos`, None takes all, those of padding included, which mean nothing; a tensor `batch place`
            gives every row its own.
        row: Row of the batch; None takes all, and keeps an axis `batch`.
        norm: `frozen` splits exactly. `live` is the loss from removing a component alone, all other writes as they
            were, the final norm's scale recomputed.

    Returns:
        Contributions in logits: `token`, `position`, `L0H0` …, `L0 attn bias`, `L0 mlp`, …, `final norm bias`,
        `unembed bias`. Heads of cross-attention are `L0X0`.

    Raises:
        SiteNotRead: The run lacks a site; the message lists what to add to `read=`.
        AnalysisUnavailable: The model is not one of ours, or its weights are not at hand (a loaded run); or live norms
            are asked for where the stream passes more norms than the final one.
        ShapeMismatch: There is no such row or position, or answers or directions do not fit those asked for.
    """
    run.require(_component_sites(run.model, run), "direct_logit_attribution")
    at = places(run, position, single=row is not None)
    aimed = aim(run, answer, against, direction, at, "direct_logit_attribution")
    path = pull_back(run, aimed.directions, at)
    components, contributions = _split(run, path, at, aimed, FinalNorm.of(run, path, at) if norm == "live" else None)

    def placed(values: Tensor | None) -> Labelled | None:
        return None if values is None else labelled_at(run, at, values)

    labels = [component.label for component in components]
    return DirectLogitAttribution(
        contributions=labelled_at(run, at, contributions, {"component": labels}),
        components=tuple(components),
        answer=placed(aimed.answers),
        against=placed(aimed.against),
        position=labelled_at(run, at, at.positions),
        total=labelled_at(run, at, aimed.total.detach().double()),
        sum=labelled_at(run, at, contributions.sum(-1)),
        norm=norm,
        cap=run.model.unembed.cap,
    )


def _mixed_values(run: Run, layer: SubLayer, part: AttentionLayer, at: Places) -> Float[Tensor, "row place head d_z"]:
    """Return what the output matrix reads: mixed values, normed and gated, by head."""
    z, factor = run[part.at.z].values, layer.multiplier(lambda site: run[site].values)
    return at.of_heads(z if factor is None else z * factor)


def _component_sites(model: ModelLike, done: Run | None = None) -> list[str]:
    """Return the sites components are read at; a head's own write, if it is there, spares all others of its layer."""
    names = vector_sites(require_model(model).output_embed)
    for layer in model.sub_layers():
        if layer.attention is None:
            names.append(layer.at_out)
            continue
        whole = layer.attention.at.head_out
        if done is not None and (whole in done or whole in done.edited):
            names.append(whole)
        else:
            names += [layer.attention.at.z, *layer.multiplier_sites]
    return names + [site for site in scale_sites(model) if site not in names]


def _split(
    run: Run, path: PulledDirections, at: Places, aimed: Target, scale: FinalNorm | None
) -> tuple[list[Component], Float[Tensor, "row place component"]]:
    """Return the components in the order of the forward pass, and what each adds along a path's directions."""
    components, values = list[Component](), list[Tensor]()
    for part, value in _each(run, path, at, scale):
        components += part
        values.append(value)
    constants: list[tuple[str, Kind, Tensor | None]] = [
        ("final norm bias", "final_bias", path.final_bias),
        ("readout bias", "readout_bias", aimed.readout_bias),
        ("unembed bias", "unembed_bias", aimed.bias),
    ]
    for label, kind, bias in constants:
        if bias is not None:
            components.append(Component(label, kind))
            values.append(bias[..., None])
    return components, torch.cat([value.expand(*at.positions.shape, -1) for value in values], -1).detach().double()


def _each(run: Run, path: PulledDirections, at: Places, scale: FinalNorm | None) -> _Parts:
    """Yield components with their contributions `row place component`, in the order of the forward pass."""
    embed = require_model(run.model).output_embed
    entries: list[tuple[str, Kind]] = [(embed.at_token, "token")]
    if embed.positions is not None:
        entries.append((embed.at_position, "position"))
    for site, kind in entries:
        yield [Component(kind, kind)], _of_vector(path.entry, at.of_stream(run[site].values), scale)
    if path.entry_bias is not None:
        yield [Component("embed norm bias", "norm_bias")], path.entry_bias[..., None]
    for write in path.writes:
        yield from _of_write(run, write, at, scale)


def _of_write(run: Run, write: Write, at: Places, scale: FinalNorm | None) -> _Parts:
    layer, u = write.layer, write.directions
    part = layer.attention
    if part is None:
        yield written_by(layer), _of_vector(u, at.of_stream(run[layer.at_out].values), scale)
    else:
        yield written_by(layer), _of_heads(run, write, part, at, scale)
        if (bias := part.merge.output.bias) is not None:
            bias = bias.detach()
            constant = u.constant(bias)[..., None]
            added = constant if scale is None else scale.of_vectors(bias.expand(*constant.shape, -1), constant)
            yield [bias_of(layer, "attn_bias")], added
    if write.bias is not None:
        yield [bias_of(layer, "norm_bias")], write.bias[..., None]


def _of_vector(u: Directions, x: Float[Tensor, "row place d_model"], scale: FinalNorm | None) -> Tensor:
    effect = u.dot(x)[..., None]
    return effect if scale is None else scale.of_vectors(x[..., None, :], effect)


def _of_heads(run: Run, write: Write, part: AttentionLayer, at: Places, scale: FinalNorm | None) -> Tensor:
    u = write.directions
    if part.at.head_out in run:
        written = at.of_heads(run[part.at.head_out].values)
        directions = u.spread(u.distinct)[..., None, :]
        effect = products(written, directions.expand(-1, -1, written.shape[2], -1)) * u.factor[..., None]
        return effect if scale is None else scale.of_vectors(written, effect)
    mixed, matrix = _mixed_values(run, write.layer, part, at), part.merge.matrix()
    effect = products(mixed, u.through(part.merge)) * u.factor[..., None]
    return effect if scale is None else scale.of_mixed(mixed, matrix.detach(), effect)
