"""Residue classes: every `rate`-th position of a text, each class mixed as a text of its own.

    class c of rate r          positions c, c + r, c + 2 r, …

Nothing is made for a query and a key of different classes: time and memory are those of r texts of 1 / r the length.
Positions that continue a state are of as many classes as there are, and a single one reads its own class of the state,
where it lies.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from glassformer.attention.context import Context, Mask, Run, Term, causal
from glassformer.attention.mixer import per_query_head

Mix = Callable[[Context, Tensor, Tensor, Tensor], Tensor]


def by_class(
    mix: Mix,
    context: Context,
    rate: int,
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_value"],
) -> Float[Tensor, "batch head query d_value"]:
    """Return what `mix` makes of each class, in its place.

    Args:
        mix: Called with the context of all classes, rows of a batch, and their queries, keys and values.
        context: That of the whole text.
        rate: How many classes there are.
        q: Queries.
        k: Keys; more than there are queries where these continue a state.
        v: Values.
    """
    if rate == 1:
        return mix(replace(context, rule=None), q, k, v)
    batch, n, m = q.shape[0], q.shape[-2], k.shape[-2]
    classes = Classes.of(context, n, m, rate)
    q, k, v = classes.queries(q), classes.keys(k), classes.keys(v)
    z = mix(classes.context(context, batch), q, k, v)
    return classes.restored(z, batch)


class HeadsByRate:
    """Heads by the rate they look at, each rate mixed by itself.

    Args:
        rates: Of the heads, in their order, over and over until every head has one.
        n_heads: How many heads there are.

    Attributes:
        heads: Which heads have a rate, for each that there is.
        rates: Of each head, or of all.
    """

    def __init__(self, rates: tuple[int, ...], n_heads: int) -> None:
        of_each = tuple(rates[head % len(rates)] for head in range(n_heads))
        self.heads = {rate: [h for h, own in enumerate(of_each) if own == rate] for rate in dict.fromkeys(of_each)}
        self.rates = of_each if len(self.heads) > 1 else of_each[:1]

    def mixed(
        self,
        mix: Callable[[int, slice | list[int], Tensor, Tensor, Tensor], Tensor],
        q: Float[Tensor, "batch head query d_head"],
        k: Float[Tensor, "batch kv_head key d_head"],
        v: Float[Tensor, "batch kv_head key d_value"],
    ) -> Float[Tensor, "batch head query d_value"]:
        """Return what `mix` makes of a rate, its heads, and their queries, keys and values: of all rates, by head."""
        if len(self.heads) == 1:
            (rate,) = self.heads
            return mix(rate, slice(None), q, k, v)
        k, v = per_query_head(k, q), per_query_head(v, q)
        mixed = [mix(rate, heads, q[:, heads], k[:, heads], v[:, heads]) for rate, heads in self.heads.items()]
        order = torch.tensor([head for heads in self.heads.values() for head in heads], device=q.device)
        return torch.cat(mixed, 1)[:, order.argsort()]


@dataclass(frozen=True)
class Classes:
    """Where the positions of each class lie.

    Args:
        rate: How many positions lie from one of a class to the next.
        n: Queries.
        m: Keys.
        total: Keys that there have been, those that have left a rolling state included.
        n_classes: Of how many classes there are queries.
        rows: Queries of a class, with what makes the last row full.
        back: Keys of a class before its first query.
    """

    rate: int
    n: int
    m: int
    total: int
    n_classes: int
    rows: int
    back: int

    @classmethod
    def of(cls, context: Context, n: int, m: int, rate: int) -> "Classes":
        n_classes = min(n, rate)
        # a single query takes its class from the state as it lies: none of its keys is made up
        back = (m - n) // rate if n_classes == 1 else -(-(m - n) // rate)
        total = max(m, context.key_positions.shape[-1])
        return cls(rate=rate, n=n, m=m, total=total, n_classes=n_classes, rows=-(-n // n_classes), back=back)

    @property
    def front(self) -> int:
        """How many keys before the first of all would make the first row full; negative if some are left out."""
        return self.back * self.rate - (self.m - self.n)

    def queries(self, x: Shaped[Tensor, "batch head query d"]) -> Shaped[Tensor, "batch_class head row d"]:
        x = F.pad(x, (0, 0, 0, self.rows * self.n_classes - self.n))
        return x.unflatten(-2, (self.rows, self.n_classes)).movedim(-2, 1).flatten(0, 1)

    def keys(self, x: Shaped[Tensor, "batch kv_head key d"]) -> Shaped[Tensor, "batch_class kv_head key_of_class d"]:
        columns = self.back + self.rows
        if self.n_classes == 1:
            return x[..., -self.front :: self.rate, :]
        x = F.pad(x, (0, 0, self.front, columns * self.rate - self.front - self.m))
        return x.unflatten(-2, (columns, self.rate))[..., : self.n_classes, :].movedim(-2, 1).flatten(0, 1)

    def restored(self, z: Float[Tensor, "batch_class head row d"], batch: int) -> Float[Tensor, "batch head query d"]:
        return z.unflatten(0, (batch, self.n_classes)).movedim(1, -2).flatten(-3, -2)[..., : self.n, :]

    def context(self, context: Context, batch: int) -> Context:
        """Return the facts of a pass over the classes, rows of a batch."""
        alike = not context.biased or (context.encoding.bias_by_offset and context.first is not None)
        key = ("classes", self, batch, alike)
        if key not in context.memo:
            positions, keys = context.positions[:, -self.n :], context.key_positions[:, -self.m :]
            if alike:
                # distances are the same in all classes; what is made up in one of them is a key of another
                steps = torch.arange(-self.back, self.rows, device=positions.device)
                of_keys = (positions[:1, :1] + self.rate * steps).to(positions)
                of_queries = of_keys[:, self.back :]
            else:
                positions, keys = positions.expand(batch, -1), keys.expand(batch, -1)
                of_queries = self.queries(positions[:, None, :, None])[:, 0, :, 0]
                of_keys = self.keys(keys[:, None, :, None])[:, 0, :, 0]
            context.memo[key] = self._mask(context, batch), of_queries.contiguous(), of_keys.contiguous(), {}
        mask, positions, keys, memo = context.memo[key]
        return replace(context, mask=mask, positions=positions, key_positions=keys, first=None, rule=None, memo=memo)

    def _mask(self, context: Context, batch: int) -> Mask:
        # what makes rows full stands behind every query, or before all keys
        if self.front <= 0 and context.mask.is_causal:
            return causal()
        if self.front <= 0 and not context.mask.terms and self.n == self.rows * self.n_classes:
            return Mask()
        return Mask((InClasses(context.mask, self, batch),))


@dataclass(frozen=True, eq=False)
class InClasses(Term):
    """What a mask says of the positions of each class."""

    mask: Mask
    classes: Classes
    n_rows: int

    @property
    def batch(self) -> int:  # type: ignore[override]
        return self.n_rows * self.classes.n_classes

    def allows(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        found, n = self.classes, self.classes.n_classes
        q, k = (found.total - found.n + b % n + (i - found.back) * found.rate for i in (q, k))
        there = (k >= found.total - found.m) & (k < found.total)
        row = b // n if self.mask.batch > 1 else torch.zeros_like(b)
        # what makes the last row full looks as the last query does
        return self.mask.allows(row, q.clamp_max(found.total - 1), k.clamp(0, found.total - 1)) & there

    def excerpt(self, run: Run) -> "InClasses":
        raise AssertionError("texts are cut into documents before they are cut into classes")
