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
from glassformer.arguments import Count, checked
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.numerics.decompositions import svd
from glassformer.numerics.precision import wide
from glassformer.provenance.binding import Binding

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
        base, found = one.values.detach(), dict[int, tuple[Tensor, Tensor, Tensor]]()
        for i, adapter in enumerate(adapters.values()):
            if one.name not in adapter.changes:
                continue
            with torch.no_grad():
                change = adapter.changes[one.name].difference(base)
            norms[i, m], relative[i, m] = change.norm(), change.norm() / wide(base).norm()
            u, s, vh = svd(change)
            kept = min(directions, int((s > _ROUNDING * s[0]).sum()))
            found[i] = change, u[:, :kept], vh[:kept]
        for i, (d1, u1, v1) in found.items():
            for j, (d2, u2, v2) in found.items():
                pairs[0, i, j, m] = (d1 * d2).sum() / (d1.norm() * d2.norm())
                pairs[1, i, j, m], pairs[2, i, j, m] = overlap(u1.mT, u2.mT), overlap(v1, v2)
    names, matrices = list(adapters), [one.name for one in known]
    single, double = {"adapter": names, "matrix": matrices}, {"adapter": names, "adapter_2": names, "matrix": matrices}
    cosine, written, read = (Labelled(each, ("adapter", "adapter_2", "matrix"), double) for each in pairs)
    made = AdapterComparison(
        relative=Labelled(relative, ("adapter", "matrix"), single), norm=Labelled(norms, ("adapter", "matrix"), single),
        cosine=cosine, written=written, read=read, directions=directions,
    )  # fmt: skip
    return made.bound(Binding("compare", model))


def overlap(one: Float[Tensor, "n d"], other: Float[Tensor, "m d"]) -> float:
    """Return the mean squared cosine of the principal angles between what orthonormal rows span."""
    least = min(len(one), len(other))
    return float((one @ other.mT).square().sum()) / least if least else float("nan")
