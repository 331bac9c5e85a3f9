"""Weighted means of all that came before, when weights are those of keys alone.

    z_t = sum_{s<=t} exp(score_s) v_s / sum_{s<=t} exp(score_s)

Chunks are averaged by themselves, each earlier one stands for itself by its mean and its total, and a position puts
together the part of its own chunk and all chunks before. Nothing is divided by a total that has underflown: the largest
score of either part is taken out before it is exponentiated.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

CHUNK = 32


def running_mean(
    scores: Float[Tensor, "*lead pos"], v: Float[Tensor, "*lead pos d_value"]
) -> Float[Tensor, "*lead pos d_value"]:
    """Return for each position the mean of values up to it, weighted by the exponential of their scores."""
    n, missing = scores.shape[-1], -scores.shape[-1] % CHUNK
    # what is appended comes after all positions, and no position looks ahead
    scores = F.pad(scores, (0, missing)).unflatten(-1, (-1, CHUNK))
    v = F.pad(v, (0, 0, 0, missing)).unflatten(-2, (-1, CHUNK))
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=v.device).triu(1)
    own = scores[..., None, :].masked_fill(later, float("-inf"))
    total = own.logsumexp(-1)
    mean = (own - total[..., None]).exp().to(v.dtype) @ v
    if scores.shape[-2] > 1:
        # the last position of a chunk has seen all of it
        before, of_before = _of_earlier(total[..., -1], mean[..., -1, :])
        share = (before[..., None] - total).sigmoid()[..., None].to(v.dtype)
        mean = mean + share * (of_before[..., None, :] - mean)
    return mean.flatten(-3, -2)[..., :n, :]


def _of_earlier(
    total: Float[Tensor, "*lead chunk"], mean: Float[Tensor, "*lead chunk d_value"]
) -> tuple[Float[Tensor, "*lead chunk"], Float[Tensor, "*lead chunk d_value"]]:
    """Return the logarithm of the total, and the mean, of all chunks before each; of none, that of weight zero."""
    chunks = total.shape[-1]
    later = torch.ones(chunks, chunks, dtype=torch.bool, device=total.device).triu()[1:]
    before = total[..., None, :].masked_fill(later, float("-inf"))
    of_before = before.softmax(-1).to(mean.dtype) @ mean
    return F.pad(before.logsumexp(-1), (1, 0), value=float("-inf")), F.pad(of_before, (0, 0, 1, 0))
