"""One softmax over several sets of keys, each mixed by a kernel of its own in whatever groups suit it.

    out = sum_p exp(lse_p - lse) out_p,    lse = log sum_p exp(lse_p)

where p runs over sets of pairs of query and key that have none in common. With the `lse` and `out` of the whole, the
backward pass of the library's kernel gives each set's share of the gradients as it stands: it makes weights anew from
exp(score - lse), and takes from them the product of `out` with its gradient.

Source: Milakov and Gimelshein 2018 for the merge; Dao et al. 2022, "FlashAttention", algorithm 4, for the backward.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.attention.mixer import per_query_head
from glassformer.numerics.softmax import Part, merge

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, eq=False)
class Pairs:
    """Some pairs of query and key, in groups of queries that meet the same keys.

    Args:
        grouped: From rows in their order to rows by group, `batch_group head row d`, zeros where there are none.
        restored: The way back.
        k: Keys of each group, one per query head.
        v: Values of each group, as wide as keys.
        allowed: Which pairs there are; None for all.
        bias: What is added to their scores.
        lower: All pairs in which the key does not come after the query, and no others.
    """

    grouped: Callable[[Tensor], Tensor]
    restored: Callable[[Tensor], Tensor]
    k: Float[Tensor, "batch_group head key d"]
    v: Float[Tensor, "batch_group head key d"]
    allowed: Bool[Tensor, "g 1 row key"] | None = None
    bias: Float[Tensor, "g_of_bias head row key"] | None = None
    lower: bool = False

    def mask(self, like: Tensor) -> Float[Tensor, "g_of_mask h row key"] | None:
        """Return what is added to scores, -inf where there is no pair."""
        if self.allowed is None and self.bias is None:
            return None
        added = like.new_zeros(()) if self.bias is None else self.bias.to(like.dtype)
        if self.allowed is not None:
            added = torch.where(self.allowed, added, -math.inf)
        # before PyTorch 2.7 the kernel reads the numbers of a row as if they lay side by side
        return added if added.stride(-1) == 1 else added.contiguous()


def alike(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_value"],
) -> tuple[Float[Tensor, "batch head _ d"], ...]:
    """Return queries, keys and values as sets are made of them: one per head and of one width, zeros behind the others.

    They are in single precision at least.
    """
    wide, dtype = max(q.shape[-1], v.shape[-1]), torch.promote_types(q.dtype, torch.float32)
    rows = (q, per_query_head(k, q), per_query_head(v, q))
    return tuple(F.pad(x.to(dtype), (0, wide - x.shape[-1])) for x in rows)


def union_softmax(
    q: Float[Tensor, "batch head query d"],
    sets: Sequence[Pairs],
    scale: float,
    sinks: Float[Tensor, " head"] | None = None,
) -> Float[Tensor, "batch head query d"]:
    """Return softmax attention over all pairs of the sets; zeros for a query that is in none.

    Args:
        q: Queries.
        sets: What they meet.
        scale: Factor on products.
        sinks: A logit per head that takes part in the normaliser.
    """
    if not _has_kernel(q, sets):
        return _by_parts(q, sets, scale, sinks)
    keys_and_values = [rows for one in sets for rows in (one.k, one.v)]
    return _Union.apply(sets, scale, sinks, q, *keys_and_values)  # type: ignore[no-any-return]


def met_by_any(sets: Sequence[Pairs]) -> Bool[Tensor, "batch head query 1"]:
    """Return which queries are in a pair of any of the sets, all of which say which pairs there are."""
    found = None
    for one in sets:
        assert one.allowed is not None, "every set says which of its pairs there are"
        inside = one.restored(one.allowed.any(-1, keepdim=True))
        found = inside if found is None else found | inside
    assert found is not None, "there is a set"
    return found


def _has_kernel(q: Tensor, sets: Sequence[Pairs]) -> bool:
    """Whether the kernel serves: it gives no gradient of what is added to scores, and is not told to compilers."""
    return (
        q.device.type == "cpu"
        and q.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not any(one.bias is not None and one.bias.requires_grad for one in sets)
    )


def _by_parts(q: Tensor, sets: Sequence[Pairs], scale: float, sinks: Tensor | None) -> Tensor:
    """Return the same by way of the scores of all pairs."""
    found: list[Part] = []
    for one in sets:
        scores = one.grouped(q) @ one.k.mT * scale
        if one.lower:
            n = scores.shape[-1]
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1), -math.inf)
        elif (mask := one.mask(scores)) is not None:
            scores = scores + mask
        maximum = scores.detach().amax(-1)
        weights = (scores - maximum.masked_fill(maximum == -math.inf, 0.0)[..., None]).exp()
        maximum, total, mixed = (
            one.restored(rows) for rows in (maximum[..., None], weights.sum(-1, keepdim=True), weights @ one.v)
        )
        found.append(Part(maximum[..., 0], total[..., 0], mixed))
    if sinks is not None:
        logit = sinks.to(q.dtype)[:, None].expand(q.shape[:-1])
        found.append(Part(logit.detach(), (logit - logit.detach()).exp(), torch.zeros_like(found[0].mixed)))
    whole = found[0]
    for part in found[1:]:
        whole = merge(whole, part)
    return whole.out


class _Union(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sets: Sequence[Pairs], scale: float, sinks: Tensor | None, q: Tensor, *keys_and_values: Tensor
    ) -> Tensor:
        outs, sums, masks = [], [], []
        for one in sets:
            rows, mask = one.grouped(q), one.mask(q)
            out, lse = _flash(rows, one.k, one.v, 0.0, one.lower, attn_mask=mask, scale=scale)
            if one.allowed is not None:
                # of a row of nothing the kernel says 0
                lse = lse.masked_fill(~one.allowed.any(-1), -math.inf)
            outs.append(one.restored(out))
            sums.append(one.restored(lse[..., None]))
            masks.append(mask)
        logits = [] if sinks is None else [sinks.to(q.dtype)[:, None, None].expand_as(sums[0])]
        total = torch.stack([*sums, *logits]).logsumexp(0)
        # a row of nothing at all
        total = total.masked_fill(total == -math.inf, 0.0)
        out = torch.zeros_like(outs[0])
        for lse, mixed in zip(sums, outs):
            out = out + (lse - total).exp() * mixed
        ctx.save_for_backward(q, out, total, sinks, *keys_and_values)
        ctx.sets, ctx.scale, ctx.masks = sets, scale, masks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad = grads[0]
        q, out, total, sinks, *keys_and_values = ctx.saved_tensors
        for_q, found = None, []
        for i, (one, mask) in enumerate(zip(ctx.sets, ctx.masks)):
            rows, rows_out, rows_grad, lse = (one.grouped(x) for x in (q, out, grad, total))
            k, v = keys_and_values[2 * i : 2 * i + 2]
            dq, dk, dv = _flash_backward(
                rows_grad, rows, k, v, rows_out, lse[..., 0], 0.0, one.lower, attn_mask=mask, scale=ctx.scale
            )
            for_q = one.restored(dq) if for_q is None else for_q + one.restored(dq)
            found += [dk, dv]
        for_sinks = None
        if sinks is not None:
            share = (sinks.to(q.dtype)[:, None] - total[..., 0]).exp()
            for_sinks = -(share * (grad * out).sum(-1)).sum((0, 2)).to(sinks.dtype)
        return None, None, for_sinks, for_q, *found
