"""Direct logit attribution below the level of components: heads by the token whose value they move, MLPs by neuron.

    head, by key       pattern[query, key] * (value[key] . u_h[query]),    u_h = W_O u, through the head's norm and gate
    neuron             hidden[neuron] * (W_out u)[neuron]

Keys sum to the head's effect, neurons and the output bias to the MLP's. All norms are frozen.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.attribution.target import aim, aim_sites
from glassformer.analysis.components import head_labels, require_pattern
from glassformer.analysis.frozen.directions import PulledDirections, Write, pull_back
from glassformer.analysis.places import Answers, Places, Positions, key_labels, labelled_at, places
from glassformer.analysis.question import question
from glassformer.attention import AttentionLayer
from glassformer.errors import AnalysisUnavailable, UnknownAxis
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, SubLayer, require_model
from glassformer.models.mlp import MlpLayer


@dataclasses.dataclass(frozen=True, eq=False)
class SourceEffects(Result):
    """What every head takes from every token; with axes `batch` and `pos` if all rows or several positions were asked.

    Args:
        contributions: Of self-attention, in logits, `head key`; keys sum to the head's contribution.
        cross: Of cross-attention, whose keys are the encoder's tokens, likewise; None without any.
    """

    HEADLINE = ("contributions", "cross")
    SIGNED = ("contributions", "cross")

    contributions: Labelled
    cross: Labelled | None = None

    def __getitem__(self, label: str) -> Labelled:
        """Return what one head takes over `key`, by its label, whichever attention it is of; raises `UnknownAxis`."""
        heads: list[str] = []
        for found in (self.contributions, self.cross):
            here = [] if found is None else [str(head) for head in found.labels("head")]
            if found is not None and label in here:
                return found.select(head=label)
            heads += here
        raise UnknownAxis(f'"{label}" is no head of this attribution. Heads: {", ".join(heads)}.')


@dataclasses.dataclass(frozen=True, eq=False)
class NeuronEffects(Result):
    """What every MLP neuron adds; with axes `batch` and `pos` if all rows or several positions were asked for.

    Args:
        contributions: In logits, over `neuron`; neurons are named `L3N70`.
        bias: What each MLP's output bias adds, over `mlp`; with it neurons sum to the MLP's contribution.
    """

    HEADLINE = ("contributions", "bias")
    SIGNED = ("contributions", "bias")

    contributions: Labelled
    bias: Labelled


def direct_source_sites(
    model: ModelLike, layers: Sequence[int] | None = None, direction: Tensor | None = None
) -> list[str]:
    """Return the sites that `source_effects` reads; raises `NoPattern` as it does."""
    return aim_sites(model, direction is not None) + [
        site for layer in _attentions(model, layers) for site in _sites(layer)
    ]


def neuron_sites(model: ModelLike, layers: Sequence[int] | None = None, direction: Tensor | None = None) -> list[str]:
    """Return the sites that `neuron_effects` reads."""
    return aim_sites(model, direction is not None) + [part.at.hidden for part in _mlps(model, layers)]


@question(
    "Which tokens do heads' shares of this logit come from?",
    reads=direct_source_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates", "readout"),
    judge="the mechanism asked again with the values of one key alone",
)
def source_effects(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    answer: Answers = None,
    against: Answers = None,
    direction: Float[Tensor, "*rows d_model"] | None = None,
    position: Positions = -1,
    row: int | None = 0,
    layers: Sequence[int] | None = None,
) -> SourceEffects:
    """Split what heads add to logits by the token whose value they moved, norms frozen.

    Args:
        run: A forward pass that read `[source_effects]`, and with a direction `final.norm`; or a model.
        answer: As in `direct_logit_attribution`, and so the next four.
        direction: In place of tokens.
        position: One, several, or None for all.
        row: One, or None for all.
        layers: Only these; all by default.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern that multiplies values; `direct_logit_attribution` has its heads whole.
        AnalysisUnavailable: There is no attention in these layers.
    """
    chosen = _attentions(run.model, layers)
    run.require(direct_source_sites(run.model, layers, direction), "source_effects")
    at = places(run, position, single=row is not None)
    path = pull_back(run, aim(run, answer, against, direction, at, "source_effects").directions, at)
    return by_key(run, path, at, chosen)


@question(
    "Which neurons add to this logit?",
    reads=neuron_sites,
    holds=("norm scales", "readout"),
    judge="derivatives of a pass in which writes reach the logits directly or not at all",
)
def neuron_effects(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    answer: Answers = None,
    against: Answers = None,
    direction: Float[Tensor, "*rows d_model"] | None = None,
    position: Positions = -1,
    row: int | None = 0,
    layers: Sequence[int] | None = None,
) -> NeuronEffects:
    """Split what MLPs add to logits by neuron, norms frozen.

    Args:
        run: A forward pass that read `[neuron_effects]`, and with a direction `final.norm`; or a model.
        answer: As in `direct_logit_attribution`, and so the next four.
        direction: In place of tokens.
        position: One, several, or None for all; every position takes as many numbers as there are neurons.
        row: One, or None for all.
        layers: Only these; all by default.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: There is no MLP in these layers.
    """
    _mlps(run.model, layers)
    run.require(neuron_sites(run.model, layers, direction), "neuron_effects")
    at = places(run, position, single=row is not None)
    path = pull_back(run, aim(run, answer, against, direction, at, "neuron_effects").directions, at)
    values, biases, names, mlps = [], [], [], []
    for write in path.writes:
        layer, part = write.layer.layer, write.layer.part
        if not isinstance(part, MlpLayer) or (layers is not None and layer not in layers):
            continue
        u, hidden = write.directions, at.of_stream(run[part.at.hidden].values)
        values.append(hidden * u.spread(u.distinct @ part.output.weight.detach()) * u.factor[..., None])
        bias = part.output.bias
        biases.append(u.constant(bias) if bias is not None else torch.zeros_like(u.factor))
        names += neuron_labels(write.layer, part.d_mlp)
        mlps.append(write.layer.label)
    return NeuronEffects(
        labelled_at(run, at, torch.cat(values, -1).detach(), {"neuron": names}),
        labelled_at(run, at, torch.stack(biases, -1).detach(), {"mlp": mlps}),
    )


def neuron_labels(layer: SubLayer, n: int) -> list[str]:
    """Return the names of an MLP's neurons, `L3N70`; those of a block's second MLP end in `#1`."""
    again = f"#{layer.ordinal}" if layer.ordinal else ""
    return [f"{layer.block_label}N{i}{again}" for i in range(n)]


def by_key(run: Run, path: PulledDirections, at: Places, chosen: Sequence[SubLayer]) -> SourceEffects:
    """Return what the heads of some sub-layers take from each key, along a path's directions."""
    found: dict[bool, list[Tensor]] = {False: [], True: []}
    labels: dict[bool, list[str]] = {False: [], True: []}
    wanted = {layer.path for layer in chosen}
    for write in path.writes:
        layer, part = write.layer, write.layer.attention
        if layer.path in wanted and part is not None:
            found[layer.crosses].append(_taken(run, write, part, at))
            labels[layer.crosses] += head_labels(layer)
    results = [_labelled(run, at, found[c], labels[c], run.source_rows if c else run.token_rows) for c in (False, True)]
    own, cross = results
    if own is None:
        none = torch.zeros(*at.positions.shape, 0, 0, dtype=torch.float64)
        own = labelled_at(run, at, none, {"head": None, "key": None})
    return SourceEffects(own, cross)


def _taken(run: Run, write: Write, part: AttentionLayer, at: Places) -> Float[Tensor, "row place head key"]:
    u, (patterns, values) = write.directions, part.by_stream(run[part.at.pattern].values, run[part.at.value].values)
    through = u.through(part.merge)
    factor = write.layer.multiplier(lambda site: run[site].values)
    through = through if factor is None else through * at.of_heads(factor)
    through, found = through.transpose(1, 2), torch.zeros(())
    for pattern, value in zip(patterns.unbind(1), values.unbind(1)):
        found = found + at.of_heads(pattern) * (through @ value.mT).transpose(1, 2)
    return found * u.factor[..., None, None]


def _labelled(
    run: Run, at: Places, values: list[Tensor], heads: list[str], rows: Sequence[Sequence[str]]
) -> Labelled | None:
    if not values:
        return None
    stacked = torch.cat(values, 2).detach().double()
    keys, by_row = key_labels(rows, stacked.shape[-1])
    return labelled_at(run, at, stacked, {"head": heads, "key": None} | keys, by_row)


def _sites(layer: SubLayer) -> list[str]:
    part = layer.attention
    assert part is not None, "these are attention layers"
    require_pattern(part, "source_effects")
    return [part.at.pattern, part.at.value, *layer.multiplier_sites]


def _attentions(model: ModelLike, layers: Sequence[int] | None) -> list[SubLayer]:
    every = require_model(model, "source_effects").sub_layers()
    found = [one for one in every if one.attention and (layers is None or one.layer in layers)]
    if not found:
        raise AnalysisUnavailable(_none("source_effects", "attention", layers, len(model.output_stack.blocks)))
    return found


def _mlps(model: ModelLike, layers: Sequence[int] | None) -> list[MlpLayer]:
    every = require_model(model, "neuron_effects").sub_layers()
    found = [s.part for s in every if isinstance(s.part, MlpLayer) and (layers is None or s.layer in layers)]
    if not found:
        raise AnalysisUnavailable(_none("neuron_effects", "MLP", layers, len(model.output_stack.blocks)))
    return found


def _none(analysis: str, what: str, layers: Sequence[int] | None, depth: int) -> str:
    where = "this model has" if layers is None else f"layers {list(layers)} have"
    return (
        f"{analysis}: {where} no {what} (the stack that ends in the logits has {depth} layers).\n"
        "    direct_logit_attribution(run) splits by component."
    )
