"""What mixed values were multiplied by on a text: with these numbers held, what a head moves is one matrix.

    out[t] = sum over s of  P[t, s] x[s] OV[t],     OV[t] = W_V diag(m[t]) W_O

m[t] is the gate at position t, times gain over scale of a norm on mixed values. OV is linear in m: the mean of OV over
positions is that of the mean of m. Whatever m is, a head reads what V reads and writes what the rows of O span, so that
statements on subspaces need no run.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (OV circuits); with attention patterns
held there, gates and scales are held here.
"""

import dataclasses
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer import weights
from glassformer.analysis.components import head_labels
from glassformer.analysis.question import question
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, SubLayer, require_model
from glassformer.weights import AttentionWeights, HeadWeights, WeightsLike


@dataclasses.dataclass(frozen=True, eq=False)
class OutputGates(Result):
    """What mixed values were multiplied by before the output matrix.

    Args:
        multiplier: Of each number that a head mixes, `head pos d_value`: the gate, times gain over scale of a norm; 1
            without either. NaN where heads mix fewer numbers, and behind the shorter of two texts.
    """

    HEADLINE = ("multiplier",)
    SIGNED = ("multiplier",)

    multiplier: Labelled

    def at(self, layer: AttentionWeights, position: int) -> Float[Tensor, "head d_value"]:
        """What multiplied mixed values at one position: what `AttentionWeights.holding` takes.

        Args:
            layer: A layer, or one head.
            position: Of the query, in the text of the layer's own stack; negative ones count from its end.

        Raises:
            AnalysisUnavailable: The layer is of another model.
            ShapeMismatch: The text has no such position.
        """
        rows = self._of(layer)
        n = rows.shape[1]
        if not -n <= position < n:
            raise ShapeMismatch(f"output_gates: position {position}; the text has {n}, 0 to {n - 1}.")
        return rows[:, position]

    def mean(self, layer: AttentionWeights) -> Float[Tensor, "head d_value"]:
        """The mean over positions, whose OV circuits are the means of those of all positions; raises as `at`."""
        return self._of(layer).mean(1)

    def hold(self, model: WeightsLike, position: int | None = None) -> HeadWeights:
        """Weights with gates, and scales of norms on mixed values, held: for analyses of weights, in place of a model.

        Args:
            model: A model, whose weights are folded first; or weights.
            position: Where they are held; by default at their means over all positions.

        Raises:
            AnalysisUnavailable: The numbers are of another model.
            ShapeMismatch: The text has no such position.

        Example:
            >>> gates = output_gates(model, "the cat sat on the")
            >>> copying(gates.hold(model, position=-1))
        """
        w = weights.matrices(model)

        def held(layer: AttentionWeights) -> AttentionWeights:
            if not layer.module.merge.multiplies:
                return layer
            return layer.holding(self.mean(layer) if position is None else self.at(layer, position))

        return dataclasses.replace(w, attention=tuple(map(held, w.attention)))

    def _of(self, layer: AttentionWeights) -> Float[Tensor, "head pos d_value"]:
        """Return what multiplies a layer's mixed values, without what fills up shorter texts and narrower heads."""
        known = {label: i for i, label in enumerate(self.multiplier.labels("head"))}
        for label in layer.labels:
            if label not in known:
                raise AnalysisUnavailable(
                    f'output_gates: there are none of "{label}", so these are of another model.'
                    f"{nearest(label, map(str, known))}\n    Ask for those of this one: output_gates(model, text)."
                )
        rows = self.multiplier.values[[known[label] for label in layer.labels]]
        rows = rows[:, ~rows[0, :, 0].isnan()]
        return rows[..., ~rows[0, 0].isnan()]


def gate_sites(model: ModelLike) -> list[str]:
    """Return the sites that `output_gates` reads: scales of norms on mixed values, what gates read."""
    # without either, of what is read only how long it is
    found = (layer.multiplier_sites or [layer.at_read] for layer in _layers(model))
    return list(dict.fromkeys(site for sites in found for site in sites))


@question("What are mixed values multiplied by on this text?", reads=gate_sites, holds=("norm scales", "gates"))
@torch.no_grad()
def output_gates(run: Any, text: Any = None, target: Any = None, *, row: int = 0) -> OutputGates:
    """Output gates: what mixed values were multiplied by, at every position of a run; norms on them included.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: The model has no attention.

    Example:
        >>> gates = output_gates(run)
        >>> head = weights.of(model)["L1H6"]
        >>> head.holding(gates.at(head, position=7)).ov()
    """
    model = require_model(run.model, "output_gates")
    run.require(gate_sites(model), "output_gates")
    found, labels = list[Tensor](), list[str]()
    for layer in _layers(model):
        multiplier, part = layer.multiplier(lambda site: run[site].values), layer.attention
        if multiplier is None:
            assert part is not None, "these are attention layers"
            read = run[layer.at_read].values
            multiplier = read.new_ones(1, part.dims.n_heads, read.shape[1], part.dims.d_z)
        found += multiplier[0]
        labels += head_labels(layer)
    return OutputGates(Labelled(_stacked(found), ("head", "pos", "d_value"), {"head": labels}))


def with_gates(w: HeadWeights, *inputs: Any) -> HeadWeights:
    """Return weights with gates held at their means over a text; weights of a model without gates as they are.

    Args:
        w: Weights.
        inputs: What the model reads: ids, for an encoder-decoder of both.
    """
    if all(layer.gate is None for layer in w):
        return w
    return output_gates(w.model, *inputs).hold(w)


def _layers(model: ModelLike) -> list[SubLayer]:
    model = require_model(model, "output_gates")
    found = [layer for stack in model.stacks for layer in model.sub_layers(stack) if layer.attention is not None]
    if not found:
        raise AnalysisUnavailable("output_gates: this model has no attention, whose values a gate could multiply.")
    return found


def _stacked(rows: list[Tensor]) -> Float[Tensor, "head pos d_value"]:
    length, width = (max(row.shape[i] for row in rows) for i in (0, 1))
    fill = [(0, width - row.shape[1], 0, length - row.shape[0]) for row in rows]
    return torch.stack([torch.nn.functional.pad(row, pad, value=math.nan) for row, pad in zip(rows, fill)])
