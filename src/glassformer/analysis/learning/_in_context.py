"""In-context learning of one model on one text: the score with its uncertainty, and loss by position.

    score = loss of late tokens - loss of early ones, in nats; negative is good

Source: Olsson et al. 2022; loss by position goes back to Kaplan et al. 2020.
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis.losses import TokenPlace, icl_places, icl_score, token_losses
from glassformer.analysis.question import question
from glassformer.arguments import Count, Share
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike


@dataclasses.dataclass(frozen=True, eq=False)
class InContextLearning(Result):
    """How much the context saves.

    Args:
        loss: By position in nats, `pos`; coordinate i is the loss on token i, predicted from those before it.
        spread: Standard error over rows, `pos`.
        slope: Change of the loss per unit of ln(position), `pos`; NaN at fewer than two positions.
        score: Loss of late tokens less loss of early ones; negative is good.
        low: Lower end of the score's bootstrap interval.
        high: Upper end.
        level: Share of resamples inside the interval.
        early: First and last of the early tokens.
        late: First and last of the late tokens.
        rows: How many rows were averaged over and resampled.
    """

    HEADLINE = ("loss", "slope")
    SIGNED = ("slope",)

    loss: Labelled
    spread: Labelled
    slope: Labelled
    score: float
    low: float
    high: float
    level: float
    early: tuple[int, int]
    late: tuple[int, int]
    rows: int


@question("How much does a model gain from its context?", of="texts")
def in_context_learning(
    model: ModelLike,
    *batches: Any,
    early: TokenPlace | None = None,
    late: TokenPlace | None = None,
    level: Share = 0.95,
    resamples: Count = 1000,
    seed: int = 0,
) -> InContextLearning:
    """Measure loss by position and the in-context-learning score, with an interval by resampling rows.

    Args:
        batches: Rows; or for a decoder texts or ids, one or several at a time. A position's mean is over the rows that
            reach it.
        early: Index of a token or a range of them; shares of the length by default, see `icl_places`.
        late: The same.
        level: Of the interval.
        resamples: Bootstrap samples of the rows.

    Raises:
        AnalysisUnavailable: The rows are too short, or nothing counts at one of the two places.
    """
    losses, weight = token_losses(model, *batches)
    return summarise(losses, weight, early=early, late=late, level=level, resamples=resamples, seed=seed)


def summarise(
    losses: Float[Tensor, "row pos"],
    weight: Bool[Tensor, "row pos"],
    *,
    early: TokenPlace | None = None,
    late: TokenPlace | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> InContextLearning:
    """Return the same of losses that are known already; arguments and errors as in `in_context_learning`."""
    if not 0 < level < 1:
        raise ShapeMismatch(f"in_context_learning: level={level} is no share between 0 and 1.")
    # rows are drawn again on the CPU, whose draws are the same everywhere
    losses, counted = losses.cpu().double(), weight.cpu().double()
    n, length = losses.shape
    count = counted.sum(0)
    mean = (losses * counted).sum(0) / count
    off = ((losses - mean) * counted).square().sum(0).sqrt() / count
    places = range(1, length + 1)
    by_position = Labelled(mean, ("pos",), {"pos": places})
    score = icl_score(by_position, early, late)
    drawn = torch.randint(n, (resamples, n), generator=torch.Generator().manual_seed(seed))
    # how often each row was drawn: resampled means are then one product
    times = torch.zeros(resamples, n, dtype=torch.float64).scatter_add_(1, drawn, torch.ones(drawn.shape).double())
    resampled = (times @ (losses * counted)) / (times @ counted)
    first, last = (
        range(p, p + 1) if isinstance(p, int) else p
        for p in (given or usual for given, usual in zip((early, late), icl_places(length), strict=True))
    )
    scores = resampled[:, last.start - 1 : last.stop - 1].mean(1) - resampled[:, first.start - 1 : first.stop - 1].mean(
        1
    )
    low, high = scores.nanquantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)).tolist()
    at = torch.arange(1, length + 1, dtype=torch.float64).log()
    slope = torch.gradient(mean, spacing=(at,))[0] if length > 1 else mean * torch.nan
    over = (("pos",), {"pos": places})
    return InContextLearning(
        loss=by_position,
        spread=Labelled(off * (n / max(n - 1, 1)) ** 0.5 if n > 1 else off * torch.nan, *over),
        slope=Labelled(slope, *over),
        score=score,
        low=low,
        high=high,
        level=level,
        early=(first[0], first[-1]),
        late=(last[0], last[-1]),
        rows=n,
    )
