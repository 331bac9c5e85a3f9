"""A softmax over time whose scores fall by a constant with every position, in chunks: linear time.

    z_t = softmax over s <= t of e_ts, times v_s,   e_ts = (t - 1 - s) log_keep + k_s for s < t,   e_tt = bonus + k_t

What a text has left behind is two things: the logarithm of what its weights sum to, and the mean of its values by them.
Two such are put together as two keys are, so that a chunk is mixed by itself and then with what came before it, which
is one more key whose score falls too. No weight is formed but of a difference to the largest.
Source: Peng et al. 2023, "RWKV: Reinventing RNNs for the Transformer Era" (2305.13048), appendix D, whose numerator,
denominator and exponent are these two and a reference point.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.attention.kernels.chunked import spans

# scores of what is not there: below what stands for nothing at all, and finite, so that gradients are too
NOTHING, HIDDEN = -1e30, -2e30


class Mean(NamedTuple):
    """A mean of values, and the logarithm of what its weights sum to; `NOTHING` of none."""

    value: Float[Tensor, "*lead d_value"]
    log_sum: Float[Tensor, " *lead"]

    def and_(self, other: "Mean") -> "Mean":
        """Return the mean of both."""
        log_sum = torch.logaddexp(self.log_sum, other.log_sum)
        share = (other.log_sum - log_sum).exp()[..., None]
        return Mean(torch.lerp(self.value, other.value, share), log_sum)

    def faded(self, by: Tensor, kept: Tensor | None = None) -> "Mean":
        """Return the same, its weights multiplied by an exponential; of nothing where it is not to be kept."""
        log_sum = self.log_sum + by
        if kept is None:
            return Mean(self.value, log_sum)
        return Mean(self.value * kept[..., None], log_sum.masked_fill(~kept, NOTHING))


def fading_softmax(
    k: Float[Tensor, "batch head pos"],
    v: Float[Tensor, "batch head pos d_value"],
    log_keep: Float[Tensor, " head"],
    bonus: Float[Tensor, " head"],
    before: Mean,
    real: Bool[Tensor, "b pos"] | None = None,
    size: int = 16,
    documents: Int[Tensor, "b pos_and_one"] | None = None,
) -> tuple[Float[Tensor, "batch head pos d_value"], Mean]:
    """Return mixed values, and what is left behind after the last position.

    Args:
        k: Scores of keys.
        v: Values.
        log_keep: What a score falls by with each position; not positive.
        bonus: What is added to a position's own.
        before: What was left before the first.
        real: Which positions are no padding: others have no weight, and scores do not fall by them.
        size: Positions in a chunk.
        documents: Which document `before` is of, and each position after it: a position knows its own alone. None if
            all is one.
    """
    pieces = []
    for start, stop, length in spans(k.shape[-1], size):
        ids = None if documents is None else documents[:, start : stop + 1]
        there = None if real is None else real[:, None, start:stop].unflatten(-1, (-1, length))
        rows = k[..., start:stop].unflatten(-1, (-1, length)), v[..., start:stop, :].unflatten(-2, (-1, length))
        z, before = _chunks(*rows, log_keep[:, None], bonus[:, None], before, there, ids)
        pieces.append(z.flatten(-3, -2))
    return torch.cat(pieces, -2) if len(pieces) > 1 else pieces[0], before


def fading_scores(
    k: Float[Tensor, "batch head key"], log_keep: Float[Tensor, " head"], bonus: Float[Tensor, " head"]
) -> Float[Tensor, "batch head query key"]:
    """Return e_ts of a whole text, minus infinity where s > t."""
    age = _age(torch.arange(k.shape[-1], device=k.device))
    fallen = torch.where(age < 0, bonus[:, None, None], age * log_keep[:, None, None])
    return (fallen + k[..., None, :]).masked_fill(age < -1, float("-inf"))


def fading_softmax_flops(n: int, d_value: int, size: int = 16) -> int:
    """Return the floating-point operations of the products of `fading_softmax` for one head."""
    short = n % size
    return 2 * d_value * ((n - short) * (size + 1) + short * (short + 1))


def _age(place: Int[Tensor, "*lead pos"]) -> Int[Tensor, "*lead pos pos"]:
    """Return t - 1 - s."""
    return place[..., :, None] - 1 - place[..., None, :]


def _chunks(
    k: Tensor, v: Tensor, log_keep: Tensor, bonus: Tensor, before: Mean, real: Tensor | None, documents: Tensor | None
) -> tuple[Tensor, Mean]:
    """Mix rows that come as batch head chunk row; of a chunk's rows, and behind them what it leaves."""
    size = k.shape[-1]
    # how many positions of the chunk lie before each row, and before its end
    count = torch.arange(size + 1, device=k.device).expand(1, 1, 1, -1) if real is None else _counted(real)
    age, row = _age(count)[..., :-1], torch.arange(size + 1, device=k.device)
    own = row[:, None] == row[:-1]
    scores = torch.where(own, bonus[..., None, None], age * log_keep[..., None, None]) + k[..., None, :]
    seen = row[:, None] >= row[:-1]
    if real is not None:
        seen = seen & real[..., None, :]
    goes_on = None
    if documents is not None:
        ids = documents[:, 1:].unflatten(-1, (-1, size))[:, None]
        whose, first = torch.cat((ids, ids[..., -1:]), -1), documents[:, :-1:size][:, None, :, None]
        seen, goes_on = seen & (whose[..., None] == ids[..., None, :]), whose == first
    scores = scores.masked_fill(~seen, HIDDEN)
    alone = Mean(scores.softmax(-1) @ v, scores.logsumexp(-1))
    fallen = count * log_keep[..., None]
    held = []
    for i in range(k.shape[-2]):
        held.append(before)
        end = before.faded(fallen[..., i % fallen.shape[-2], -1], None if goes_on is None else goes_on[..., i, -1])
        before = end.and_(Mean(alone.value[:, :, i, -1], alone.log_sum[:, :, i, -1]))
    earlier = Mean(*(torch.stack(parts, 2)[:, :, :, None] for parts in zip(*held, strict=True)))
    return earlier.faded(fallen, goes_on).and_(alone).value[..., :-1, :], before


def _counted(real: Bool[Tensor, "b 1 chunk row"]) -> Int[Tensor, "b 1 chunk row_and_one"]:
    return torch.nn.functional.pad(real.long().cumsum(-1), (1, 0))
