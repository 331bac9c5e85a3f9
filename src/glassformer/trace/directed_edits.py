"""Edits along directions of a site's last axis: a subspace from another run, a vector added where something holds.

    Interchange("blocks.2.resid_post", other, directions, at=At(pos=-1))       # other: a run, a donor, a tensor
    AddWhere("blocks.2.resid_post", vector, along=direction, above=4.0)

What lies across the directions stays as it is.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.arguments import checked
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Labelled
from glassformer.numerics import decompositions
from glassformer.trace.edits import Earlier, Edit, require_value
from glassformer.trace.sites import Site


@checked
@dataclass(frozen=True, eq=False)
class Interchange(Edit):
    """Take the part along some directions from a value, and leave the rest: x + (value - x) P, P onto their span.

    Gradients flow to the directions and to the value.

    Args:
        value: As for `Set`: a run that read the same site, a tensor or a number.
        directions: One direction of the last axis, or one per row; they need not be orthogonal.

    Source: Geiger et al. 2023, "Finding Alignments Between Interpretable Causal Variables and Distributed Neural
    Representations" (2303.02536), definition of distributed interchange interventions.
    """

    value: Any
    directions: Tensor | Labelled

    def __post_init__(self) -> None:
        super().__post_init__()
        require_value(self.value, self)

    def change(self, part: Tensor, whole: Tensor, site: Site, earlier: Earlier) -> Tensor:
        directions = _of_last_axis(self.directions, part, self, site)
        # what is taken from a run may have one entry where the part has more
        moved = self.fit(self.value, part, site).expand_as(part).to(directions.dtype) - part.to(directions.dtype)
        # the pseudo-inverse, whose gradient is known where directions are orthonormal and its factors have none
        along = moved @ decompositions.pseudo_inverse(directions).to(directions.dtype) @ directions
        return part + along.to(part.dtype)


@checked
@dataclass(frozen=True, eq=False)
class AddWhere(Edit):
    """Add a value at the positions where what is there goes far enough along a direction, and nowhere else.

    Args:
        value: As for `Add`.
        along: A direction of the last axis; its length does not count.
        above: What the projection on it, in the site's units, has to exceed.
    """

    value: Any
    along: Tensor | Labelled
    above: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_value(self.value, self)

    def change(self, part: Tensor, whole: Tensor, site: Site, earlier: Earlier) -> Tensor:
        rows = _of_last_axis(self.along, part, self, site)
        if len(rows) != 1:
            raise ShapeMismatch(f'AddWhere at "{site.name}": along= is one direction, found {len(rows)}.')
        projection = part.to(rows.dtype) @ torch.nn.functional.normalize(rows[0], dim=0)
        return torch.where((projection > self.above)[..., None], part + self.fit(self.value, part, site), part)


def _of_last_axis(given: Tensor | Labelled, part: Tensor, edit: Edit, site: Site) -> Float[Tensor, "direction width"]:
    """Return directions as rows, in float32 at least; raises `ShapeMismatch` if they are not of a site's last axis."""
    values = given.values if isinstance(given, Labelled) else given
    rows = torch.atleast_2d(values).to(part.device, torch.promote_types(part.dtype, torch.float32))
    if rows.ndim != 2 or part.ndim == 0 or rows.shape[1] != part.shape[-1]:
        shape = "x".join(map(str, rows.shape))
        raise ShapeMismatch(
            f'{type(edit).__name__} at "{site.name}": directions are {shape}; the last axis has '
            f"{part.shape[-1] if part.ndim else 'no entries'}."
        )
    return rows
