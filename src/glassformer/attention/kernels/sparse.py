"""The sets of pairs that sparse attention is a union of, in the groups that make each of them dense.

    strided       pairs at multiples of the stride, by residue class, and those in the window but them
    fixed         pairs within a block, by block, and those with the last keys of other blocks
    near          pairs in a window, of every position or of every so many, by blocks beside each other
    met_by_all    pairs of every query with some keys

A pair is in one set only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from glassformer.attention.context import Causal, Context
from glassformer.attention.kernels.blocked import blocks_of, neighbours
from glassformer.attention.kernels.classes import Classes
from glassformer.attention.kernels.union import Pairs

SHARED = 8  # copies of keys that all queries meet, at most: with as many, the mask is one part in so many of its size

Looks = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Tokens:
    """Some positions of every row, as many in each.

    Args:
        at: Which.
        there: False for those that make up the number.
    """

    at: Int[Tensor, "b token"]
    there: Bool[Tensor, "b token"]

    @classmethod
    def marked(cls, flags: Bool[Tensor, "b pos"]) -> "Tokens | None":
        """Return the positions with a flag; None if there are none."""
        n = int(flags.sum(-1).max())
        if n == 0:
            return None
        at = flags.int().argsort(dim=-1, descending=True, stable=True)[:, :n]
        return cls(at, flags.gather(-1, at))

    def rows(self, batch: int) -> Int[Tensor, "b 1 1 1"]:
        """Return the number of each row, as masks of so many rows count them."""
        n = max(batch, len(self.at))
        return torch.arange(n, device=self.at.device).clamp_max(batch - 1)[:, None, None, None]

    def of(self, x: Float[Tensor, "batch head pos d"]) -> Float[Tensor, "batch head token d"]:
        """Return the rows at these positions."""
        if len(self.at) == 1:
            return x[..., self.at[0], :]
        return x.gather(-2, self.at[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1]))

    def put(
        self, x: Float[Tensor, "batch head pos d"], rows: Float[Tensor, "batch head token d"]
    ) -> Float[Tensor, "batch head pos d"]:
        """Return `x` with rows of its own at these positions."""
        n = x.shape[-2]
        # what makes up the number goes behind the end
        at = torch.where(self.there, self.at, n)[:, None, :, None].expand_as(rows)
        return F.pad(x, (0, 0, 0, 1)).scatter(-2, at, rows)[..., :n, :]


def strided(
    k: Float[Tensor, "batch head key d"],
    v: Float[Tensor, "batch head key d"],
    context: Context,
    stride: int,
    window: int,
) -> list[Pairs]:
    """Return the pairs at multiples of the stride, and those nearer than the window.

    Args:
        k: Keys, one per query head; as many positions as queries, and more than the stride.
        v: Values.
        context: Facts of the pass.
        stride: How many positions lie from one far key to the next.
        window: Distance of the nearest key that is outside.
    """
    batch, n = k.shape[0], k.shape[-2]
    classes = Classes(rate=stride, n=n, m=n, total=n, n_classes=stride, rows=-(-n // stride), back=0)
    at = torch.arange(classes.rows * stride, device=k.device).view(-1, stride).mT
    far = Pairs(
        classes.queries, partial(classes.restored, batch=batch), classes.keys(k), classes.keys(v),
        **_Pairs(context, batch, n, at, at).all(),
    )  # fmt: skip
    if window == 1:
        return [far]
    return [far, near(k, v, context, window, but=stride)]


def near(
    k: Float[Tensor, "batch head key d"],
    v: Float[Tensor, "batch head key d"],
    context: Context,
    window: int,
    *,
    rate: int = 1,
    but: int | None = None,
) -> Pairs:
    """Return the pairs less than `window` steps apart, a step being `rate` positions, but for multiples of a number.

    Classes of the rate are cut into blocks, each beside the blocks that its window reaches.
    """
    batch, n = k.shape[0], k.shape[-2]
    n_classes = min(n, rate)
    classes = Classes(rate=rate, n=n, m=n, total=n, n_classes=n_classes, rows=-(-n // n_classes), back=0)
    rows, back = blocks_of(window)
    ahead, blocks = 0 if context.looks_back else back, -(-classes.rows // rows)
    start = torch.arange(blocks, device=k.device)[:, None] * rows
    queries = start + torch.arange(rows, device=k.device)
    keys = start + torch.arange(-back * rows, (1 + ahead) * rows, device=k.device)
    first = torch.arange(n_classes, device=k.device)[:, None, None]

    def looks(q: Tensor, k: Tensor) -> Tensor:
        inside = (q - k).abs() < window * rate
        return inside if but is None else inside & ((q - k) % but != 0)

    return Pairs(
        lambda x: in_blocks(classes.queries(x), rows),
        lambda x: classes.restored(out_of_blocks(x, batch * n_classes, classes.rows), batch),
        neighbours(classes.keys(k), rows, back, ahead).transpose(0, 1).flatten(0, 1),
        neighbours(classes.keys(v), rows, back, ahead).transpose(0, 1).flatten(0, 1),
        **_Pairs(
            context, batch, n, (first + rate * queries).flatten(0, 1), (first + rate * keys).flatten(0, 1)
        ).some(looks),
    )  # fmt: skip


def met_by_all(
    k: Float[Tensor, "batch head key d"],
    v: Float[Tensor, "batch head key d"],
    context: Context,
    tokens: Tokens,
    but: Looks,
) -> Pairs:
    """Return the pairs of every query with some keys, but for those that are in other sets.

    Args:
        k: Keys, one per query head; as many positions as queries.
        v: Values.
        context: Facts of the pass.
        tokens: Which keys.
        but: Whether query and key are in another set.
    """
    mask, n = context.mask, k.shape[-2]
    b = tokens.rows(mask.batch)
    q, at = torch.arange(n, device=k.device)[:, None], tokens.at[:, None, None]
    allowed = mask.allows(b, q, at) & ~but(q, at) & tokens.there[:, None, None]
    if len(allowed) < len(k):
        allowed = allowed.expand(len(k), -1, -1, -1)

    def as_they_are(x: Tensor) -> Tensor:
        return x

    return Pairs(as_they_are, as_they_are, tokens.of(k), tokens.of(v), allowed)


def fixed(
    k: Float[Tensor, "batch head key d"],
    v: Float[Tensor, "batch head key d"],
    context: Context,
    stride: int,
    summary: int,
) -> list[Pairs]:
    """Return the pairs within blocks, and those with the last keys of other blocks.

    Args:
        k: Keys, one per query head; as many positions as queries, the first of them the first of a block.
        v: Values.
        context: Facts of the pass.
        stride: Length of a block.
        summary: How many keys at the end of a block all others look at.
    """
    batch, n = k.shape[0], k.shape[-2]
    blocks, split = -(-n // stride), partial(in_blocks, rows=stride)
    at = torch.arange(blocks * stride, device=k.device).view(blocks, stride)
    own = Pairs(
        split, partial(out_of_blocks, batch=batch, n=n), split(k), split(v),
        **_Pairs(context, batch, n, at, at).all(),
    )  # fmt: skip
    # no query comes after the last block
    stop = (n - 1) // stride * stride if context.looks_back else n
    n_last = stop // stride * summary + max(0, stop % stride - (stride - summary))
    if n_last == 0:
        return [own]
    last = at[:, stride - summary :].flatten()[:n_last]
    copies = math.gcd(stride, SHARED)
    classes = Classes(rate=copies, n=n, m=n, total=n, n_classes=copies, rows=-(-n // copies), back=0)
    queries = torch.arange(classes.rows * copies, device=k.device).view(-1, copies).mT
    keys, values = (rows[..., last, :][:, None].expand(-1, copies, -1, -1, -1).flatten(0, 1) for rows in (k, v))
    far = Pairs(
        classes.queries, partial(classes.restored, batch=batch), keys, values,
        **_Pairs(context, batch, n, queries, last.expand(copies, -1), by_distance=False).some(
            lambda q, k: q // stride != k // stride, alike=True
        ),
    )  # fmt: skip
    return [own, far]


def in_blocks(x: Shaped[Tensor, "batch head n d"], rows: int) -> Shaped[Tensor, "batch_block head row d"]:
    """Return rows in blocks of so many, zeros behind the last of them."""
    n = x.shape[-2]
    blocks = -(-n // rows)
    return F.pad(x, (0, 0, 0, blocks * rows - n)).unflatten(-2, (blocks, rows)).movedim(-3, 1).flatten(0, 1)


def out_of_blocks(x: Shaped[Tensor, "batch_block head row d"], batch: int, n: int) -> Shaped[Tensor, "batch head n d"]:
    """Return rows in their order from blocks of them."""
    return x.unflatten(0, (batch, -1)).movedim(1, 2).flatten(2, 3)[..., :n, :]


class _Pairs:
    """What mask and positions say of pairs in groups: which query and which key, by where they stand in the text.

    Args:
        context: Facts of the pass.
        batch: Rows.
        n: Length of the text; numbers outside of it stand for nothing.
        queries: Of each group.
        keys: Of each group.
        by_distance: Whether a row and a column are as far apart in every group.
    """

    def __init__(
        self,
        context: Context,
        batch: int,
        n: int,
        queries: Int[Tensor, "group row"],
        keys: Int[Tensor, "group key"],
        by_distance: bool = True,
    ) -> None:
        self.context, self.batch, self.n, self.by_distance = context, batch, n, by_distance
        # what fills the last group up looks as the last query does
        self.queries, self.keys = queries.clamp_max(n - 1), keys

    def all(self) -> dict[str, Any]:
        """Return `allowed`, `bias` and `lower` where queries of a group look at all keys that the mask allows."""
        if self.context.mask.is_causal:
            # what fills a group up stands behind all queries
            return (
                {"allowed": self._allowed(None, first=True), "bias": self._bias()}
                if self.context.biased
                else {"lower": True}
            )
        if not self.context.mask.terms and self.queries.numel() == self.n:
            return {"bias": self._bias()}
        return {"allowed": self._allowed(None), "bias": self._bias()}

    def some(self, looks: Looks, *, alike: bool = False) -> dict[str, Any]:
        """Return the same where they look at some.

        Args:
            looks: Whether a query looks at a key that the mask allows.
            alike: Whether a row and a column look, or do not look, in every group.
        """
        first = alike and all(isinstance(term, Causal) for term in self.context.mask.terms)
        return {"allowed": self._allowed(looks, first), "bias": self._bias()}

    def _allowed(self, looks: Looks | None, first: bool = False) -> Bool[Tensor, "g 1 row key"]:
        queries, keys = (self.queries[:1], self.keys[:1]) if first else (self.queries, self.keys)
        q, k, mask = queries[:, :, None], keys[:, None, :], self.context.mask
        b = torch.arange(mask.batch, device=q.device)[:, None, None, None]
        allowed = mask.allows(b, q, k.clamp(0, self.n - 1)) & (k >= 0) & (k < self.n)
        return self._rows(allowed if looks is None else allowed & looks(q, k))[:, None]

    def _bias(self) -> Float[Tensor, "g head row key"] | None:
        context = self.context
        if not context.biased:
            return None
        if self.by_distance and context.encoding.bias_by_offset and context.first is not None:
            q, k = self.queries[:1], self.keys[:1]
        else:
            inside = self.keys.clamp(0, self.n - 1)
            q, k = (
                self._rows(of[:, at]) for of, at in ((context.positions, self.queries), (context.key_positions, inside))
            )
        return context.encoding.bias(replace(context, positions=q, key_positions=k, memo={}))

    def _rows(self, x: Shaped[Tensor, "b group at *rest"]) -> Shaped[Tensor, "b_and_group at *rest"]:
        """Return what is said of groups, for every row of the batch."""
        if x.shape[:2] == (1, 1):
            return x[0]
        return x.expand(self.batch, *x.shape[1:]).flatten(0, 1).contiguous()
