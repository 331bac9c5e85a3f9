"""The part of a subspace that is read by what comes behind, and the part that is not.

    g = d (logit difference) / d (what lies at the place)       in base, source and exchanged runs, prompt by prompt
    R                                                           the fewest directions that hold 99 % of the g's squares
    read part = projection of the subspace on R,    unread part = its projection on what is across R

An exchange along v adds v (v . apart) to the base, by what the two runs differ by. Is v = a r + b u of r that is read
and u that is not, the answer moves by a^2 (g . r)(r . apart) + a b (g . r)(u . apart), and the second term is one that
no run has by itself: u, that nothing reads, says how far r is pushed. Where r hardly differs from run to run it is all
there is. So both parts are exchanged alone, too.

Source: Makelov et al. 2023, "Is This the Subspace You Are Looking for? An Interpretability Illusion for Subspace
Activation Patching" (2311.17030), sections 3 and 4. Differs: there, what is read is the row space of the next matrix,
here what the logits depend on to first order, which is that row space or less and can be asked of any site.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.causal._swapped_place import SwappedPlace, orthonormal
from glassformer.analysis.contrasts import Prompts
from glassformer.analysis.sweep import sweep
from glassformer.analysis.sweep.metrics import Metric
from glassformer.models.evaluation import require_gradients
from glassformer.numerics import decompositions
from glassformer.numerics.precision import wide
from glassformer.trace import Add, Edit

_ENERGY = 0.99


class ReadPart(NamedTuple):
    """A subspace in two.

    Args:
        read: Orthonormal basis of its projection on what is read,
        unread: and of that on what is not; of no rows where there is nothing.
        share: Of the subspace's dimensions, how much lies in what is read, from 0 to 1.
    """

    read: Float[Tensor, "direction width"]
    unread: Float[Tensor, "direction_2 width"]
    share: float


def read_part(place: SwappedPlace, subspace: Float[Tensor, "direction width"], metric: Metric) -> ReadPart:
    """Split an orthonormal subspace by what a metric reads at a place.

    Raises:
        AnalysisUnavailable: No gradients can be taken.
    """
    require_gradients(place.model, "interchange")
    runs: list[tuple[Prompts, list[Edit]]] = [
        (place.base, []),
        (place.source, []),
        (place.base, [place.along(subspace)]),
    ]
    slopes = torch.cat([_slopes(place, side, edits, metric) for side, edits in runs])
    _, size, directions = decompositions.svd(slopes)
    energy = size.square().cumsum(0)
    # each direction is needed as long as those before it hold too little
    needed = (energy - size.square() < _ENERGY * energy[-1]) & (size > 0)
    inside = subspace.to(directions) @ directions[needed].mT
    read = inside @ directions[needed]
    share = float(inside.square().sum() / len(subspace))
    return ReadPart(orthonormal(read, longest=1.0), orthonormal(subspace.to(read) - read, longest=1.0), share)


def _slopes(place: SwappedPlace, side: Prompts, edits: Sequence[Edit], metric: Metric) -> Float[Tensor, "n width"]:
    """Return the gradient of a metric by each vector at a place, in a run under edits."""
    probe = torch.zeros_like(place.before).requires_grad_()
    row = [*edits, Add(place.site.name, probe, at=place.at)]
    found = sweep(place.model, side.inputs, [row], metric, target=side.target, grad=True).values.values
    if not found.requires_grad:
        # nothing behind the site leads to the logits
        return wide(probe.detach()).flatten(0, -2)
    (slopes,) = torch.autograd.grad(found.sum(), probe, allow_unused=True)
    return wide(torch.zeros_like(probe) if slopes is None else slopes).detach().flatten(0, -2)
