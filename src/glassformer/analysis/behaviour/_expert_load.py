"""Where routers of mixtures of experts send positions, and whether the load is even.

    load_e = share of all choices that fall on expert e;    entropy = - sum over e of load_e log2 load_e
    dropped = share of the choices for which experts of some capacity have no room (`models.routing.held`)

An even load over E experts has an entropy of log2 E bits. A router that is sure at each position has a low entropy
there, and a high one of its load if positions differ.

Source: Fedus et al. 2021, "Switch Transformers" (2101.03961), section 2.2 (load, capacity); Zoph et al. 2022, "ST-MoE"
(2202.08906), section 3.2 (size of the router's logits).
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.question import question
from glassformer.arguments import Positive
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, SubLayer, require_model
from glassformer.models.experts import ExpertsLayer
from glassformer.models.routing import balance, held, real_positions, squared_size

MEASURES = ("load_entropy_bits", "choice_entropy_bits", "balance", "router_z", "dropped")


@dataclasses.dataclass(frozen=True, eq=False)
class ExpertLoad(Result):
    """How evenly each layer's router uses its experts on the positions of one pass; padding is none of them.

    Layers with fewer experts than another have NaN for those they lack.

    Args:
        load: Share of a layer's choices that falls on each expert, `layer expert`; a layer's sum to one.
        tokens: At how many positions each expert was chosen, `layer expert`.
        weight: Mean weight that each expert has where it is chosen, `layer expert`; NaN where it never is.
        measures: Entropy of the load and mean entropy of the router's shares at a position, both in bits; balance, 1
            for an even load; the mean square of the router's log-sum-exp; and the share of choices dropped at the
            capacity asked about, `layer measure`.
        capacity: How many times an even load experts hold, in `dropped`; None for no limit.
    """

    HEADLINE = ("load", "measures")

    load: Labelled
    tokens: Labelled
    weight: Labelled
    measures: Labelled
    capacity: float | None


def _routers(model: ModelLike) -> list[tuple[SubLayer, ExpertsLayer]]:
    known = require_model(model, "expert_load")
    found = [(one, one.part) for stack in known.stacks for one in known.sub_layers(stack)]
    return [(one, part) for one, part in found if isinstance(part, ExpertsLayer)]


def _sites_of_routers(model: ModelLike) -> list[str]:
    return [at for _, part in _routers(model) for at in (part.at.router, part.at.chosen, part.at.weights)]


@question("To which experts do positions go, and is the load even?", reads=_sites_of_routers)
@torch.no_grad()
def expert_load(run: Any, text: Any = None, target: Any = None, *, capacity: Positive | None = None) -> ExpertLoad:
    """Count where the routers of all mixtures of experts send the positions of a text, or of several.

    Args:
        capacity: How many times an even load experts are taken to hold, for the share that would be dropped; by default
            that of the model's config, whose evaluation drops nothing.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: The model has no mixture of experts.
    """
    routers = _routers(run.model)
    if not routers:
        raise AnalysisUnavailable(
            "expert_load asks about routers, and no sub-layer of this model is a mixture of experts.\n"
            "    MixtureOfExperts in the place of a block's MLP is one."
        )
    run.require(_sites_of_routers(run.model), "expert_load")
    most = max(part.config.n_experts for _, part in routers)
    capacities = {capacity or part.config.capacity for _, part in routers}
    counts, weights, measured = list[Tensor](), list[Tensor](), list[Tensor]()
    for one, part in routers:
        lengths = run.inputs.real_lengths(one.stack == "encoder")
        taken, weight, numbers = _of_layer(run, part, lengths, capacity or part.config.capacity)
        padding = (0, most - len(taken))
        counts.append(torch.nn.functional.pad(taken, padding, value=torch.nan))
        weights.append(torch.nn.functional.pad(weight, padding, value=torch.nan))
        measured.append(numbers)
    tokens = torch.stack(counts).cpu()
    axes, coords = ("layer", "expert"), {"layer": [one.label for one, _ in routers]}
    return ExpertLoad(
        load=Labelled(tokens / tokens.nansum(-1, keepdim=True), axes, coords),
        tokens=Labelled(tokens, axes, coords),
        weight=Labelled(torch.stack(weights).cpu(), axes, coords),
        measures=Labelled(torch.stack(measured).cpu(), ("layer", "measure"), coords | {"measure": [*MEASURES]}),
        capacity=capacities.pop() if len(capacities) == 1 else None,
    )


def _of_layer(
    run: Any, part: ExpertsLayer, lengths: Tensor | None, capacity: float | None
) -> tuple[Float[Tensor, " expert"], Float[Tensor, " expert"], Float[Tensor, " measure"]]:
    """Return how often each expert was chosen, what it then weighed on average, and the measures."""
    logits, chosen, weights = (run[at].values.double() for at in (part.at.router, part.at.chosen, part.at.weights))
    real = real_positions(logits, lengths)
    counted = torch.ones_like(logits[..., 0]) if real is None else real.double()
    taken = ((chosen != 0) * counted[..., None]).sum((0, 1))
    weight = (weights * counted[..., None]).sum((0, 1)) / taken
    shares = part.shares(logits)
    dropped = torch.zeros_like(taken[0])
    if capacity is not None:
        kept = held(chosen, part.config.n_chosen, capacity, real) & (chosen != 0)
        dropped = 1 - (kept * counted[..., None]).sum() / taken.sum()
    numbers = (
        _bits(taken / taken.sum()),
        (_bits(shares) * counted).sum() / counted.sum(),
        balance(shares, chosen, real),
        squared_size(logits, real),
        dropped,
    )
    return taken, weight, torch.stack(numbers)


def _bits(shares: Float[Tensor, "*n expert"]) -> Float[Tensor, "*n"]:
    return -torch.special.xlogy(shares, shares).sum(-1) / torch.log(torch.tensor(2.0, dtype=shares.dtype))
