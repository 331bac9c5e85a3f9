"""What is attributed: the logit of tokens, a difference of two, or what is read along a direction."""

import dataclasses

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.frozen.directions import Directions, scale_sites
from glassformer.analysis.places import Answers, Places, tokens_at
from glassformer.errors import ShapeMismatch
from glassformer.models import ModelLike, require_model


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """What is split: directions behind the final norm, their logits as computed, and what is added behind it."""

    directions: Directions
    total: Float[Tensor, "row place"]
    answers: Int[Tensor, "row place"] | None = None
    against: Int[Tensor, "row place"] | None = None
    bias: Float[Tensor, "row place"] | None = None
    readout_bias: Float[Tensor, "row place"] | None = None


def aim_sites(model: ModelLike, directed: bool = False) -> list[str]:
    """Return the sites that `aim` and the way back through the norms read, for tokens or for a direction."""
    model = require_model(model, "attribution to a logit")
    cap = [] if model.unembed.cap is None else [model.unembed.at_raw]
    return scale_sites(model) + ([read_by_unembedding(model)] if directed else cap)


def aim(run: Run, answer: Answers, against: Answers, direction: Tensor | None, at: Places, analysis: str) -> Target:
    """Return what tokens or a direction stand for at some places of a run."""
    model = run.model
    if direction is not None:
        if answer is not None or against is not None:
            raise ShapeMismatch(f"{analysis}: give tokens or a direction, not both.")
        read = read_by_unembedding(model)
        run.require([read, *scale_sites(model)], analysis)
        directions = Directions.of(direction.to(model.unembed.stored), at)
        total = directions.dot(at.of_stream(run[read].values))
        directions, inside = _before_readout(directions, run, at)
        return Target(directions, total, readout_bias=inside)
    cap = model.unembed.cap
    run.require([*scale_sites(model), *([] if cap is None else [model.unembed.at_raw])], analysis)
    logits = (at.logits(run) if cap is None else at.of_stream(run[model.unembed.at_raw].values)).detach()
    chosen = logits.argmax(-1) if answer is None else tokens_at(model, answer, at)
    total = logits.gather(-1, chosen[..., None])[..., 0]
    other = None if against is None else tokens_at(model, against, at)
    if other is not None:
        total = total - logits.gather(-1, other[..., None])[..., 0]
    # as many directions as there are different answers: often one, for hundreds of positions
    vocab = model.config.n_outputs
    pairs, which = torch.unique(chosen if other is None else chosen + vocab * other, return_inverse=True)
    vectors, bias = model.unembed.direction(pairs % vocab), model.unembed.bias
    constant = None if bias is None else bias[chosen]
    if other is not None:
        vectors = vectors - model.unembed.direction(pairs // vocab)
        constant = None if bias is None or constant is None else constant - bias[other]
    directions, inside = _before_readout(Directions.chosen(vectors.detach(), which), run, at)
    return Target(directions, total, chosen, other, constant, inside)


def _before_readout(directions: Directions, run: Run, at: Places) -> tuple[Directions, Tensor | None]:
    """Return directions of what the unembedding reads as ones of what the stack ends in, and what comes in between."""
    readout = run.model.unembed.readout
    return (directions, None) if readout is None else directions.before_readout(readout, run, at)


def read_by_unembedding(model: ModelLike) -> str:
    """Return the site of what the unembedding reads."""
    readout = model.unembed.readout
    return model.output_stack.final.at_out if readout is None else readout.norm.at_out
