"""Additive scores, a few queries at a time: each pair of query and key has as many numbers as there are hidden units.

    score_ts = sum_a v_a h_tsa,          h_tsa = tanh(q_ta + k_sa)

The numbers of all pairs are never there together: those of some queries are made, summed up and let go, and made again
for the derivative. With g the gradient of the scores,

    dv_a = sum_ts g_ts h_tsa,   dq_ta = v_a sum_s g_ts (1 - h_tsa^2),   dk_sa = v_a sum_t g_ts (1 - h_tsa^2)

which are products of g with h and with its square: no gradient of the hidden layer is made.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

LARGEST = 1 << 20  # numbers made at a time, over rows of the batch and heads


def additive_scores(
    q: Float[Tensor, "batch head query hidden"],
    k: Float[Tensor, "batch head key hidden"],
    v: Float[Tensor, "head hidden"],
) -> Float[Tensor, "batch head query key"]:
    """Return v . tanh(q + k) for every query and key."""
    rows = max(1, LARGEST // max(1, k.numel()))
    if torch.compiler.is_compiling():
        return torch.cat([_scores(part, k, v) for part in q.split(rows, -2)], -2)
    return _Scores.apply(q, k, v, rows)  # type: ignore[return-value]


def _hidden(q: Tensor, k: Tensor) -> Float[Tensor, "batch head query key hidden"]:
    # in place: they are new
    return (q[..., :, None, :] + k[..., None, :, :]).tanh_()


def _scores(q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head query key"]:
    return (_hidden(q, k) @ v[:, None, :, None])[..., 0]


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.rows = rows
        return torch.cat([_scores(part, k, v) for part in q.split(rows, -2)], -2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        if torch.is_grad_enabled():
            # what is to be differentiated again is made in the plain way
            return *torch.autograd.grad(_scores(q, k, v), (q, k, v), gradients, create_graph=True), None
        dq, dk, dv = [], torch.zeros_like(k), torch.zeros_like(v)
        for part, g in zip(q.split(ctx.rows, -2), gradients[0].split(ctx.rows, -2), strict=True):
            hidden = _hidden(part, k)
            dv += (g.flatten(-2)[..., None, :] @ hidden.flatten(-3, -2))[..., 0, :].sum(0)
            square = hidden.square_()
            dq.append(g.sum(-1, keepdim=True) - (g[..., None, :] @ square)[..., 0, :])
            of_keys = g.mT[..., None, :] @ square.transpose(-3, -2)
            dk += g.sum(-2)[..., None] - of_keys[..., 0, :]
        return torch.cat(dq, -2) * v[:, None], dk * v[:, None], dv, None
