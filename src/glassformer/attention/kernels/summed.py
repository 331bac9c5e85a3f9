"""Attention whose weights are a function of the score over the sum of its sizes, some queries at a time.

    z_t = sum_s f(score_ts) v_s / sum_s abs(f(score_ts))

Scores of some queries are made, mixed and let go, and made again for the derivative: with g the gradient of z, T the
sum of sizes and W = f(S),

    dV = (W / T)' g,   dS = f'(S) (g V' - sign(W) rowsum(g * z)) / T,   dQ = dS K scale,   dK = dS' Q scale

Of causal queries only the keys up to theirs are met. There is no shorter way for long texts: of the score itself, sums
of values could run along a text, but the sizes that divide them could not; the square is a product of d_head^2 numbers
of each side, and sums of so many cost more up to some 64 d_head positions.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.attention.context import Context, window

LARGEST, MOST = 1 << 21, 128  # scores made at a time, over rows of the batch and heads; queries at a time


class Block(NamedTuple):
    """Some queries, and the keys they meet.

    Args:
        rows: Which queries.
        keys: Which keys.
        hidden: Who of them does not meet whom, among the last keys; None where all do.
    """

    rows: slice
    keys: slice
    hidden: Bool[Tensor, "b 1 query last"] | None

    def hide(self, scores: Float[Tensor, "batch head query key"]) -> Tensor:
        """Return scores, written into where a query does not meet a key."""
        if self.hidden is not None:
            scores[..., -self.hidden.shape[-1] :].masked_fill_(self.hidden, 0.0)
        return scores


def summed(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch head key d_head"],
    v: Float[Tensor, "batch head key d_value"],
    scale: float,
    function: str,
    context: Context,
    size: int | None,
) -> Float[Tensor, "batch head query d_value"]:
    """Return mixed values; `function` is `identity`, `relu` or `square`, and `size` a window."""
    rows = min(MOST, max(16, LARGEST // max(1, q.shape[0] * q.shape[1] * k.shape[-2])))
    blocks = tuple(_blocks(context, q.shape[-2], k.shape[-2], rows, size))
    return _Summed.apply(q, k, v, scale, function, blocks)  # type: ignore[return-value]


def _blocks(context: Context, n: int, m: int, rows: int, size: int | None) -> Iterator[Block]:
    """Yield queries, some at a time, with the keys that mask and window leave them."""
    mask = context.mask if size is None else context.mask & window(size)
    total = max(m, context.key_positions.shape[-1])
    first, dropped, device = 0 if context.crossed else total - n, total - m, context.positions.device
    b = torch.arange(mask.batch, device=device)[:, None, None]
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        high = min(first + stop, total) if context.looks_back else total
        low = dropped if size is None else max(dropped, first + start - size + 1)
        # what is causal and no more hides nothing before the first of the queries
        last = max(low, first + start) if context.is_causal and size is None else low
        q, k = (
            torch.arange(first + start, first + stop, device=device)[:, None],
            torch.arange(last, high, device=device),
        )
        hidden = ~mask.allows(b, q, k)[:, None] if mask.terms else None
        yield Block(slice(start, stop), slice(low - dropped, high - dropped), hidden)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, function: str, blocks: tuple[Block, ...]
    ) -> Tensor:
        z, sums = q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)
        for block in blocks:
            z[..., block.rows, :], sums[..., block.rows, :] = _mixed(q, k, v, scale, function, block)
        ctx.save_for_backward(q, k, v, z, sums)
        ctx.scale, ctx.function, ctx.blocks = scale, function, blocks
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        q, k, v, z, sums = ctx.saved_tensors
        if torch.is_grad_enabled():
            # what is to be differentiated again is made in the plain way
            plain = torch.cat([_mixed(q, k, v, ctx.scale, ctx.function, block)[0] for block in ctx.blocks], -2)
            return *torch.autograd.grad(plain, (q, k, v), gradients, create_graph=True), None, None, None
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for block in ctx.blocks:
            keys, values = k[..., block.keys, :], v[..., block.keys, :]
            scores = _scores(q, k, ctx.scale, block)
            even = _is_even(scores, ctx.function)
            weight, _ = _weights(scores, ctx.function, block)
            g = gradients[0][..., block.rows, :] / sums[..., block.rows, :]
            shared = (g * z[..., block.rows, :]).sum(-1, keepdim=True)
            dv[..., block.keys, :] += weight.mT @ g
            ds = _through(g @ values.mT, shared, scores, ctx.function)
            ds = block.hide(ds) if ctx.function == "identity" else ds
            # rows that share evenly do so whatever their scores are
            ds = (ds if even is None else ds.masked_fill_(even, 0.0)).mul_(ctx.scale)
            dq[..., block.rows, :] = ds @ keys
            dk[..., block.keys, :] += ds.mT @ q[..., block.rows, :]
        return dq, dk, dv, None, None, None


def _mixed(q: Tensor, k: Tensor, v: Tensor, scale: float, function: str, block: Block) -> tuple[Tensor, Tensor]:
    """Return mixed values of some queries, and what they were divided by."""
    weight, total = _weights(_scores(q, k, scale, block), function, block)
    return weight @ v[..., block.keys, :] / total, total


def _scores(q: Tensor, k: Tensor, scale: float, block: Block) -> Tensor:
    return block.hide((q[..., block.rows, :] * scale) @ k[..., block.keys, :].mT)


def _weights(scores: Tensor, function: str, block: Block) -> tuple[Tensor, Tensor]:
    """Return weights before they are divided, and what divides them."""
    weight = {"identity": lambda: scores, "relu": scores.relu, "square": scores.square}[function]()
    total = weight.norm(p=1, dim=-1, keepdim=True)
    even = total == 0
    if bool(even.any()):
        alike = block.hide(torch.ones_like(weight))
        weight = torch.where(even, alike, weight)
        total = torch.where(even, alike.sum(-1, keepdim=True).clamp_min(1.0), total)
    return weight, total


def _is_even(scores: Tensor, function: str) -> Tensor | None:
    """Return which rows have no weights by the formula; None if all have."""
    largest = scores.amax(-1, keepdim=True) if function == "relu" else scores.abs().amax(-1, keepdim=True)
    return None if bool((largest > 0).all()) else largest <= 0


def _through(gradient: Tensor, shared: Tensor, scores: Tensor, function: str) -> Tensor:
    """Return the gradient of scores, writing into that of what they were divided to."""
    if function == "identity":
        return gradient.sub_(scores.sign().mul_(shared))
    gradient = gradient.sub_(shared)
    return gradient.mul_(scores > 0) if function == "relu" else gradient.mul_(scores).mul_(2.0)
