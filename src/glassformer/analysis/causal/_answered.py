"""Does the model answer the prompts at all? What it never knew cannot be patched away."""

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.question import question
from glassformer.arguments import Count
from glassformer.data import Pairs
from glassformer.data.pairs.contrast import SIDES
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import Model, ModelLike
from glassformer.models.evaluation import evaluating


@dataclasses.dataclass(frozen=True, eq=False)
class Answered(Result):
    """How a model takes prompt pairs; axes `pair prompt`, the prompts being `clean` and `corrupt`.

    Args:
        logit_difference: Of the answer over the wrong answer, in logits.
        probability: Of the answer.
        rank: Of the answer among all tokens; 1 is the likeliest.
        share: Share of clean prompts whose likeliest next token is the answer.
        preferred: Share of clean prompts on which the answer beats the wrong one.
        mean: Logit difference averaged over pairs, `prompt`.
        spread: Standard error of that mean over pairs, `prompt`; NaN with one pair.
    """

    HEADLINE = ("logit_difference", "probability")
    SIGNED = ("logit_difference", "mean")

    logit_difference: Labelled
    probability: Labelled
    rank: Labelled
    share: float
    preferred: float
    mean: Labelled
    spread: Labelled


@question("Which pairs of prompts does the model get right?", of="pairs of prompts")
def answered(model: ModelLike, pairs: Pairs, *, rows: Count = 64) -> Answered:
    """Ask a model both prompts of every pair; pairs may have different lengths.

    Args:
        model: A decoder.
        pairs: Prompt pairs that fit its tokenizer.
        rows: Prompts per forward pass.

    Raises:
        AnalysisUnavailable: The model is no decoder of ours.
        DataError: A pair does not fit; `pairs.fitting(model)` leaves those out.
    """
    if not (isinstance(model, Model) and model.continues):
        raise AnalysisUnavailable(
            "answered asks for the token after a prompt, which decoders predict; this model is none. For another, "
            "compare logits of run(model, ...) yourself."
        )
    encoded = pairs.encode(model, pad="right")
    found = torch.stack([_last_logits(model, encoded, side, rows) for side in SIDES], 1)
    answer, wrong = (found.gather(-1, ids[:, None, None].expand(-1, 2, 1)) for ids in (encoded.answer, encoded.wrong))
    difference = (answer - wrong).squeeze(-1)
    axes, coords = ("pair", "prompt"), {"prompt": SIDES}
    rank = (found > answer).sum(-1) + 1
    spread = difference.std(0) / len(difference) ** 0.5 if len(difference) > 1 else difference[0] * torch.nan
    return Answered(
        logit_difference=Labelled(difference, axes, coords),
        probability=Labelled((answer.squeeze(-1) - found.logsumexp(-1)).exp(), axes, coords),
        rank=Labelled(rank, axes, coords),
        share=float((rank[:, 0] == 1).double().mean()),
        preferred=float((difference[:, 0] > 0).double().mean()),
        mean=Labelled(difference.mean(0), ("prompt",), coords),
        spread=Labelled(spread, ("prompt",), coords),
    )


def _last_logits(model: Model, encoded: Any, side: str, rows: int) -> Float[Tensor, "pair vocab"]:
    found = []
    with evaluating(model), torch.no_grad():
        for start in range(0, len(encoded), rows):
            some = slice(start, start + rows)
            lengths, last = None if encoded.lengths is None else encoded.lengths[some], encoded.last[some]
            x = model.stream(getattr(encoded, side)[some], lengths=lengths)
            # one position of each prompt: the logits of all would take more room than the rest of the pass
            found.append(model.unembed.logits(x[torch.arange(len(last), device=last.device), last]))
    return torch.cat(found)
