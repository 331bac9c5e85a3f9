"""Decompositions of matrices, in a precision they exist for, of finite numbers only.

LAPACK, which computes them on a CPU, knows no half precision, and ends the process on numbers that are not finite.
"""
# torch does not type its linear algebra
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import AnalysisUnavailable
from glassformer.numerics.precision import wide


def is_finite(values: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity: one look at each number, at the speed of the memory."""
    # what has no memory holds nothing
    if values.is_meta or values.numel() == 0 or not (values.is_floating_point() or values.is_complex()):
        return True
    values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    # NaN is both the smallest and the largest; a table of what is finite would take room and longer
    low, high = torch.aminmax(values.detach())
    return bool(low.isfinite() & high.isfinite())


def svd(matrix: Tensor) -> Any:
    """Return U, S, Vh of the thin singular value decomposition; raises `AnalysisUnavailable` as all of these do."""
    return torch.linalg.svd(_ready(matrix, "singular values"), full_matrices=False)


def singular_values(matrix: Tensor) -> Tensor:
    return torch.linalg.svdvals(_ready(matrix, "singular values"))


def eigenvalues(matrix: Tensor) -> Tensor:
    """Return eigenvalues, the largest first, and of a conjugate pair the one above the real axis: libraries have orders
    of their own."""
    found = torch.linalg.eigvals(_ready(matrix, "eigenvalues"))
    found = found.gather(-1, found.abs().argsort(dim=-1, descending=True, stable=True))
    # the two of a pair are of one size but for rounding, and lie beside each other
    here, behind = found[..., :-1], found[..., 1:]
    pair = (here.imag < 0) & ((here - behind.conj()).abs() <= 1e-4 * here.abs())
    none = pair.new_zeros((*pair.shape[:-1], 1))
    place = torch.arange(found.shape[-1], device=found.device)
    return found.gather(-1, place + torch.cat([pair, none], -1).long() - torch.cat([none, pair], -1).long())


def principal_axes(
    rows: Float[Tensor, "row d_model"], n: int
) -> tuple[Float[Tensor, " d_model"], Float[Tensor, "axis d_model"], Float[Tensor, " axis"]]:
    """Return the mean of rows, at most n axes of largest variance about it, and the share of the variance along each.

    The sign of an axis is arbitrary: the last row lies on its positive side. Of rows all alike shares are zero.
    """
    rows = wide(rows)
    centre = rows.mean(0)
    _, sizes, axes = svd(rows - centre)
    axes = axes[:n] * torch.where(axes[:n] @ (rows[-1] - centre) < 0, -1.0, 1.0)[:, None]
    energy = sizes.square()
    return centre, axes, energy[:n] / energy.sum().clamp_min(torch.finfo(energy.dtype).tiny)


def eigh(matrix: Tensor) -> Any:
    """Return eigenvalues, rising, and eigenvectors of a symmetric matrix."""
    return torch.linalg.eigh(_ready(matrix, "eigenvectors"))


def qr(matrix: Tensor) -> Any:
    """Return Q and R."""
    return torch.linalg.qr(_ready(matrix, "an orthonormal basis"))


def triangular(matrix: Tensor) -> Tensor:
    """Return R of the QR decomposition alone: a smaller matrix of the same lengths and angles of columns."""
    return torch.linalg.qr(_ready(matrix, "an orthonormal basis"), mode="r")[1]


def pseudo_inverse(matrix: Tensor, *, hermitian: bool = False) -> Tensor:
    return torch.linalg.pinv(_ready(matrix, "a pseudo-inverse"), hermitian=hermitian)


def rank(matrix: Tensor) -> int:
    return int(torch.linalg.matrix_rank(_ready(matrix, "a rank")))


def dimensions(singular: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch measure"]:
    """Return rank, rank of 99 % of the energy, and participation ratio of spectra, zeros for a zero matrix.

    Args:
        singular: Singular values, falling.
    """
    energy = singular.square()
    total = energy.sum(-1, keepdim=True)
    rank = (singular > singular[..., :1] * singular.shape[-1] * torch.finfo(singular.dtype).eps).sum(-1)
    most = (energy.cumsum(-1) < 0.99 * total).sum(-1) + 1
    ratio = total[..., 0].square() / energy.square().sum(-1)
    return torch.stack((rank.to(singular), most.to(singular), ratio), -1).where(total > 0, 0)


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Return X of matrix @ X = right."""
    return torch.linalg.solve(_ready(matrix, "a solution"), _ready(right, "a solution"))


def unit_lower_solution(matrix: Tensor, right: Tensor, *, left: bool = True) -> Tensor:
    """Return X of matrix @ X = right, or of X @ matrix = right, with ones on the matrix's diagonal and zeros above it.

    By substitution, which is no decomposition: whatever numbers it is given, it ends in numbers.

    Args:
        matrix: Of which what lies below the diagonal is read, in float32 at least.
        right: Right side, of the same type.
        left: Whether the matrix stands on the left.
    """
    return torch.linalg.solve_triangular(matrix, right, upper=False, left=left, unitriangular=True)


def _ready(matrix: Tensor, what: str) -> Tensor:
    if not is_finite(matrix):
        n, size = int((~matrix.isfinite()).sum()), "x".join(map(str, matrix.shape))
        raise AnalysisUnavailable(
            f"{what}: asked of a matrix ({size}) in which {n} of {matrix.numel()} numbers are NaN or infinite.\n"
            "    Weights or activations of this model are not finite. glassformer.load says which weights are, and so "
            "does weights.of(model, fold=True); gf.run(model, text, read='*') shows where activations begin to be."
        )
    return wide(matrix)
