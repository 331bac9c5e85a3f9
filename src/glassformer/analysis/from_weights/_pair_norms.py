"""Frobenius norms of products between every earlier and every later low-rank matrix, without a loop over pairs.

A matrix read or written by a head is the product of two thin ones, and of the outer one only its Gram matrix matters:

    norm(L R)^2 = trace(R' L' L R)      L = a F', R = G b':  F, G: head d_model rank, the sides that meet
                = norm(A F' G B')^2     A'A = a'a, B'B = b'b: rank x rank

Two ways to all pairs. `products` multiplies the sides that meet and squares: 2 d_model rank^2 operations a pair, exact
to rounding. `grams` takes inner products of F A'A F' and G B'B G', each d_model x d_model and symmetric, made a few
rows at a time: d_model^2 operations a pair, with what it takes to make them a sixth of the others at the shape of
GPT-2. It squares what it compares: in float32 a norm that is zero by cancellation may come out as 3e-4 of the product
of the norms.
"""
# torch does not type its linear algebra
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention import linear
from glassformer.numerics import decompositions

Turn = Callable[[Tensor], Tensor]

BUDGET = 1 << 28  # bytes of Gram matrices that `grams` holds at a time
LEAST_ROWS = 48  # of a Gram matrix made at once: fewer make products too thin to be quick


@dataclass(frozen=True, eq=False)
class Side:
    """What one layer's heads write into the stream, or read from it.

    Args:
        matrix: The factor that touches the stream; heads of a group share one.
        core: What the other factor does to norms: its Gram matrix, or (`rooted`) a root of it, core.mT @ core.
        rooted: Which of the two.
    """

    matrix: Float[Tensor, "kv_head d_model rank"]
    core: Float[Tensor, "kv_head group root rank"]
    rooted: bool

    @property
    def heads(self) -> int:
        return self.core.shape[0] * self.core.shape[1]

    def factor(self) -> Float[Tensor, "head d_model root"]:
        """Return a matrix with the product's norms, whatever is multiplied from the stream's side."""
        assert self.rooted, "a Gram matrix has no factor at hand"
        return (self.matrix[:, None] @ self.core.mT).flatten(0, 1)

    def gram(self) -> Float[Tensor, "kv_head group rank rank"]:
        """Return the Gram matrix of the other factor."""
        return self.core.mT @ self.core if self.rooted else self.core

    def squared(self) -> Float[Tensor, " head"]:
        """Return the squared norm of each head's product."""
        if self.rooted:
            return self.factor().square().sum((-2, -1))
        return ((self.matrix.mT @ self.matrix)[:, None] * self.core).sum((-2, -1)).flatten()

    def rows(self, first: int, last: int) -> Float[Tensor, "head entry"]:
        """Return rows of the Gram matrices from the diagonal on: what lies left of it is the same by symmetry."""
        # what is stored in half precision is widened here, a part at a time
        seen = self.matrix[:, first:].to(self.core.dtype)
        left = (seen[:, None, : last - first] @ self.core).flatten(1, 2)
        return (left @ seen.mT).view(self.heads, -1)

    def without_top(self) -> "Side":
        """Return the side without its largest singular direction."""
        assert self.rooted, "a Gram matrix has no factor at hand"
        small = decompositions.triangular(self.factor()).unflatten(0, self.core.shape[:2])
        # factor = q small: the right singular vectors of `small` are directions of the root's rows
        top = decompositions.svd(small).Vh[..., :1, :]
        return Side(self.matrix, self.core - top.mT @ (top @ self.core), rooted=True)


def side(
    matrix: Float[Tensor, "n_matrix d_model rank"],
    other: Float[Tensor, "n_other *n rank"] | None,
    *,
    rooted: bool,
    turns: Sequence[Turn] = (),
) -> Side:
    """Return a side of the products matrix @ other.mT, one for each of the larger number of heads.

    Args:
        matrix: The factor that touches the stream.
        other: The other one; None for the identity.
        rooted: Whether the core is a root (`products`) or a Gram matrix (`grams`).
        turns: What rows of `other` are turned by; squared norms are then means over the turns.
    """
    n, width = len(matrix), matrix.shape[-1]
    if other is None:
        eye = torch.eye(width, dtype=matrix.dtype, device=matrix.device)
        return Side(matrix, eye.expand(n, 1, width, width), rooted)
    core = _root(other, turns) if rooted else _gram(other, turns)
    if len(core) < n:
        core = core.repeat_interleave(n // len(core), 0)
    return Side(matrix, core.unflatten(0, (n, -1)), rooted)


def products(earlier: Float[Tensor, "n_head d_model n"], later: Float[Tensor, "m_head d_model m"]) -> Tensor:
    """Squared norms of earlier.mT @ later, `n_head m_head`, from factors that touch the stream."""
    met = linear(earlier.mT.flatten(0, 1), later.mT.flatten(0, 1))
    return met.square_().view(len(earlier), earlier.shape[-1], len(later), later.shape[-1]).sum((1, 3))


def grams(
    layers: Callable[[], Iterable[tuple[Side | None, Sequence[Side]]]],
    heads: Sequence[tuple[int, Sequence[int]]],
    d_model: int,
    like: Tensor,
    budget: int = BUDGET,
) -> list[Float[Tensor, "n_earlier n_read"]]:
    """Return squared norms of every layer's reads with all writes of the layers before it.

    Args:
        layers: Called once per group of rows; yields each layer's write and reads, whose matrices may be read anew from
            disk every time.
        heads: Number of heads of each layer's write (0 if there is none) and of each of its reads.
        d_model: Width of the stream.
        like: A tensor of the type and place to compute in.
        budget: Bytes to hold at a time.

    Returns:
        For each layer, `earlier read`: reads one after the other.
    """
    before = [sum(n for n, _ in heads[:i]) for i in range(len(heads) + 1)]
    reading = [sum(reads) for _, reads in heads]
    found = [like.new_zeros(before[i], reading[i], dtype=torch.float64) for i in range(len(heads))]
    step = budget // max(1, like.element_size() * d_model * (before[-1] + max(reading, default=0)))
    step = min(d_model, max(1, min(step, max(LEAST_ROWS, d_model // 16))))
    writes = like.new_empty(before[-1], step * d_model)
    for first in range(0, d_model, step):
        last = min(first + step, d_model)
        size = (last - first) * (d_model - first)
        for i, (write, reads) in enumerate(layers()):
            if before[i] and reads:
                rows = torch.cat([read.rows(first, last) for read in reads])
                found[i] += linear(writes[: before[i], :size], rows).double()
            if write is not None:
                rows = write.rows(first, last)
                # entries right of the block on the diagonal stand for their mirror images too
                rows.view(write.heads, last - first, -1)[..., last - first :] *= 2
                writes[before[i] : before[i + 1], :size] = rows
    return [sums.clamp_min_(0) for sums in found]


def _root(other: Tensor, turns: Sequence[Turn]) -> Float[Tensor, "head root rank"]:
    root = decompositions.triangular(other)
    if not turns:
        return root
    stacked = torch.cat([turn(root) for turn in turns], -2) / len(turns) ** 0.5
    return decompositions.triangular(stacked)


def _gram(other: Tensor, turns: Sequence[Turn]) -> Float[Tensor, "head rank rank"]:
    gram = other.mT @ other
    if not turns:
        return gram
    total = torch.zeros_like(gram)
    for turn in turns:
        total += turn(turn(gram).mT)
    return total / len(turns)
