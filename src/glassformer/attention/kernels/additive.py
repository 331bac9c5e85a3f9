"""Additive scores, a few queries at a time: each pair of query and key has as many numbers as there are hidden units.

    score_ts = sum_a v_a tanh(q_ta + k_sa)

The numbers of all pairs are never there together: those of some queries are made, summed up and let go, and made again
for the derivative.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LARGEST = 1 << 20  # numbers made at a time, over rows of the batch and heads


def additive_scores(
    q: Float[Tensor, "batch head query hidden"],
    k: Float[Tensor, "batch head key hidden"],
    v: Float[Tensor, "head hidden"],
) -> Float[Tensor, "batch head query key"]:
    """Return v . tanh(q + k) for every query and key."""
    rows = max(1, LARGEST // max(1, k.numel()))
    if rows >= q.shape[-2]:
        return _scores(q, k, v)
    some = q.split(rows, -2)
    if not torch.is_grad_enabled():
        return torch.cat([_scores(part, k, v) for part in some], -2)
    return torch.cat([_made_again(part, k, v) for part in some], -2)


def _scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    # in place: they are new, and the derivative wants no more than they become
    hidden = (q[..., :, None, :] + k[..., None, :, :]).tanh_()
    return torch.einsum("bhqka,ha->bhqk", hidden, v)


def _made_again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = checkpoint(_scores, q, k, v, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(scores, Tensor)
    return scores
