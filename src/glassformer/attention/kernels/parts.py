"""Softmax attention over keys that come in parts, each met by queries of its own: one softmax over all of them.

    z = sum_p exp(lse_p - lse) z_p,      lse = log sum_p exp(lse_p)

Where queries meet some keys in one way and others in another, no single product has all scores. Each part goes through
the library's kernel, which also says the logarithm of its rows' sums; its derivative, given the sums over all parts, is
that of the part. A pattern is never made.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


class Part(NamedTuple):
    """Some keys, and the blocks of queries that meet them.

    Args:
        first: The first block of queries.
        query: Queries of it and of those after it.
        key: What they meet.
        value: What that holds.
        allowed: Who meets whom; None for everybody.
        causal: Queries meet keys up to their own, counted from the first of the block.
    """

    first: int
    query: Float[Tensor, "block head row d_head"]
    key: Float[Tensor, "block head key d_head"]
    value: Float[Tensor, "block head key d_value"]
    allowed: Bool[Tensor, "#block #head row key"] | None = None
    causal: bool = False

    @property
    def blocks(self) -> slice:
        """Which blocks of queries meet the keys."""
        return slice(self.first, self.first + len(self.query))


def in_parts(parts: Sequence[Part], scale: float) -> Float[Tensor, "block head row d_value"]:
    """Return one softmax over the keys of all parts; a row that meets none is zero."""
    query = parts[0].query
    if query.device.type != "cpu" or torch.compiler.is_compiling():
        return by_all_scores(parts, scale)
    tensors = [tensor for part in parts for tensor in (part.query, part.key, part.value)]
    width = max(tensor.shape[-1] for tensor in tensors)
    # the kernel wants one width, and float32 at least for its derivative
    kind = torch.promote_types(query.dtype, torch.float32)
    tensors = [F.pad(tensor, (0, width - tensor.shape[-1])).to(kind) for tensor in tensors]
    layout = tuple((part.blocks, part.allowed, part.causal) for part in parts)
    z = _InParts.apply(scale, layout, *tensors)
    return z[..., : parts[0].value.shape[-1]].to(query.dtype)  # type: ignore[index]


def by_all_scores(parts: Sequence[Part], scale: float) -> Float[Tensor, "block head row d_value"]:
    """Return the same by way of every part's scores; its derivative has one."""
    mixed, lse, blocks = [], [], _n_blocks([part.blocks for part in parts])
    for part in parts:
        scores, allowed = part.query @ part.key.mT * scale, part.allowed
        if part.causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        own = scores.logsumexp(-1)
        weights = (scores - own.masked_fill(own == float("-inf"), 0.0)[..., None]).exp()
        beside = (0, 0) * 2 + (part.blocks.start, blocks - part.blocks.stop)
        mixed.append(F.pad(weights @ part.value, (0, 0, *beside)))
        lse.append(F.pad(own, beside, value=float("-inf")))
    total = torch.stack(lse)
    empty = (total == float("-inf")).all(0)
    shares = total.masked_fill(empty, 0.0).softmax(0).masked_fill(empty, 0.0)
    return (shares[..., None] * torch.stack(mixed)).sum(0)


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, layout: tuple[Any, ...], *tensors: Tensor) -> Tensor:
        z = tensors[0].new_zeros(_n_blocks([blocks for blocks, _, _ in layout]), *tensors[0].shape[1:])
        lse = z.new_full(z.shape[:-1], float("-inf"))
        for (blocks, allowed, causal), (q, k, v) in zip(layout, _threes(tensors), strict=True):
            out, own = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, causal, attn_mask=allowed if allowed is None else _added(allowed, q), scale=scale
            )
            if allowed is not None:
                own = own.masked_fill(~allowed.any(-1), float("-inf"))
            total = torch.logaddexp(lse[blocks], own)
            there = total.masked_fill(total == float("-inf"), 0.0)
            z[blocks] = z[blocks] * (lse[blocks] - there).exp()[..., None] + out * (own - there).exp()[..., None]
            lse[blocks] = total
        ctx.save_for_backward(z, lse, *tensors)
        ctx.scale, ctx.layout = scale, layout
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        z, lse, *tensors = ctx.saved_tensors
        if torch.is_grad_enabled():
            # what is to be differentiated again is made of all scores
            threes = zip(ctx.layout, _threes(tensors), strict=True)
            parts = [Part(blocks.start, q, k, v, allowed, causal) for (blocks, allowed, causal), (q, k, v) in threes]
            plain = by_all_scores(parts, ctx.scale)
            return None, None, *torch.autograd.grad(plain, tensors, gradients, create_graph=True)
        # rows that meet no key have no weights, whatever stands here
        lse = lse.masked_fill(lse == float("-inf"), 0.0)
        found: list[Tensor] = []
        for (blocks, allowed, causal), (q, k, v) in zip(ctx.layout, _threes(tensors), strict=True):
            found += torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                gradients[0][blocks].contiguous(), q, k, v, z[blocks], lse[blocks], 0.0, causal,
                attn_mask=allowed if allowed is None else _added(allowed, q), scale=ctx.scale,
            )  # fmt: skip
        return None, None, *found


def _n_blocks(blocks: Sequence[slice]) -> int:
    return max(some.stop for some in blocks)


def _threes(tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    return [tensors[i : i + 3] for i in range(0, len(tensors), 3)]


def _added(allowed: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(allowed, dtype=like.dtype).masked_fill_(~allowed, float("-inf"))
