"""At which layer a property is told: the expected layer, and the centre of gravity of what layers tell.

    expected layer = sum of l gain(l) / sum of gain(l),         gain(l) = best(l) - best(l - 1),   l from 1
    centre of gravity = sum of l above(l) / sum of above(l),    above(l) = told(l) - majority, at least 0,   l from 0

best(l) is the most that a probe of one of the layers 0 to l tells. Layers are sites, in the order in which they were
asked for.

Source: Tenney, Das and Pavlick 2019, "BERT Rediscovers the Classical NLP Pipeline" (P19-1452), section 3. There gains
are of probes of a mix of all layers up to one, and centres of the weights of that mix, which are learned with the
probe. Here each layer has probes of its own. So no gain is below zero, and what only several layers together tell is
none; and since layers that tell nearly as much weigh nearly as much, centres lie nearer to the middle.
"""

import torch
from jaxtyping import Float
from torch import Tensor

MEASURES = ("expected layer", "centre of gravity")


def layers_of(told: Float[Tensor, "layer ..."], majority: Float[Tensor, "layer ..."]) -> Float[Tensor, "measure ..."]:
    """Return the expected layer and the centre of gravity.

    Args:
        told: What probes of each layer tell.
        majority: What the most frequent class does.

    Returns:
        Layers, counted from 0; NaN where no layer tells more than the first, or more than the majority.
    """
    gains = told.cummax(0).values.diff(dim=0)
    return torch.stack([_mean_place(gains, 1), _mean_place((told - majority).clamp_min(0), 0)])


def _mean_place(weights: Float[Tensor, "place ..."], first: int) -> Float[Tensor, "..."]:
    """Return the mean place of weights, the first of which is at `first`; NaN if there are none."""
    places = torch.arange(first, first + len(weights)).to(weights)
    # 0 / 0 is NaN
    return torch.tensordot(places, weights, 1) / weights.sum(0)
