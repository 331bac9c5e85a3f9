"""Logit lens: what the model would say if it stopped after a layer.

    lens_l = norm_final(x_l) W_U + b_U,    with the scale that x_l itself has

The last row is the model's own output. Early streams need not be in the basis the unembedding reads, so early rows show
where the answer becomes readable, not where it is known.
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.components import entry_sites
from glassformer.analysis.lens.read_out import read_logits
from glassformer.analysis.prepare import answer_id
from glassformer.analysis.question import question
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import Model, ModelLike, require_model
from glassformer.numerics.distributions import entropy_bits, kl_bits, rank


@dataclasses.dataclass(frozen=True, eq=False)
class Lens(Result):
    """Next-token distributions by depth at one position; rows are `embed`, `block 0`, ….

    Args:
        logits: `row vocab`.
        entropy_bits: Of each row's distribution.
        kl_bits: Divergence of the final distribution from each row's, KL(final || row).
        answer: Token id followed through the layers.
        probability: Of the answer, by row.
        rank: Of the answer, by row; 1 is the likeliest.
        position: Index of the position.
    """

    HEADLINE = ("probability", "entropy_bits", "kl_bits")
    SIGNED = ("logits",)

    logits: Labelled
    entropy_bits: Labelled
    kl_bits: Labelled
    answer: int
    probability: Labelled
    rank: Labelled
    position: int


def block_sites(model: ModelLike) -> list[str]:
    """Return the sites that `logit_lens` reads, to be passed as `read=`."""
    names = entry_sites(require_model(model).output_embed)
    return names + [block.at_resid[-1] for block in model.output_stack.blocks]


@question(
    "What would the model say if it stopped after each layer?",
    reads=block_sites,
    judge="the model with all later blocks left out; sums over the vocabulary",
)
def logit_lens(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    answer: str | int | None = None,
    position: int = -1,
    row: int = 0,
) -> Lens:
    """Read the stream after every layer through the final norm and the unembedding.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: The model is not one of ours, or its weights are not at hand.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    run.require(block_sites(run.model), "logit_lens")
    at = run.place(position)
    with torch.no_grad():
        logits = read_logits(run.model, _streams(run, at)).detach()
    chosen = int(logits[-1].argmax()) if answer is None else answer_id(run.model, answer)
    log_probs = logits.double().log_softmax(-1)
    labels: list[Coordinate] = ["embed", *(f"block {i}" for i in range(len(run.model.output_stack.blocks)))]

    def by_row(values: Tensor) -> Labelled:
        return Labelled(values, ("row",), {"row": labels})

    return Lens(
        logits=Labelled(logits, ("row", "vocab"), {"row": labels}),
        entropy_bits=by_row(entropy_bits(log_probs)),
        kl_bits=by_row(kl_bits(log_probs[-1], log_probs)),
        answer=chosen,
        probability=by_row(log_probs[:, chosen].exp()),
        rank=by_row(rank(logits, chosen)),
        position=at,
    )


def _streams(run: Run, at: int) -> Float[Tensor, "row d_model"]:
    model: Model = run.model
    entry = torch.stack([run[site].values[0, at] for site in entry_sites(model.output_embed)]).sum(0)
    later = [run[block.at_resid[-1]].values[0, at] for block in model.output_stack.blocks]
    return torch.stack([entry, *later])
