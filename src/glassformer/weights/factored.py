"""Matrices that are products of two thin ones, and stay so.

    M = left @ right        left: *batch rows rank        right: *batch rank columns

QK and OV of a head are d_model x d_model but of rank d_head; through the vocabulary they are vocab x vocab. Everything
one asks of them (norm, spectrum, trace, entries, largest entries) comes from the two factors, for any number of heads
at once. Only `dense` builds the matrix.
"""
# torch does not type its linear algebra
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from glassformer.errors import ShapeMismatch
from glassformer.numerics import decompositions
from glassformer.numerics.placement import NumberType, number_type
from glassformer.weights.largest import largest_of_each

BLOCK = 1 << 22  # entries of the product that `top` holds at a time


class Svd(NamedTuple):
    """M = u @ diag(s) @ v.mT with orthonormal columns; singular values in falling order."""

    u: Float[Tensor, "*batch rows rank"]
    s: Float[Tensor, "*batch rank"]
    v: Float[Tensor, "*batch columns rank"]


class Entries(NamedTuple):
    """Some entries of a matrix, best first."""

    values: Float[Tensor, "*batch k"]
    rows: Int[Tensor, "*batch k"]
    columns: Int[Tensor, "*batch k"]


class Factored:
    """A batch of low-rank matrices, `left @ right`; batch axes broadcast.

    Args:
        left: `*batch rows rank`.
        right: `*batch rank columns`.

    Raises:
        ShapeMismatch: The ranks differ, or the batch axes do not broadcast.

    Example:
        >>> ov = Factored(w.V[0], w.O[0])
        >>> ov.shape, ov.norm().shape
        (torch.Size([8, 256, 256]), torch.Size([8]))
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:
        if left.ndim < 2 or right.ndim < 2 or left.shape[-1] != right.shape[-2]:
            raise ShapeMismatch(
                f"Factored needs left `rows rank` and right `rank columns` of one rank; found {_size(left)} and "
                f"{_size(right)}."
            )
        self.batch = _broadcast(left.shape[:-2], right.shape[:-2])
        self.left, self.right = left, right

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.batch, self.left.shape[-2], self.right.shape[-1]))

    @property
    def rank(self) -> int:
        """The width of the factors, an upper bound on the rank."""
        return self.left.shape[-1]

    def dense(self) -> Float[Tensor, "*batch rows columns"]:
        """Build the matrix."""
        return self.left @ self.right

    @property
    def mT(self) -> "Factored":  # as torch calls it
        """The transpose."""
        return Factored(self.right.mT, self.left.mT)

    def __getitem__(self, index: int | slice | Tensor | tuple[int | slice | Tensor, ...]) -> "Factored":
        """Pick along the batch axes; rows and columns are picked by `rows` and `columns`."""
        left = self.left.expand(*self.batch, *self.left.shape[-2:])
        right = self.right.expand(*self.batch, *self.right.shape[-2:])
        if isinstance(index, tuple) and len(index) > len(self.batch):
            raise ShapeMismatch(
                f"{len(index)} indices for {len(self.batch)} batch axes; rows and columns: .rows(), .columns()."
            )
        if not self.batch:
            raise ShapeMismatch(
                "a single factored matrix has no batch axis to index; rows and columns: .rows(), .columns()."
            )
        return Factored(left[index], right[index])

    def __matmul__(self, other: "Factored | Tensor") -> "Factored":
        if isinstance(other, Tensor):
            return Factored(self.left, self.right @ other)
        middle = self.right @ other.left
        # the product has the smaller of the two ranks
        if self.rank <= other.rank:
            return Factored(self.left, middle @ other.right)
        return Factored(self.left @ middle, other.right)

    def __rmatmul__(self, other: Tensor) -> "Factored":
        return Factored(other @ self.left, self.right)

    def __mul__(self, factor: float | Tensor) -> "Factored":
        """Scale by a number, or by one number per matrix of the batch."""
        factor = factor[..., None, None] if isinstance(factor, Tensor) and factor.ndim else factor
        return Factored(self.left * factor, self.right)

    __rmul__ = __mul__

    def __neg__(self) -> "Factored":
        return Factored(-self.left, self.right)

    def __add__(self, other: "Factored") -> "Factored":
        """Add by laying the factors side by side: ranks add up."""
        if self.shape[-2:] != other.shape[-2:]:
            raise ShapeMismatch(f"cannot add factored matrices of {tuple(self.shape)} and {tuple(other.shape)}.")
        batch = _broadcast(self.batch, other.batch)
        lefts = [m.left.expand(*batch, *m.left.shape[-2:]) for m in (self, other)]
        rights = [m.right.expand(*batch, *m.right.shape[-2:]) for m in (self, other)]
        return Factored(torch.cat(lefts, -1), torch.cat(rights, -2))

    def __sub__(self, other: "Factored") -> "Factored":
        return self + (-other)

    def sum(self) -> "Factored":
        """Sum over the last batch axis, as one matrix of added rank: all heads of a layer together."""
        if not self.batch:
            raise ShapeMismatch("a single factored matrix has no batch axis to sum over.")
        left = self.left.expand(*self.batch, *self.left.shape[-2:])
        right = self.right.expand(*self.batch, *self.right.shape[-2:])
        return Factored(left.movedim(-3, -2).flatten(-2), right.flatten(-3, -2))

    def rows(self, ids: Int[Tensor, " k"] | slice | int) -> Tensor:
        """Some rows, dense: `*batch k columns` (an integer drops the axis)."""
        if isinstance(ids, int):
            return (self.left[..., ids, None, :] @ self.right).squeeze(-2)
        return self.left[..., ids, :] @ self.right

    def columns(self, ids: Int[Tensor, " k"] | slice | int) -> Tensor:
        """Some columns, dense: `*batch rows k` (an integer drops the axis)."""
        if isinstance(ids, int):
            return (self.left @ self.right[..., ids, None]).squeeze(-1)
        return self.left @ self.right[..., ids]

    def diagonal(self) -> Float[Tensor, "*batch n"]:
        """The diagonal of square matrices without building them."""
        self._square("diagonal")
        return (self.left * self.right.mT).sum(-1)

    def trace(self) -> Float[Tensor, "*batch"]:
        self._square("trace")
        return torch.einsum("...nr,...rn->...", self.left, self.right)

    def norm(self) -> Float[Tensor, "*batch"]:
        """The Frobenius norm.

        It is taken of the product of the factors' triangular parts: the Gram form would square the condition number.
        """
        return self._core()[2].norm(dim=(-2, -1))

    def singular_values(self) -> Float[Tensor, "*batch rank"]:
        """The singular values that are not zero by construction, in falling order."""
        return decompositions.singular_values(self._core()[2])

    def svd(self) -> Svd:
        """The singular value decomposition, `rank` values."""
        q_left, q_right, core = self._core()
        u, s, vh = decompositions.svd(core)
        return Svd(q_left @ u, s, q_right @ vh.mT)

    def eigenvalues(self) -> Complex[Tensor, "*batch rank"]:
        """The eigenvalues of square matrices that are not zero by construction: of right @ left, largest first."""
        self._square("eigenvalues")
        small = self.right @ self.left
        # half-precision eigenvalues do not exist in LAPACK
        return decompositions.eigenvalues(small)

    def centred(self, *, rows: bool = False, columns: bool = False) -> "Factored":
        """Subtract the mean over columns from each row (`rows`), the mean over rows from each column, or both."""
        left = self.left - self.left.mean(-2, keepdim=True) if columns else self.left
        right = self.right - self.right.mean(-1, keepdim=True) if rows else self.right
        return Factored(left, right)

    def top(self, k: int = 10, *, largest: bool = True, by_size: bool = False, block: int = BLOCK) -> Entries:
        """The k largest entries of each matrix (smallest, or largest in absolute value).

        Products that fit into a block are made whole, as many at once as fit; larger ones a block at a time, without
        what cannot be among the k best: see `weights.largest`. Beside copies of one matrix's factors it takes room for
        two blocks and the k best.

        Args:
            k: How many; all of them if there are fewer.
            largest: Look for the largest, not the smallest.
            by_size: Look for the largest in absolute value.
            block: Entries of the product held at a time.

        Raises:
            AnalysisUnavailable: The factors hold numbers that are not finite.
        """
        m = self.shape[-1]
        sign = 1.0 if largest or by_size else -1.0
        # neither half precision nor gradients take part in a search
        wide = torch.float64 if self.left.dtype == torch.float64 else torch.float32
        left, right = (
            u.detach().to(wide).expand(*self.batch, *u.shape[-2:]).reshape(-1, *u.shape[-2:])
            for u in (self.left * sign, self.right)
        )
        k = min(k, self.shape[-2] * m)
        found = largest_of_each(left, right, k, by_size=by_size, block=block)
        values, places = (part.view(*self.batch, k) for part in found)
        return Entries(sign * values.to(self.left.dtype), places // m, places % m)

    def to(self, dtype: NumberType) -> "Factored":
        kind = number_type(dtype)
        return Factored(self.left.to(kind), self.right.to(kind))

    def __iter__(self) -> Iterator["Factored"]:
        for i in range(self.batch[0] if self.batch else 0):
            yield self[i]

    def __repr__(self) -> str:
        dtype = str(self.left.dtype).removeprefix("torch.")
        return f"Factored({'x'.join(map(str, self.shape))}, rank {self.rank}, {dtype})"

    def _core(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return orthonormal bases of both factors and the small matrix between them."""
        q_left, r_left = decompositions.qr(self.left)
        q_right, r_right = decompositions.qr(self.right.mT)
        return q_left, q_right, r_left @ r_right.mT

    def _square(self, what: str) -> None:
        if self.shape[-1] != self.shape[-2]:
            raise ShapeMismatch(
                f"{what} is defined for square matrices; this one is {self.shape[-2]} x {self.shape[-1]}."
            )


def _broadcast(first: torch.Size, second: torch.Size) -> torch.Size:
    """Return the common shape; what torch has for this loads its symbolic shapes, and sympy with them."""
    n = max(len(first), len(second))
    a, b = ((1,) * (n - len(shape)) + tuple(shape) for shape in (first, second))
    if any(x != y and 1 not in (x, y) for x, y in zip(a, b)):
        raise ShapeMismatch(
            f"Factored: batch axes {tuple(first)} of one matrix and {tuple(second)} of the other do not broadcast."
        )
    return torch.Size(y if x == 1 else x for x, y in zip(a, b))


def _size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))
