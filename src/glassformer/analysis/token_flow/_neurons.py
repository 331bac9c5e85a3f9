"""The neurons of one MLP at one position, by how near what each writes comes to what the MLP writes.

    share(n) = max(0, |w| - |w - act_n W_out[n]|) / sum,        |.| the L1 norm, w = sum over n of act_n W_out[n] + bias

The same measure that `information_flow_routes` weighs its edges with, one level below an MLP's edge.

Source: Ferrando and Voita 2024, "Information Flow Routes: Automatically Interpreting Language Models at Scale".
"""

import dataclasses
from typing import Any

import torch

from glassformer.analysis.components import mlp_of
from glassformer.analysis.question import question
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.models.mlp import MlpLayer


@dataclasses.dataclass(frozen=True, eq=False)
class NeuronShares(Result):
    """What each neuron is of an MLP's write.

    Args:
        shares: `neuron`; non-negative, their sum and the bias's share are one.
        activations: What the output matrix reads, `neuron`.
        bias: Share of the output bias; 0 without one.
        label: `L1 mlp`.
        position: Index of the position.
    """

    HEADLINE = ("shares", "activations")
    SIGNED = ("activations",)

    shares: Labelled
    activations: Labelled
    bias: float
    label: str
    position: int


def _mlp_sites(model: ModelLike) -> list[str]:
    mlps = [layer.part for layer in require_model(model).sub_layers()]
    return [site for mlp in mlps if isinstance(mlp, MlpLayer) for site in (mlp.at.hidden, mlp.at.out)]


@question("Which neurons make what an MLP writes?", reads=_mlp_sites)
@torch.no_grad()
def neuron_shares(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    layer: int,
    position: int = -1,
    row: int = 0,
    part: str = "mlp",
) -> NeuronShares:
    """Split what an MLP of the stack that ends in the logits writes at one position into its neurons.

    Args:
        layer: Index of the block.
        position: Which.
        part: Name of the sub-layer, where a block has several MLPs.

    Raises:
        AnalysisUnavailable: There is no such MLP, or it writes nothing there.
        SiteNotRead: The run lacks a site.
    """
    mlp = mlp_of(run.model, layer, part, "neuron_shares")
    run.require([mlp.at.hidden, mlp.at.out], "neuron_shares")
    at = run.place(position)
    hidden, w = run[mlp.at.hidden].values[0, at], run[mlp.at.out].values[0, at]
    parts = hidden[:, None] * mlp.output.weight.detach().mT
    if mlp.output.bias is not None:
        parts = torch.cat((parts, mlp.output.bias.detach()[None]))
    near = (w.abs().sum() - (w - parts).abs().sum(-1)).clamp_min(0).double()
    if not bool(near.sum() > 0):
        raise AnalysisUnavailable(f"neuron_shares: no neuron of layer {layer} comes near what the MLP writes there.")
    shares = near / near.sum()
    bias = 0.0 if mlp.output.bias is None else float(shares[-1])
    return NeuronShares(
        Labelled(shares[: len(hidden)], ("neuron",)), Labelled(hidden, ("neuron",)), bias, f"L{layer} {part}", at
    )
