"""Rows of patterns as shares of keys, whether or not they sum to one.

mass      rows that sum to one: the weights themselves
sink      rows that lack mass to one: the weights, and what they lack as the share of a sink that is no key
signed    all others: sizes of weights over the sum of the sizes in their row, whatever their signs
"""

from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention import AttentionLayer
from glassformer.provenance import Note, tell
from glassformer.words import sentence

Shares = Literal["mass", "sink", "signed"]
_NOTES = {
    "sink": Note(
        sentence("Rows of some patterns sum to less than one: the rest goes to a learned sink, no token."),
        sentence("That share counts as a resting place of its own, beside the first tokens."),
    ),
    "signed": Note(
        sentence("Some patterns have weights of either sign, or rows of any sum."),
        sentence("Their weights are counted by size, each as its share of the sizes in its row."),
    ),
}


def shares_of(layer: AttentionLayer) -> Shares:
    """Return how the rows of a layer's pattern are read."""
    traits = layer.mixer.traits
    return "mass" if traits.rows_sum_to_one else "sink" if traits.rows_lack_mass else "signed"


def shares(
    pattern: Float[Tensor, "*n query key"], read: Shares
) -> tuple[Float[Tensor, "*n query key"], Float[Tensor, "*n query"]]:
    """Return the share of each key in its row, and that of the sink, 0 without one; zeros have neither."""
    if read == "signed":
        sizes = pattern.abs()
        total = sizes.sum(-1, keepdim=True)
        return sizes / total.where(total > 0, 1.0), torch.zeros_like(pattern[..., 0])
    lacking = 1 - pattern.sum(-1) if read == "sink" else torch.zeros_like(pattern[..., 0])
    return pattern, lacking.clamp_min(0)


def say(read: Iterable[Shares]) -> None:
    """Let the analysis at work know of rows that do not sum to one."""
    tell(_NOTES[one] for one in dict.fromkeys(read) if one != "mass")
