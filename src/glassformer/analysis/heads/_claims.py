"""One sentence about each head, made from what it does on some passages, and tested on others.

    claim     from queries of a class, at least `least` percent of a head's weight in a passage is on a target
    least     the largest percent that so few of the n passages it is made from fall short of, that
              (fall short + 1) / (n + 1) <= allowed / 2
    telling   D(least || even) >= 0.2 bits, where `even` is what a row that is even over all keys has there
    chosen    the telling claim with most bits per query: D(least || even) times the share of queries it is about
    false     on a held-out passage in which fewer than `least` percent are there

Of exchangeable passages a new one falls short of a threshold so set with a probability of at most allowed / 2; that one
claim of many is chosen takes from that, which is what the other half is for. A claim that is false on more than
`allowed` of the held-out passages does not hold, and the head is said to have no pattern that does. A head with no
telling claim may be even: at least 75 % of the entropy of an even row.

Source: Vovk et al. 2005, "Algorithmic Learning in a Random World" (conformal prediction; its inductive form).
"""

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.analysis.heads._tally import EVENLY, Tally
from glassformer.analysis.heads._targets import EVERY, FROM, SAID
from glassformer.words import Sentence, sentence

TELLING = 0.2  # bits
EVEN = 75  # percent of an even row's entropy
NONE = sentence("no pattern found that holds on held-out text")


@dataclasses.dataclass(frozen=True)
class HeadClaim:
    """A claim about a head, and what became of it on held-out passages.

    Args:
        head: Label of the head.
        queries: Class of the queries it is about.
        target: Where their weight goes; `evenly` where it is spread.
        share: Mean share of the weight there, over queries of the passages it was made from.
        least: Share that is claimed of each passage, a whole number of percent.
        even: What a row that is even over all keys has there.
        bits: How telling it is: D(least || even) times the share of queries it is about; of an even row 0.
        passages: How many held-out passages it was tested on.
        false: On how many of them it is false.
        held_out: Mean share over queries of held-out passages; NaN without any.
        holds: Whether it is false on no more of them than is allowed, and there are some.
        text: The claim in words.
    """

    head: str
    queries: str
    target: str
    share: float
    least: float
    even: float
    bits: float
    passages: int
    false: int
    held_out: float
    holds: bool
    text: Sentence


def claims_of(tally: Tally, allowed: float) -> list[HeadClaim]:
    """Return the claim that is made about each head of which one can be made, tested."""
    made, every = tally.histogram[0], tally.counts[0, 0, -1].clamp_min(1)
    least = thresholds(made, allowed / 2)
    even = tally.even[0] / tally.counts[0].clamp_min(1)
    bits = divergence(least / 100, even)
    worth = (bits * tally.counts[0] / every).masked_fill(bits < TELLING, 0.0)
    # evenness is no share of anything that an even row could have less of
    worth[..., -1] = 0.0
    found = list[HeadClaim]()
    for i in range(len(tally.heads)):
        best = int(worth[i].argmax())
        at = best // worth.shape[2], best % worth.shape[2]
        if worth[i][at] > 0:
            found.append(_tested(tally, i, at, int(least[i][at]), float(worth[i][at]), allowed))
        elif int(least[i, 0, -1]) >= EVEN:
            at = 0, len(tally.targets) - 1
            found.append(_tested(tally, i, at, int(least[i][at]), 0.0, allowed))
    return found


def thresholds(histogram: Tensor, rate: float) -> Tensor:
    """Return the largest percent that new passages fall short of at no more than a rate; 0 where there are too few.

    Args:
        histogram: Passages by their share, `… percent`.
        rate: Of falling short, for exchangeable passages.
    """
    total = histogram.sum(-1, keepdim=True)
    # how many have less than each percent
    short = histogram.cumsum(-1) - histogram
    fits = (short + 1) <= rate * (total + 1)
    # what falls short only grows with the percent
    return (fits.sum(-1) - 1).clamp_min(0)


def divergence(share: Tensor, even: Tensor) -> Tensor:
    """Return D(share || even) in bits of having weight on a target or not; 0 where there is no more than even."""
    even = even.double().expand_as(share)
    inside, outside = even.clamp(1e-9, 1), (1 - even).clamp(1e-9, 1)
    found = torch.xlogy(share, share / inside) + torch.xlogy(1 - share, (1 - share) / outside)
    return (found / math.log(2)).masked_fill(share <= even, 0.0)


def _tested(tally: Tally, head: int, at: tuple[int, int], percent: int, bits: float, allowed: float) -> HeadClaim:
    """Return a claim with what became of it on held-out passages."""
    cell = (head, *at)
    held = tally.histogram[1][cell]
    passages, false = int(held.sum()), int(held[:percent].sum())
    mean, held_out = (
        float(tally.sums[part][cell] / tally.counts[part][at]) if tally.counts[part][at] > 0 else math.nan
        for part in (0, 1)
    )
    queries, target = FROM[at[0]], tally.targets[at[1]]
    return HeadClaim(
        head=tally.heads[head].label,
        queries=queries,
        target=target,
        share=mean,
        least=percent / 100,
        even=float(tally.even[0][at] / tally.counts[0][at]),
        bits=bits,
        passages=passages,
        false=false,
        held_out=held_out,
        holds=passages > 0 and false <= allowed * passages,
        text=said(queries, target, mean, percent),
    )


def said(queries: str, target: str, share: float, percent: int) -> Sentence:
    """Return a claim in words."""
    shares = {"share": f"{share:.0%}", "least": f"{percent}%"}
    if target == EVENLY:
        return sentence(
            "spreads its weight: {share} of the entropy of an even row, at least {least} in a passage", **shares
        )
    what = SAID[target]
    if queries == EVERY:
        return sentence("attends to {what}: {share} of its weight, at least {least} in a passage", what=what, **shares)
    return sentence(
        "from {where} attends to {what}: {share} of its weight, at least {least} in a passage",
        where=SAID[queries], what=what, **shares,
    )  # fmt: skip


def sentences_of(labels: Sequence[str], claims: Sequence[HeadClaim]) -> dict[str, Sentence]:
    """Return for each head its claim if it holds, or that there is none."""
    held = {claim.head: claim.text for claim in claims if claim.holds}
    return {label: held.get(label, NONE) for label in labels}
