"""Erasure of a property: the smallest affine change after which no linear probe of its rows beats chance.

    x -> x - W^+ P W (x - mean),     W = S_xx^(-1/2),    P projects on the columns of W S_xz

x are rows, z indicators of classes; S_xx^(-1/2) and W^+ are taken on the span of the rows. Afterwards x and z have no
covariance, so that the best linear probe, of any convex loss, is a constant.

Source: Belrose et al. 2023, "LEACE: Perfect linear concept erasure in closed form" (2306.03819), theorem 4.2.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.activations import stored
from glassformer.analysis.probes._moments import LabelledMoments
from glassformer.analysis.probes._rows import LabelledRows, Labels, read_with, require_rows, rows_of
from glassformer.models import ModuleLike
from glassformer.numerics import decompositions
from glassformer.trace import Apply, At

_ROUNDING = 1e-10  # of the largest: what is below is no variance, or no covariance


@dataclass(frozen=True, eq=False)
class Eraser:
    """What takes a property out of vectors, x - (x - mean) read written, in float64.

    Args:
        mean: Of the rows it is fitted to.
        read: Directions along which the property is read; as many as classes less one, at most.
        written: What is taken off for each.
    """

    mean: Float[Tensor, " width"]
    read: Float[Tensor, "width rank"]
    written: Float[Tensor, "rank width"]

    @classmethod
    def of(cls, moments: LabelledMoments) -> "Eraser":
        """Return the eraser of the property that sums of labelled rows lead to."""
        values, vectors = decompositions.eigh(moments.covariance)
        there = values > _ROUNDING * values.max()
        root = torch.where(there, values.clamp_min(0).sqrt(), 0.0)
        inverse = torch.where(there, 1 / root, 0.0)
        # in coordinates in which rows have unit variance
        whitened = (vectors * inverse).mT @ moments.cross_covariance
        columns, sizes, _ = decompositions.svd(whitened)
        basis = columns[:, sizes > _ROUNDING * max(1.0, float(sizes.max()))]
        return cls(moments.mean, (vectors * inverse) @ basis, basis.mT @ (vectors * root).mT)

    @property
    def rank(self) -> int:
        """How many directions are taken out."""
        return self.read.shape[1]

    def __call__(self, rows: Float[Tensor, "*row width"]) -> Float[Tensor, "*row width"]:
        """Return vectors without the property, in their own type."""
        wide = rows.double()
        read, written, mean = (part.to(rows.device) for part in (self.read, self.written, self.mean))
        return (wide - (wide - mean) @ read @ written).to(rows.dtype)

    def edit(self, site: str, at: At | None = None) -> Apply:
        """Return the edit that erases at a site whose last axis this is of; `at` says where, everywhere by default."""
        return Apply(site, self, at=at or At())


def fit_eraser(model: ModuleLike, texts: Any, labels: Labels, site: str) -> Eraser:
    """Fit the eraser of a property at a site.

    Args:
        model: As for `probe`, and so are texts and labels.
        texts: What the model reads, or a store of its activations.
        labels: Class of each position, as for `probe`.
        site: Name of one site.

    Raises:
        ShapeMismatch: Labels do not fit the rows.
        AnalysisUnavailable: There are fewer than two classes.
        UnknownSite: The model, or the store, has no such site.
    """
    require_rows(model, "fit_eraser")
    texts, labels = read_with(model, texts, labels)
    with stored(model, texts, site) as (store, names):
        found = store.site(names[0])
        return Eraser.of(LabelledRows.of(found, labels, 1, 0).whole(rows_of(found)))
