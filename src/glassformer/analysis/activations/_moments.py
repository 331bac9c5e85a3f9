"""Running moments of rows in float64: each pass is merged into what came before, and no sum of raw squares is kept.

    d = mean_b - mean        mean <- mean + d n_b / (n_a + n_b)
                             squares <- squares + squares_b + d^2 n_a n_b / (n_a + n_b)

They are of the rows as they are stored, rounded to the store's type.

Source: Welford 1962; Chan, Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance".
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.errors import AnalysisUnavailable


class Moments:
    """Mean, squares and mean norm of the rows of one site.

    Args:
        width: Numbers in a row.
        second: Keep products of all pairs of numbers, not their squares alone.
    """

    def __init__(self, width: int, second: bool) -> None:
        wide = torch.float64
        self.count = 0
        self.norm = torch.zeros((), dtype=wide)
        self.mean = torch.zeros(width, dtype=wide)
        # of deviations from the mean, summed over rows
        self.squares = torch.zeros(width, width, dtype=wide) if second else torch.zeros(width, dtype=wide)

    @property
    def has_products(self) -> bool:
        """Whether products of all pairs of numbers are kept."""
        return self.squares.ndim == 2

    def add(self, rows: Float[Tensor, "row width"]) -> None:
        """Take rows in.

        Raises:
            AnalysisUnavailable: A number is not finite, or its square overflows.
        """
        if not len(rows):
            return
        wide = rows.double()
        mean, norm = wide.mean(0), wide.norm(dim=1).mean()
        wide -= mean
        squares = wide.T @ wide if self.has_products else torch.einsum("nw,nw->w", wide, wide)
        if not bool(norm.isfinite()):
            raise AnalysisUnavailable(
                f"NaN, or beyond what {str(rows.dtype).removeprefix('torch.')} holds, so nothing is stored.\n"
                "    In float16 a number of 65,520 and more overflows: give dtype='bfloat16' or 'float32'."
            )
        total = self.count + len(rows)
        change, share = mean - self.mean, len(rows) / total
        apart = torch.outer(change, change) if self.has_products else change.square()
        self.squares += squares + apart * (self.count * share)
        self.mean += change * share
        self.norm += (norm - self.norm) * share
        self.count = total

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return what has to be written down, under names that begin with the site's."""
        count = torch.tensor(self.count)
        return {f"{name} {kind}": value for kind, value in zip(_KINDS, (count, self.norm, self.mean, self.squares))}

    @classmethod
    def read(cls, name: str, tensors: Mapping[str, Tensor]) -> "Moments":
        """Return what `tensors` wrote; raises `KeyError` if it is not there."""
        count, norm, mean, squares = (tensors[f"{name} {kind}"] for kind in _KINDS)
        found = cls(len(mean), squares.ndim == 2)
        found.count, found.norm, found.mean, found.squares = int(count), norm, mean, squares
        return found


_KINDS = ("count", "norm", "mean", "squares")
