"""Heads that rest on the first tokens, beside what the same heads do there with weights drawn anew.

In a short text every head has mass on the first tokens, and sharp heads with weights drawn anew may have most of theirs
there. What is called a sink has more than those hardly ever reach: the largest of their masses and two deviations.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis.drawn_anew import drawn_anew
from glassformer.errors import AnalysisUnavailable
from glassformer.models import ModelLike
from glassformer.models.evaluation import evaluating
from glassformer.provenance import Note, tell
from glassformer.words import sentence

DRAWS = 4  # of weights, whose heads are taken together


def hardly_reached(
    model: ModelLike, masses: Callable[[ModelLike], Float[Tensor, "head place"]]
) -> Float[Tensor, " place"] | None:
    """Return the masses that heads with weights drawn anew hardly ever reach; None if weights are not in memory."""
    found = list[Tensor]()
    for seed in range(DRAWS):
        try:
            drawn = drawn_anew(model, seed)
        except AnalysisUnavailable:
            return None
        with evaluating(drawn):
            found.append(masses(drawn))
    every = torch.cat(found)
    return every.amax(0) + 2 * every.std(0)


def rests(
    mass: Float[Tensor, " head"], missing: Float[Tensor, " head"], above: float, chance: float
) -> Bool[Tensor, " head"]:
    """Return which heads rest: on a sink of their own, or with more on first tokens than chance gives.

    A sink of its own is a number per head, in which nothing can be shuffled.
    """
    return mass.masked_fill(mass <= chance, 0.0) + missing > above


def say_rate(resting: Bool[Tensor, " head"], above: float, chance: float) -> None:
    """Let the analysis at work tell the share of heads that rest on the first token beside what chance gives."""
    n, every = int(resting.sum()), len(resting)
    if math.isnan(chance):
        seen = sentence("Weights are not in memory, and were not drawn anew to see how far heads rest by chance.")
        counted = sentence("A head with more than {above} on the first token counts as a sink: {n} of {all}.",
                           above=above, n=n, all=every)  # fmt: skip
    else:
        seen = sentence(
            "With weights drawn anew, heads hardly ever have more than {chance:.2f} on the first token here.",
            chance=chance,
        )
        counted = sentence("A head with more than this and {above} counts as a sink: {n} of {all}.",
                           above=above, n=n, all=every)  # fmt: skip
    tell([Note(seen, counted)])
