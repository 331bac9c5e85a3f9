"""What is left of writes and memories inside chunks, for heads that let go of a share at every position.

With g_t the logarithm of what position t keeps, and G its running sum within the chunk:

    between   exp(G_t - G_s), s <= t     of a write, at each row from its own on
    from_start   exp(G_t)                of the memory before the chunk, at each row
    to_end   exp(G_end - G_s)            of a write, at the end
    over   exp(G_end)                    of the memory before the chunk, at the end

Exponents are differences that are never positive. Where a document begins, what is older is let go: what a chunk writes
of earlier documents, and what its positions of later ones would read, is multiplied by zero.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Decay(NamedTuple):
    """What is left of a write at each later row of its chunk, of the memory at each row, and of both at the end."""

    between: Float[Tensor, "#batch #head #chunk row row"]
    from_start: Float[Tensor, "#batch #head #chunk row 1"]
    to_end: Float[Tensor, "#batch #head #chunk row 1"]
    over: Float[Tensor, "#batch #head #chunk 1 1"]

    def within(self, products: Float[Tensor, "batch head chunk row row"]) -> Tensor:
        """Return the weights of a chunk's rows for each other, in the place of products of theirs."""
        return products.mul_(self.between)


def gates_decay(
    log_keep: Float[Tensor, "batch head chunk row"] | None, documents: Int[Tensor, "b pos_and_one"] | None, like: Tensor
) -> Decay | None:
    """Return the decay of chunks, in the dtype of `like`; None if nothing is lost.

    Args:
        log_keep: Logarithm of what each position keeps; not positive. None: all.
        documents: Which document the memory is of, and each position after it. None if all is one.
        like: Queries, `batch head chunk row d_head`.
    """
    if log_keep is None and documents is None:
        return None
    size = like.shape[-2]
    seen = torch.ones(size, size, dtype=torch.bool, device=like.device).tril()
    own = None if documents is None else documents[:, 1:].unflatten(-1, (-1, size))[:, None, :, :, None]
    if own is not None:
        seen = (own == own.mT) & seen
    if log_keep is None:
        from_start = to_end = over = like.new_ones(())
        between = seen.to(like.dtype)
    else:
        total = log_keep.double().cumsum(-1)
        between = _between(total, seen, like.dtype)
        from_start, to_end = (x[..., None].to(like.dtype).exp() for x in (total, total[..., -1:] - total))
        over = from_start[..., -1:, :]
    if documents is not None and own is not None:
        before, last = documents[:, :-1:size][:, None, :, None, None], own[..., -1:, :]
        from_start, to_end, over = from_start * (own == before), to_end * (own == last), over * (before == last)
    return Decay(between, from_start, to_end, over)


def _between(total: Float[Tensor, "batch head chunk row"], seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return exponentials of the differences of running sums, zero where nothing is seen.

    Of differences in float32 little is left where a gate has closed once: what rounding takes off sums is put back.
    Powers are of two: vector libraries take many times as long over `exp` where an exponent is minus infinity.
    """
    total = total * math.log2(math.e)
    near = total.to(dtype)
    rest = (total - near).to(dtype)
    between = near[..., :, None] - near[..., None, :]
    between += rest[..., :, None]
    between -= rest[..., None, :]
    between += torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, float("-inf"))
    return between.exp2_()
