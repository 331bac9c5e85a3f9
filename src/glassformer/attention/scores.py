"""Scores of queries and keys: their scaled products, the position bias, the mask, and softmax over what is left."""

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.context import Context


def scaled_scores(
    q: Float[Tensor, "batch *stream head query d_head"],
    k: Float[Tensor, "batch *stream head key d_head"],
    scale: float,
    context: Context,
    window: int | None = None,
) -> Float[Tensor, "batch *stream head query key"]:
    """Return q . k * scale plus the position bias, -inf where mask and window do not allow attention."""
    return placed(products(q * scale, k, context), context, window)


def products(
    q: Float[Tensor, "batch *stream head query d_head"],
    k: Float[Tensor, "batch *stream head key d_head"],
    context: Context,
) -> Float[Tensor, "batch *stream head query key"]:
    """Return q . k, or what the layer's positions make of queries and keys instead."""
    return context.scores(product, q, k)


def product(q: Tensor, k: Tensor) -> Tensor:
    """Return q . k."""
    return q @ k.mT


def placed(
    scores: Float[Tensor, "batch *stream head query key"], context: Context, window: int | None = None
) -> Float[Tensor, "batch *stream head query key"]:
    """Return scores plus the position bias, -inf where mask and window forbid attention; writes into the scores."""
    allowed = context.allowed(scores.shape[-2], scores.shape[-1], window)
    streams = scores.ndim == 5
    if (bias := context.bias) is not None:
        bias = bias[..., -scores.shape[-1] :].to(scores.dtype)
        scores = scores + (bias.unsqueeze(1) if streams else bias)
    if allowed is None:
        return scores
    allowed = allowed.unsqueeze(1) if streams else allowed
    # in place: they are new, and as large as anything in the model
    return scores.masked_fill_(~allowed, float("-inf"))


def masked_softmax(scores: Float[Tensor, "... key"], *, empty_rows: bool = True) -> Float[Tensor, "... key"]:
    """Softmax over keys; a row with nothing to attend to becomes zero, not NaN.

    Without `empty_rows` there is no such row, and none is looked for: looking takes longer than the softmax.
    """
    # in float32 at least: bfloat16 loses the tail that head-level ablations measure
    wide = scores if scores.dtype == torch.float64 else scores.float()
    if not empty_rows:
        return wide.softmax(-1).to(scores.dtype)
    nothing = (wide == float("-inf")).all(-1, keepdim=True)
    pattern = wide.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    return pattern.to(scores.dtype)
