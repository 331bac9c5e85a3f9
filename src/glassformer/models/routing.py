"""What is asked of a router: an even load, small logits, and no more than an expert can hold.

    f_e = share of all choices that fall on expert e            m_e = mean over positions of its share s_e
    balance = E sum over e of  f_e m_e                          1 where f or m is even, E where one expert has all
    z = mean over positions of  (log sum over e of exp(logit_e))^2
    an expert holds  ceil(capacity k T / E)  of the k T choices of a batch, those that come first

Padding is none of the T positions. No gradient passes through f, which counts: balance reaches the router by m.
Source: Shazeer et al. 2017 (1701.06538); Fedus et al. 2021, "Switch Transformers" (2101.03961), section 2.2, where k is
1; Zoph et al. 2022, "ST-MoE" (2202.08906), section 3.2 (z).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.trace import Tape


class Charge(NamedTuple):
    """What training adds to the loss for one sub-layer: `factor` times `value`, the latter differentiable."""

    name: str
    factor: float
    value: Float[Tensor, ""]


def balance(
    shares: Float[Tensor, "batch pos expert"],
    chosen: Float[Tensor, "batch pos expert"],
    real: Bool[Tensor, "batch pos"] | None = None,
) -> Float[Tensor, ""]:
    """Return how uneven the load is: 1 for an even one, as many as there are experts where one has all.

    Args:
        shares: Of each expert at each position; they sum to one.
        chosen: 1 where an expert was chosen, 0 elsewhere.
        real: Which positions are no padding; None for all.
    """
    counted = shares.new_ones(shares.shape[:2]) if real is None else real.to(shares)
    mean = (shares * counted[..., None]).sum((0, 1)) / counted.sum().clamp_min(1)
    taken = ((chosen != 0) * counted[..., None]).sum((0, 1))
    return shares.shape[-1] * (taken / taken.sum().clamp_min(1) * mean).sum()


def squared_size(
    logits: Float[Tensor, "batch pos expert"], real: Bool[Tensor, "batch pos"] | None = None
) -> Float[Tensor, ""]:
    """Return the mean square of the router's log-sum-exp, in nats squared; arguments as in `balance`."""
    square = logits.logsumexp(-1).square()
    return square.mean() if real is None else (square * real).sum() / real.sum().clamp_min(1)


def held(
    chosen: Float[Tensor, "batch pos expert"], n_chosen: int, capacity: float, real: Bool[Tensor, "batch pos"] | None
) -> Bool[Tensor, "batch pos expert"]:
    """Return which choices experts have room for: those at earlier positions first, and of one position row by row.

    What is dropped at a position depends on how many positions there are, on earlier ones of any row, and on that
    position of the rows above: never on what later tokens are.
    """
    asked = (chosen != 0) if real is None else (chosen != 0) & real[..., None]
    places = asked.shape[0] * asked.shape[1] if real is None else real.expand(asked.shape[:2]).sum()
    room = torch.as_tensor(capacity * n_chosen * places / asked.shape[-1], device=asked.device).ceil()
    arrived = asked.transpose(0, 1).flatten(0, 1).long().cumsum(0)
    return arrived.unflatten(0, asked.transpose(0, 1).shape[:2]).transpose(0, 1) <= room


def charged_sites(model: Any) -> list[str]:
    """Return the sites that `charges` reads; none if training adds nothing for any sub-layer."""
    return [at for stack in model.stacks.values() for part in stack.parts() for at in part.charged()]


def charges(model: Any, tape: Tape | None, lengths: Mapping[str, Tensor | None]) -> list[Charge]:
    """Return what training adds to the loss for what sub-layers did in one pass.

    Args:
        model: The model.
        tape: Of that pass, with `charged_sites` read and kept in the graph; None where there are none.
        lengths: Real positions per row of each stack, by its name; None if every row is full.
    """
    if tape is None:
        return []
    found: list[Charge] = []
    for name, stack in model.stacks.items():
        for part in stack.parts():
            read = {at: tape.values[at] for at in part.charged()}
            if read:
                found += part.charges(read, real_positions(next(iter(read.values())), lengths.get(name)))
    return found


def real_positions(like: Float[Tensor, "batch pos _"], lengths: Tensor | None) -> Bool[Tensor, "batch pos"] | None:
    """Return which positions of rows are no padding, which is on the right; None for all."""
    return (
        None if lengths is None else torch.arange(like.shape[1], device=like.device) < lengths.to(like.device)[:, None]
    )
