"""What a model's predictions are worth on tokens that count: probability, loss, accuracy, calibration."""

import dataclasses
import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.data import Batch

OUTCOMES = ("probability", "loss", "accuracy", "calibration_error")


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """Of every target: probability, loss, and of every token counted: confidence and whether it was right."""

    probability: Float[Tensor, "row pos"]
    loss: Float[Tensor, "row pos"]
    counted: Bool[Tensor, "row pos"]
    confidence: Float[Tensor, " token"]
    right: Float[Tensor, " token"]


def scored(logits: Float[Tensor, "row pos vocab"], batch: Batch, counted: Bool[Tensor, "row pos"]) -> Scored:
    """Return what a batch's predictions are worth, target by target."""
    log_probs = logits.double().log_softmax(-1)
    own = log_probs.gather(-1, batch.targets[..., None])[..., 0]
    best = log_probs[counted].max(-1)
    right = (best.indices == batch.targets[counted]).double()
    return Scored(own.exp(), -own, counted, best.values.exp(), right)


def outcome(found: Sequence[Scored], bins: int = 15) -> Float[Tensor, " outcome"]:
    """Return `OUTCOMES` over all tokens that count."""
    probability, loss = (torch.cat([getattr(s, n)[s.counted] for s in found]) for n in ("probability", "loss"))
    confidence, right = (torch.cat([getattr(s, n) for s in found]) for n in ("confidence", "right"))
    return torch.stack(
        [probability.mean(), loss.mean(), right.mean(), calibration_error(confidence, right, bins)]
    ).cpu()


def calibration_error(
    confidence: Float[Tensor, " token"], right: Float[Tensor, " token"], bins: int = 15
) -> Float[Tensor, ""]:
    """The expected calibration error: mean distance of accuracy and confidence, bins weighted by tokens.

    Args:
        confidence: Probability of the likeliest token.
        right: Whether it is the one that came, 1 or 0.
        bins: Into how many of equal width confidence is sorted.
    """
    # no integer stands for NaN, which makes the sum NaN from whatever bin it falls into
    at = (confidence * bins).nan_to_num().long().clamp_max(bins - 1)
    # within a bin the share cancels the count that the means divide by
    off = confidence.new_zeros(bins).index_add_(0, at, right - confidence)
    return off.abs().sum() / len(confidence)


def change_errors(
    rows: Sequence[Float[Tensor, "two row pos"]], counted: Float[Tensor, "row pos"]
) -> Float[Tensor, "intervention outcome"]:
    """Return standard errors over rows of what interventions change in probability and loss; NaN with one row.

    Args:
        rows: Probability and loss of every target under each intervention, the model as it is first.
        counted: Which targets count, as ones and zeros.
    """
    table = torch.full((len(rows), len(OUTCOMES)), math.nan, dtype=torch.float64)
    n = counted.shape[0]
    for i, found in enumerate(rows):
        if n > 1:
            change = (found - rows[0]) * counted
            mean = change.sum((1, 2)) / counted.sum()
            # rows pull by how many tokens they have: the error of a ratio of sums
            off = change.sum(2) - mean[:, None] * counted.sum(1)
            table[i, :2] = (off.square().sum(1).sqrt() / counted.sum() * math.sqrt(n / (n - 1))).cpu()
    return table
