"""Loss by position, and how much of it the context saves."""

import math
from typing import Any

import torch
import torch.nn.functional as F

from glassformer.analysis.run import evaluating
from glassformer.data import Batch
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled


def loss_by_position(model: Any, batch: Batch) -> Labelled:
    """Return the mean loss of each position's token over the rows of a batch, in nats.

    Coordinate i is the loss on token i of the sequence, predicted from the tokens before it; so coordinates start at 1.
    Positions that count in no row are NaN.

    Args:
        model: A decoder or an encoder-decoder.
        batch: Sequences of one length; `weight` says what counts.
    """
    inputs = {"lengths": batch.lengths}
    inputs |= {"documents": batch.documents} if batch.source is None else {"source_lengths": batch.source_lengths}
    with evaluating(model), torch.no_grad():
        args = (batch.tokens,) if batch.source is None else (batch.source, batch.tokens)
        logits = model(*args, **inputs).float()
    losses = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none").view(batch.targets.shape)
    weight = batch.weight.to(losses.dtype)
    return Labelled((losses * weight).sum(0) / weight.sum(0), ("pos",), {"pos": range(1, losses.shape[1] + 1)})


def icl_score(losses: Labelled, early: int | None = None, late: int | None = None) -> float:
    """Return the in-context-learning score, loss at a late token minus loss at an early one; negative is good.

    Args:
        losses: What `loss_by_position` returned.
        early: Index of the early token; ceil(0.1 T) by default. The paper uses 50.
        late: Index of the late token; ceil(0.98 T) by default. The paper uses 500.

    Raises:
        AnalysisUnavailable: The sequence is too short, or nothing counts at one of the two.

    Source: Olsson et al. 2022, section "The phase change".
    """
    length = losses.size("pos")
    early = math.ceil(0.1 * length) if early is None else early
    late = math.ceil(0.98 * length) if late is None else late
    if not 1 <= early < late <= length:
        raise AnalysisUnavailable(
            f"icl_score compares tokens {early} and {late} of sequences that have losses for tokens 1 to {length}; "
            "give 1 <= early < late."
        )
    score = float(losses.values[late - 1] - losses.values[early - 1])
    if math.isnan(score):
        raise AnalysisUnavailable(f"icl_score: no row of the batch counts token {early} or token {late}.")
    return score
