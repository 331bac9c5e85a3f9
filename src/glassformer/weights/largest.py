"""The largest entries of left @ right, without building it and without computing all of it exactly.

An entry is at most the length of its row of `left` times the length of its column of `right`. Rows and columns are
taken in the order of falling length, so that with the k best so far in hand, whatever cannot beat the worst of them
lies behind a line that only moves forwards: columns beyond it are left out, rows beyond it end the search. Both factors
are first brought to the form U sqrt(S), sqrt(S) V', in which that bound is tight: a matrix whose spectrum falls quickly
has few long rows and columns.

What is left is screened in bfloat16 where the machine multiplies it faster. A screened entry is off by at most 2^-7 of
the two lengths, so that few entries come near enough to the worst of the best to be computed exactly.

Bounds cost more than they save where a product fits into a block: such products are made whole, those of many heads at
once. The k rows with the largest maxima hold the k largest entries, so that only these rows are sorted.
"""

# torch does not type its linear algebra
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.errors import AnalysisUnavailable
from glassformer.numerics import decompositions

# entries made at a time on a CPU: what its caches hold; beyond that the product waits for memory
CACHED = 1 << 20
# two factors and a product rounded to 8 bits: 3 times 2^-9, and what second orders and the sum add
COARSE = 2.0**-7


def largest_of_each(
    left: Float[Tensor, "n rows rank"], right: Float[Tensor, "n rank columns"], k: int, *, by_size: bool, block: int
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """Return what `largest` returns, for each of n products; the arguments are the same."""
    size = left.shape[1] * right.shape[2]
    if size > block:
        found = [largest(a, b, k, by_size=by_size, block=block) for a, b in zip(left, right)]
        return torch.stack([values for values, _ in found]), torch.stack([places for _, places in found])
    _require_finite(left, right)
    at_once = max(1, _room(left.device, block) // max(1, size))
    parts = [_whole(a, b, k, by_size) for a, b in zip(left.split(at_once), right.split(at_once))]
    return torch.cat([values for values, _ in parts]), torch.cat([places for _, places in parts])


def largest(
    left: Float[Tensor, "rows rank"],
    right: Float[Tensor, "rank columns"],
    k: int,
    *,
    by_size: bool,
    block: int,
    coarse: bool | None = None,
) -> tuple[Float[Tensor, " k"], Int[Tensor, " k"]]:
    """The k largest entries (in absolute value if `by_size`) and their indices in the flattened product.

    Args:
        left: One factor, in float32 or float64.
        right: The other.
        k: How many; at most as many as there are.
        by_size: Compare absolute values.
        block: Entries of the product held at a time.
        coarse: Screen in bfloat16; by default where that is faster.

    Raises:
        AnalysisUnavailable: The factors hold numbers that are not finite, which have no order.
    """
    _require_finite(left, right)
    m = right.shape[1]
    rows, columns = _balanced(left, right)
    row_length, row_order = rows.norm(dim=1).sort(descending=True)
    column_length, column_order = columns.norm(dim=0).sort(descending=True)
    rows, columns = rows[row_order], columns[:, column_order].contiguous()
    # rounding must not hide a candidate either
    margin = 8 * (rows.shape[1] + 8) * torch.finfo(rows.dtype).eps
    screen_rows, screen_columns = rows, columns
    if _coarse_is_fast(left.device) if coarse is None else coarse:
        screen_rows, screen_columns, margin = rows.bfloat16(), columns.bfloat16(), COARSE + margin
    side = max(1, math.isqrt(_room(left.device, block)))
    lengths, falling = row_length.tolist(), -column_length.cpu()
    heads = column_length[::side].tolist()
    values, places, floor = left.new_empty(0), torch.empty(0, dtype=torch.long, device=left.device), -math.inf
    for start in range(0, len(rows), side):
        reach, wide = lengths[start], m
        if floor > 0:
            # how many columns are long enough to matter to the longest of the rows that are left
            need = floor / max(reach * (1 + margin), 1e-300)
            wide = int(torch.searchsorted(falling, torch.tensor(-need, dtype=falling.dtype), right=True))
            if wide == 0:
                break
        for first in range(0, wide, side):
            stop = min(first + side, wide)
            made = screen_rows[start : start + side] @ screen_columns[:, first:stop]
            error = margin * reach * heads[first // side]
            short = len(values) < k
            if not short and _highest(made, by_size) <= floor - error:
                continue
            made = made.to(rows.dtype).abs() if by_size else made.to(rows.dtype)
            threshold = _kth(values, made, k, by_size) - 2 * error if short else floor - error
            row, column = (made >= threshold).nonzero(as_tuple=True)
            if len(row) > made.numel() // 64:
                # too many come near: the block itself is cheaper than entry by entry
                exact = rows[start : start + side] @ columns[:, first:stop]
                row, column, found = _best(exact, k, by_size)
            else:
                found = (rows[start + row] * columns[:, first + column].mT).sum(-1)
            values, places = torch.cat((values, found)), torch.cat((places, (start + row) * m + first + column))
            order = (values.abs() if by_size else values).topk(min(k, len(values))).indices
            values, places = values[order], places[order]
            floor = float(values[-1].abs() if by_size else values[-1]) if len(values) == k else floor
    chosen = row_order[places // m], column_order[places % m]
    # the balanced factors are rounded once more than the given ones
    exact = (left[chosen[0]] * right[:, chosen[1]].mT).sum(-1)
    order = (exact.abs() if by_size else exact).argsort(descending=True)
    return exact[order], (chosen[0] * m + chosen[1])[order]


def _whole(left: Tensor, right: Tensor, k: int, by_size: bool) -> tuple[Tensor, Tensor]:
    """Return the k largest entries of each product and their places, from the products themselves."""
    made = left @ right
    size = made.abs() if by_size else made
    rows = size.amax(-1).topk(min(k, size.shape[1])).indices
    few = size[torch.arange(len(size), device=size.device)[:, None], rows]
    best = few.flatten(1).topk(k).indices
    m = size.shape[2]
    places = rows.gather(1, best // m) * m + best % m
    return made.flatten(1).gather(1, places), places


def _require_finite(*factors: Tensor) -> None:
    if not all(bool(factor.isfinite().all()) for factor in factors):
        raise AnalysisUnavailable("the largest entries of a product are defined where its factors are finite numbers.")


def _room(device: torch.device, block: int) -> int:
    """Return how many entries are made at a time."""
    return min(block, CACHED) if device.type == "cpu" else block


def _highest(made: Tensor, by_size: bool) -> float:
    if not by_size:
        return float(made.amax())
    low, high = made.aminmax()
    return max(float(high), -float(low))


def _kth(values: Tensor, made: Tensor, k: int, by_size: bool) -> float:
    """Return the k-th best of those found and a screened block together; minus infinity if there are fewer."""
    known = torch.cat((values.abs() if by_size else values, made.flatten()))
    return float(known.topk(k).values[-1]) if len(known) >= k else -math.inf


def _best(exact: Tensor, k: int, by_size: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, columns and values of a block's k best."""
    flat = exact.flatten()
    order = (flat.abs() if by_size else flat).topk(min(k, len(flat))).indices
    return order // exact.shape[1], order % exact.shape[1], flat[order]


def _balanced(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return U sqrt(S) and sqrt(S) V' of the product."""
    q_left, r_left = decompositions.qr(left)
    q_right, r_right = decompositions.qr(right.mT)
    u, s, vh = decompositions.svd(r_left @ r_right.mT)
    root = s.sqrt()
    return q_left @ (u * root), (q_right @ (vh.mT * root)).mT


def _coarse_is_fast(device: torch.device) -> bool:
    """Return whether bfloat16 products take less time than float32 ones: not on CPUs without instructions for it."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    # torch offers no public question
    ask = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return device.type == "cpu" and ask is not None and bool(ask())
