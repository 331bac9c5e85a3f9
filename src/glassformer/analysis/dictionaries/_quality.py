"""How sparse, how faithful and how alive a dictionary is on rows of its site.

    FVU = E |x - x'|^2 / E |x - E x|^2                  explained variance = 1 - FVU
    L0 = E (features that fire in a row)                density_j = share of rows in which feature j fires
    bias = E |x'|^2 / E x . x'                          1 where nothing is gained by making x' longer or shorter

All are of moments that are summed row by row in float64, so that no more is held than one batch.

Source: Bricken et al. 2023; the bias: Rajamanoharan et al. 2024, "Improving Dictionary Learning with Gated Sparse
Autoencoders", section 4. Differs from sae-lens 6, whose explained variance squares means of coordinates first.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownMemberType=false

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.dictionaries._attached import provenance_of
from glassformer.analysis.dictionaries._autoencoder import SparseAutoencoder
from glassformer.analysis.dictionaries._rows import row_source
from glassformer.arguments import Count, checked
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Labelled, Result

# shares of rows between which features are counted
_DECADES = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclasses.dataclass(frozen=True, eq=False)
class DictionaryQuality(Result):
    """What a dictionary makes of rows of its site.

    Args:
        density: Share of rows in which each feature fires, `feature`.
        l0: Features that fire in a row, mean.
        dead: Share of features that fire in no row.
        explained_variance: 1 less the squared error over the variance: 1 is perfect, 0 no better than the mean.
        cosine: Of rows and reconstructions, mean over rows that are not zero.
        norm_ratio: Norm of a reconstruction over that of its row, mean over such rows.
        bias: Mean square of reconstructions over their mean product with rows; below 1 they are too short.
        rows: How many were measured.
    """

    HEADLINE = ("by_density",)

    density: Labelled
    l0: float
    dead: float
    explained_variance: float
    cosine: float
    norm_ratio: float
    bias: float
    rows: int

    @property
    def by_density(self) -> Labelled:
        """How many features fire in which share of rows, `density`: never, and by powers of ten."""
        bounds = torch.tensor([*_DECADES, torch.inf], dtype=torch.float64)
        there = self.density.values.double()
        # a bound belongs to what is above it
        places = torch.bucketize(there[there > 0], bounds, right=True)
        counts = torch.bincount(places, minlength=len(bounds))
        names = [f"< {_DECADES[0]:g}", *(f"{low:g} …" for low in _DECADES)]
        never = (there == 0).sum()[None]
        return Labelled(torch.cat((never, counts)), ("density",), {"density": ["0", *names]})

    @property
    def fvu(self) -> float:
        """Share of the variance that is left over."""
        return 1 - self.explained_variance


@checked
def dictionary_quality(dictionary: SparseAutoencoder, rows: Any, *, batch_size: Count = 4096) -> DictionaryQuality:
    """Measure a dictionary on rows, which should be none that it was trained on.

    Args:
        dictionary: Of a site.
        rows: A site of a store of activations, or a tensor `row width`.
        batch_size: Rows at once.

    Raises:
        ShapeMismatch: The rows are of another width than the dictionary's.
        AnalysisUnavailable: There are no rows.
    """
    source = row_source(rows, "dictionary_quality")
    if source.width != dictionary.config.d_in:
        raise ShapeMismatch(
            f"dictionary_quality: rows have {source.width} numbers, and the dictionary is of {dictionary.config.d_in}."
        )
    sums = _Sums(dictionary)
    with torch.no_grad():
        for batch in source.batches(batch_size):
            sums.add(batch.values)
    return sums.result().bound(provenance_of(dictionary.facts, "dictionary_quality"))


class _Sums:
    """Sums over rows, and their variance by merging each batch's moments."""

    def __init__(self, dictionary: SparseAutoencoder) -> None:
        self.dictionary, self.rows, self.long = dictionary, 0, 0
        wide = dictionary.W_dec.detach().new_zeros((), dtype=torch.float64)
        self.mean, self.variance = wide.new_zeros(dictionary.config.d_in), wide.clone()
        self.fired = wide.new_zeros(dictionary.config.n_features)
        self.sums = {name: wide.clone() for name in ("error", "cosine", "ratio", "square", "product")}

    def add(self, rows: Float[Tensor, "row d_in"]) -> None:
        rows = rows.to(self.mean.device, self.dictionary.W_dec.dtype)
        features = self.dictionary.encode(rows)
        made, rows = self.dictionary.decode(features).double(), rows.double()
        self._merge(rows)
        self.fired += (features > 0).double().sum(0)
        product, norms = (rows * made).sum(-1), (rows.norm(dim=-1), made.norm(dim=-1))
        self.sums["error"] += (rows - made).square().sum()
        # rows of zeros have no direction, and none to be compared with
        there = norms[0] > 0
        self.long += int(there.sum())
        self.sums["cosine"] += (product / (norms[0] * norms[1])).nan_to_num(0.0)[there].sum()
        self.sums["ratio"] += (norms[1] / norms[0])[there].sum()
        self.sums["square"] += made.square().sum()
        self.sums["product"] += product.sum()

    def _merge(self, rows: Float[Tensor, "row d_in"]) -> None:
        """Take a batch's mean and squares about it into those of all rows."""
        new, count = rows.mean(0), len(rows)
        total = self.rows + count
        apart = (new - self.mean).square().sum() * self.rows * count / total
        self.variance += (rows - new).square().sum() + apart
        self.mean += (new - self.mean) * (count / total)
        self.rows = total

    def result(self) -> DictionaryQuality:
        mean = {name: float(value) / self.rows for name, value in self.sums.items()}
        density = (self.fired / self.rows).cpu()
        return DictionaryQuality(
            density=Labelled(density, ("feature",)),
            l0=float(density.sum()),
            dead=float((density == 0).double().mean()),
            explained_variance=float(1 - self.sums["error"] / self.variance),
            cosine=float(self.sums["cosine"]) / max(self.long, 1),
            norm_ratio=float(self.sums["ratio"]) / max(self.long, 1),
            bias=mean["square"] / mean["product"] if mean["product"] else float("nan"),
            rows=self.rows,
        )
