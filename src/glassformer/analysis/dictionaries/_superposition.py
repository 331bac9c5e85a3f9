"""How many directions share how many dimensions: superposition, of any list of feature directions.

    interference_i = sum over j other than i of (u_i . w_j)^2           u_i = w_i / |w_i|
    dimensionality_i = |w_i|^2 / sum over j of (u_i . w_j)^2

A feature with a dimension of its own has 1, both of an antipodal pair 1/2, three at angles of 120 degrees 2/3, the
corners of a pentagon 2/5. Where directions fill their space evenly (a tight frame), the sum is its dimension. Lengths
count: a direction that is hardly there takes up hardly any of what another one has.

Source: Elhage et al. 2022, "Toy Models of Superposition" (arXiv 2209.10652), sections on geometry.
"""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.dictionaries._attached import provenance_of
from glassformer.analysis.dictionaries._autoencoder import SparseAutoencoder
from glassformer.arguments import checked
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.labelled import Labelled, Result


@dataclasses.dataclass(frozen=True, eq=False)
class Superposition(Result):
    """How feature directions share their space.

    Args:
        norm: Length of each direction, `feature`.
        interference: Squared overlaps of the other directions with a feature's unit direction, summed, `feature`.
        dimensionality: Share of a dimension that each feature has to itself, `feature`; 0 of one that has no direction.
        dimensions: Of the space that they lie in.
    """

    HEADLINE = ("dimensionality",)

    norm: Labelled
    interference: Labelled
    dimensionality: Labelled
    dimensions: int

    @property
    def dimensions_per_feature(self) -> float:
        """Dimensions over the sum of squared lengths: 1 where unit directions are as many; infinite where all are 0."""
        total = float(self.norm.values.double().square().sum())
        return self.dimensions / total if total else float("inf")


@checked
def superposition(directions: SparseAutoencoder | Tensor) -> Superposition:
    """Measure how feature directions share their space.

    Args:
        directions: A matrix `feature width`, a direction in each row, such as what neurons write; or a dictionary, of
            which decoder rows are taken.

    Raises:
        ShapeMismatch: It is no matrix.
        AnalysisUnavailable: There are no directions, or one is not finite.
    """
    of_dictionary = isinstance(directions, SparseAutoencoder)
    rows = (directions.W_dec if of_dictionary else directions).detach()
    if rows.ndim != 2:
        raise ShapeMismatch(
            f"superposition: directions are {tuple(rows.shape)}, and a matrix `feature width` is asked."
        )
    if not rows.numel() or not bool(rows.isfinite().all()):
        raise AnalysisUnavailable("superposition: there are no directions, or one has an entry that is not finite.")
    norm, shared = _shared(rows.double())
    own = norm.square()
    found = {"norm": norm, "interference": shared - own, "dimensionality": (own / shared).nan_to_num(0.0)}
    result = Superposition(
        **{name: Labelled(value.cpu(), ("feature",)) for name, value in found.items()}, dimensions=rows.shape[1]
    )
    return result.bound(provenance_of(directions.facts if of_dictionary else {}, "superposition"))


def _shared(rows: Float[Tensor, "feature width"]) -> tuple[Float[Tensor, " feature"], Float[Tensor, " feature"]]:
    """Return lengths of directions, and squared overlaps of all of them with each unit direction, summed."""
    norm = rows.norm(dim=-1)
    unit = torch.where(norm[:, None] > 0, rows / norm[:, None], 0.0)
    # sum over j of (u . w_j)^2 is u (W' W) u', which no table of pairs is made for
    return norm, ((unit @ (rows.mT @ rows)) * unit).sum(-1)
