"""Softmax attention by the library's fused kernels, which never make the pattern."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.context import Context
from glassformer.attention.kernels.blocked import is_blocked, windowed


def fused_softmax(
    q: Tensor, k: Tensor, v: Tensor, scale: float, context: Context, size: int | None = None
) -> Float[Tensor, "batch head pos d_value"]:
    """Return softmax attention by the library's fused kernel, without the pattern."""
    n, m = q.shape[-2], k.shape[-2]
    if context.makes_scores_in_parts:
        shared = q.shape[-3] // k.shape[-3]
        return context.encoding.mix(q, *(x.repeat_interleave(shared, -3) for x in (k, v)), scale)
    if is_blocked(context, n, m, size):
        return windowed(q, k, v, context, size, partial(attend_masked, scale=scale))
    grouped = k.shape[-3] != q.shape[-3]
    bare = not context.biased and context.is_causal and (size is None or m <= size)
    if bare and n == m:
        return _attend(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    # the newest position sees every key, so a single step needs no mask
    allowed = None if bare and n == 1 else context.allowed(n, m, size)
    mask = _with_bias(allowed, m, q, context)
    z = _attend_by_group(q, k, v, mask, scale)
    if allowed is None or context.sees_itself:
        return z
    return z.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


def fused_softmax_with_sinks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    context: Context,
    sinks: Float[Tensor, " head"],
    size: int | None = None,
) -> Float[Tensor, "batch head pos d_value"]:
    """Return the same with a sink per head: a key before all others, with a value of zero.

    Queries hold the sink's logit in one more dimension, in which that key alone is not zero.
    """
    logit = (sinks / scale).to(q.dtype)[:, None, None].expand(*q.shape[:-1], 1)
    q, k = torch.cat((q, logit), -1), F.pad(k, (0, 1))
    sink = F.pad(torch.zeros_like(k[..., :1, :-1]), (0, 1), value=1.0), torch.zeros_like(v[..., :1, :])
    return fused_softmax_with_prefix(q, k, v, scale, context, sink, size)


def fused_softmax_with_prefix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    context: Context,
    prefix: tuple[Float[Tensor, "b kv_head token d_head"], Float[Tensor, "b kv_head token d_value"]],
    size: int | None = None,
) -> Float[Tensor, "batch head pos d_value"]:
    """Return the same with keys and values before all others, which every query sees, and nothing places."""
    n, m, tokens = q.shape[-2], k.shape[-2], prefix[0].shape[-2]
    grouped = k.shape[-3] != q.shape[-3]
    if is_blocked(context, n, m, size):
        return windowed(q, k, v, context, size, partial(attend_masked, scale=scale), prefix)
    k, v = (torch.cat((first.expand(len(x), -1, -1, -1), x), -2) for first, x in zip(prefix, (k, v), strict=True))
    bare = not context.biased and context.is_causal and (size is None or m <= size)
    if bare and n == m:
        # as many queries more, so that each sees as many keys more
        q = F.pad(q, (0, 0, tokens, 0))
        return _attend(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)[..., tokens:, :]
    allowed = None if bare and n == 1 else context.allowed(n, m, size)
    mask = _with_bias(allowed, m, q, context)
    if mask is not None:
        mask = F.pad(mask, (tokens, 0), value=True if mask.dtype == torch.bool else 0.0)
    return _attend_by_group(q, k, v, mask, scale)


def _attend_by_group(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> Float[Tensor, "batch head pos d_value"]:
    """Return what the library's kernel gives; few queries whose heads share keys are handed over as rows of one head.

    Told of groups, the library's route on a CPU copies keys and values for each query head: that took 1.8 times as long
    for one query of 8 heads over 4,096 keys of 2.
    """
    groups, shared = k.shape[-3], q.shape[-3] // k.shape[-3]
    if shared == 1 or 2 * q.shape[-2] > k.shape[-2]:
        return _attend(q, k, v, attn_mask=mask, scale=scale, enable_gqa=shared > 1)
    if mask is not None:
        of_heads = mask.shape[1] > 1
        mask = mask.unflatten(1, (groups, shared)).flatten(2, 3) if of_heads else mask.repeat(1, 1, shared, 1)
    rows = q.unflatten(1, (groups, shared)).flatten(2, 3)
    return _attend(rows, k, v, attn_mask=mask, scale=scale).unflatten(2, (shared, -1)).flatten(1, 2)


def attend_masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float
) -> Float[Tensor, "batch head query d_value"]:
    """Return what the library's kernel gives under a mask, of booleans or of what is added to scores."""
    mask = mask.to(q.dtype) if mask.is_floating_point() else mask
    return _attend(q, k, v, attn_mask=mask, scale=scale, enable_gqa=k.shape[-3] != q.shape[-3])


def _attend(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Float[Tensor, "batch head pos d_value"]:
    """Return what the library's kernel gives; where gradients of bfloat16 are wanted on a CPU, computed in float32.

    There the kernel's derivative in bfloat16 took three to four times as long (2 groups of 4 heads, 256 positions). On
    a CPU it wants keys and values of one width, or else makes the pattern: ten times as long, for values of twice the
    keys' width at 4,096 positions. Zeros make up for what keys or values lack.
    """
    width, mask = v.shape[-1], how.get("attn_mask")
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, **how)
    # values much wider than keys are those of no model; widening keys for them would cost more than it saves
    if q.shape[-1] < width <= 4 * q.shape[-1]:
        q, k = (F.pad(rows, (0, width - rows.shape[-1])) for rows in (q, k))
    elif width < q.shape[-1]:
        v = F.pad(v, (0, q.shape[-1] - width))
    if q.dtype != torch.bfloat16 or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(q, k, v, **how)[..., :width]
    if mask is not None and mask.is_floating_point():
        how |= {"attn_mask": mask.float()}
    with torch.autocast("cpu", enabled=False):
        z = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), **how)
    return z[..., :width].to(q.dtype)


def _with_bias(allowed: Tensor | None, n_keys: int, q: Tensor, context: Context) -> Tensor | None:
    """Return what a kernel takes for a mask: booleans, or the position bias, -inf where attention is not allowed."""
    if (bias := context.bias) is None:
        return allowed
    bias = bias[..., -n_keys:].to(q.dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
