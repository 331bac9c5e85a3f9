"""How large the changes of adapters are, and how much they have in common.

    norm        |D|        relative |D| / |W|        D = W' - W, Frobenius
    cosine      <D1, D2> / (|D1| |D2|)
    written     |U1' U2|^2 / k        of orthonormal bases of the first k directions that D1 and D2 write (columns) and
    read        |V1' V2|^2 / k        read (rows): mean squared cosine of principal angles; k / d for random ones

All of one matrix at a time: adapters that change none in common have nothing to compare.
"""

import dataclasses
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.adaptation._adapter import Adapter, require_bare
from glassformer.adaptation._change import Change
from glassformer.arguments import Count, checked
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.numerics.decompositions import svd
from glassformer.numerics.precision import wide
from glassformer.provenance.binding import Binding
from glassformer.weights import Svd

# what is left of a direction that rounding made
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class AdapterComparison(Result):
    """Changes of adapters, matrix by matrix; NaN where one does not change a matrix.

    Args:
        relative: Size of a change over that of its matrix, `adapter matrix`.
        norm: Size of a change, `adapter matrix`.
        cosine: Of two changes taken for vectors, `adapter adapter_2 matrix`.
        written: Share that two changes have in common of what they write, `adapter adapter_2 matrix`, in [0, 1].
        read: The same of what they read.
        directions: How many directions of each change are compared, at most.
    """

    HEADLINE = ("relative", "cosine")
    SIGNED = ("cosine",)

    relative: Labelled
    norm: Labelled
    cosine: Labelled
    written: Labelled
    read: Labelled
    directions: int


@checked
def compare(model: ModelLike, adapters: Mapping[str, Adapter], *, directions: Count = 4) -> AdapterComparison:
    """Measure the changes of one adapter or several, and compare them pair by pair.

    Args:
        model: The model they were made for, with no adapter attached.
        adapters: Adapters by what they are called.
        directions: How many of the first singular directions of a change stand for it.

    Raises:
        ConfigError: An adapter is attached to the model.
        UnknownSite: The model lacks a matrix of one.
        ShapeMismatch: A matrix has another shape.
    """
    model = require_model(model, "compare")
    require_bare(model)
    for adapter in adapters.values():
        adapter.matrices(model)
    known = [one for one in model.matrices() if any(one.name in each.changes for each in adapters.values())]
    n = len(adapters)
    norms, relative = (torch.full((n, len(known)), torch.nan, dtype=torch.float64) for _ in range(2))
    pairs = torch.full((3, n, n, len(known)), torch.nan, dtype=torch.float64)
    for m, one in enumerate(known):
        base, found = one.values.detach(), dict[int, Svd]()
        for i, adapter in enumerate(adapters.values()):
            if one.name not in adapter.changes:
                continue
            found[i] = change = _decomposed(adapter.changes[one.name], base)
            norms[i, m], relative[i, m] = change.s.norm(), change.s.norm() / wide(base).norm()
        for i, a in found.items():
            for j, b in found.items():
                inner = ((a.u * a.s).mT @ (b.u * b.s) * (a.v.mT @ b.v)).sum()
                pairs[0, i, j, m] = inner / (a.s.norm() * b.s.norm())
                first, second = (min(directions, int((c.s > _ROUNDING * c.s[0]).sum())) for c in (a, b))
                pairs[1, i, j, m] = overlap(a.u[:, :first].mT, b.u[:, :second].mT)
                pairs[2, i, j, m] = overlap(a.v[:, :first].mT, b.v[:, :second].mT)
    names, matrices = list(adapters), [one.name for one in known]
    single, double = {"adapter": names, "matrix": matrices}, {"adapter": names, "adapter_2": names, "matrix": matrices}
    cosine, written, read = (Labelled(each, ("adapter", "adapter_2", "matrix"), double) for each in pairs)
    made = AdapterComparison(
        relative=Labelled(relative, ("adapter", "matrix"), single), norm=Labelled(norms, ("adapter", "matrix"), single),
        cosine=cosine, written=written, read=read, directions=directions,
    )  # fmt: skip
    return made.bound(Binding("compare", model))


@torch.no_grad()
def _decomposed(change: Change, base: Float[Tensor, "d_out d_in"]) -> Svd:
    """Return the singular value decomposition of a change, of thin factors where it has some."""
    known = change.factors()
    if known is not None:
        return known.svd()
    u, s, vh = svd(change.difference(base))
    return Svd(u, s, vh.mT)


def overlap(one: Float[Tensor, "n d"], other: Float[Tensor, "m d"]) -> float:
    """Return the mean squared cosine of the principal angles between what orthonormal rows span."""
    least = min(len(one), len(other))
    return float((one @ other.mT).square().sum()) / least if least else float("nan")
