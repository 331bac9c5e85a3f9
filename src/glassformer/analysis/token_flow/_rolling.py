"""From what each layer takes from where to what the whole stack does: products of row-stochastic matrices.

    rolled_l = layer_l rolled_(l-1),    rolled_0 = identity

Cross-attention brings in the encoder's outputs; what they stand for has been rolled through the encoder first, so that
the keys of a decoder's result are the source tokens followed by its own.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.places import position_labels
from glassformer.analysis.token_flow._mixing import Unit, flow_sites, has_source, token_row, units
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result

Norms = Literal["frozen", "not used"]


@dataclasses.dataclass(frozen=True, eq=False)
class TokenFlow(Result):
    """How much of each position comes from each token, `layer query key`; every row sums to one.

    Args:
        layers: Of what each layer's attention takes from where: the stream's own position counts the part that is kept.
            A decoder's key axis starts with the encoder's outputs, if there is an encoder.
        rolled: From the tokens at the bottom to the stream above each layer.
        method: How single layers were weighed.
        norms: `frozen` if norms were passed with the scales they had in the run.
        unexplained: Where nothing explained the stream above a layer, so that the whole row was given to its own
            position, `layer query`.
    """

    HEADLINE = ("final", "layers")

    layers: Labelled
    rolled: Labelled
    method: str
    norms: Norms
    unexplained: Labelled

    @property
    def final(self) -> Labelled:
        """From the tokens to the top of the stack, `query key`."""
        return self.rolled.select(layer=self.rolled.size("layer") - 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Weighed:
    """One layer's weights: on positions of its own stack, and on those of the encoder; each row's sum is one.

    Args:
        own: Stream and self-attention.
        source: Cross-attention; None without any.
        unexplained: Rows that were given to their own position for want of anything else.
    """

    own: Float[Tensor, "query own_key"]
    source: Float[Tensor, "query source_key"] | None = None
    unexplained: Bool[Tensor, " query"] | None = None


@torch.no_grad()
def roll(run: Run, analysis: str, weigh: Callable[[Unit], Weighed], *, stack: str | None, norms: Norms) -> TokenFlow:
    """Weigh every layer of a stack and multiply them up."""
    run.require(flow_sites(run.model, stack), analysis)
    name = stack if stack == "encoder" else "decoder" if has_source(run.model, stack) else ""
    tokens = token_row(run, name)
    keys = position_labels(tokens)
    before, source_tokens = None, list[str]()
    if has_source(run.model, stack):
        source_tokens = token_row(run, "encoder")
        before = roll(run, analysis, weigh, stack="encoder", norms=norms).final.values
        keys = position_labels(source_tokens, "source ") + keys
    labels, layers, rolled, unexplained = list[str](), list[Tensor](), list[Tensor](), list[Tensor]()
    flow = None
    for unit in units(run, analysis, stack=stack):
        if not unit.moves:
            continue
        found = weigh(unit)
        outside = found.own.new_zeros(len(tokens), len(source_tokens))
        eye = torch.eye(len(tokens), dtype=found.own.dtype, device=found.own.device)
        flow = torch.cat((outside, eye), 1) if flow is None else flow
        layer = torch.cat((outside if found.source is None else found.source, found.own), 1)
        entering = flow if before is None else torch.cat((_widened(before, len(tokens)), flow))
        flow = layer @ entering
        labels.append(unit.label)
        layers.append(layer)
        rolled.append(flow)
        unexplained.append(
            torch.zeros(len(tokens), dtype=torch.bool) if found.unexplained is None else found.unexplained
        )
    if not layers:
        raise AnalysisUnavailable(f"{analysis}: no layer attends to anything, so every token stays where it is.")
    queries = position_labels(tokens)
    coords = {"layer": labels, "query": queries, "key": keys}
    return TokenFlow(
        Labelled(torch.stack(layers), ("layer", "query", "key"), coords),
        Labelled(torch.stack(rolled), ("layer", "query", "key"), coords), analysis, norms,
        Labelled(torch.stack(unexplained), ("layer", "query"), {"layer": labels, "query": queries}),
    )  # fmt: skip


def _widened(encoded: Tensor, more: int) -> Tensor:
    """Return the encoder's rolled rows with columns for the decoder's tokens, which they do not depend on."""
    return torch.nn.functional.pad(encoded, (0, more))
