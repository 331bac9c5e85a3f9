"""ALTI: which position's vector brings the stream closest to what it became behind attention.

    y_q = sum over k of T_q(k) + biases
    c[q, k] = max(0, |y_q| - |y_q - T_q(k)|) / sum over k,        |.| the L1 norm

T_q(k) is what all heads bring from position k, for k = q with what is kept of the stream; norms behind attention
(post-norm, sandwich) are passed by their linear part with the scale of the run. MLPs mix no positions and are left out,
as in the paper; of a parallel block, so is what its MLP adds. The L1 norm depends on the stream's basis.

Source: Ferrando, Gállego and Costa-jussà 2022, "Measuring the Mixing of Contextual Information in the Transformer",
section 3; Ferrando et al. 2022, "Towards Opening the Black Box of Neural Machine Translation" for cross-attention.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.analysis.question import question
from glassformer.analysis.token_flow._mixing import Unit, flow_sites
from glassformer.analysis.token_flow._rolling import TokenFlow, Weighed, roll


@question(
    "Which tokens does the stream come from, by how near each share is?",
    reads=flow_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates"),
)
def alti(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    row: int = 0,
    stack: str | None = None,
) -> TokenFlow:
    """Weigh each layer by how near each position's share comes to the result, and multiply the layers up.

    Args:
        stack: `encoder` of a model that has two, to end there; the decoder's result includes the encoder.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern that multiplies values.
    """
    return roll(run, "alti", _weigh, stack=stack, norms="frozen")


def _weigh(unit: Unit) -> Weighed:
    y, n = unit.mixed, unit.kept.shape[0]
    crossing = next((moves.pattern.shape[-1] for moves in unit.moves if moves.crosses), 0)
    nearness = y.new_zeros(n, crossing + n)
    for queries in unit.pieces(crossing + n, 3):
        nearness[queries] = _nearness(unit, y, crossing, queries)
    total = nearness.sum(-1, keepdim=True)
    unexplained = total[:, 0] <= 0
    weights = nearness / total.masked_fill(unexplained[:, None], 1.0)
    weights[unexplained.nonzero()[:, 0], crossing + unexplained.nonzero()[:, 0]] = 1.0
    return Weighed(weights[:, crossing:], weights[:, :crossing] if crossing else None, unexplained.cpu())


def _nearness(unit: Unit, y: Tensor, crossing: int, queries: slice) -> Tensor:
    places = torch.arange(queries.start, queries.stop, device=y.device)
    vectors = y.new_zeros(len(places), crossing + y.shape[0], y.shape[1])
    for moves in unit.moves:
        part = vectors[:, :crossing] if moves.crosses else vectors[:, crossing:]
        part += moves.summed(queries)
    vectors[places - queries.start, crossing + places] += unit.kept[queries]
    size = y[queries].abs().sum(-1, keepdim=True)
    left = (y[queries, None] - vectors).abs().sum(-1)
    # what brought nothing brings it exactly: two sums of one thing may differ in their last digit
    return (size - left).clamp_min(0.0).masked_fill((vectors == 0).all(-1), 0.0)
