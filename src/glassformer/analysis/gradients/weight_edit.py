"""A change of one linear map by a few outer products, applied while a `with` lasts and taken back bit for bit.

    W -> W + left' right            left `n d_in`, right `n d_out`

The model is changed where it is: of the one matrix the numbers are kept meanwhile, and put back; all else stays. As an
edit of a site it changes nothing at all: what the map gives is moved by (x left') right in every pass that carries it.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.gradients.linear_maps import MapOfModel, maps_of
from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.models import ModelLike, require_model
from glassformer.models.mlp import MlpLayer
from glassformer.trace import Apply


@dataclasses.dataclass(frozen=True, eq=False)
class WeightEdit:
    """A change of low rank of one linear map of a model.

    Args:
        label: The map, `L3 mlp out`.
        left: What it is to answer to, `n d_in`.
        right: What is then added to what it gives, `n d_out`.
    """

    label: str
    left: Float[Tensor, "n d_in"]
    right: Float[Tensor, "n d_out"]

    @property
    def norm(self) -> float:
        """Size of the change (Frobenius)."""
        # the sum over pairs of (left_i . left_j) (right_i . right_j)
        grams = (self.left @ self.left.mT) * (self.right @ self.right.mT)
        return float(grams.sum().clamp_min(0).sqrt())

    def scaled(self, norm: float) -> "WeightEdit":
        """The same change at another size."""
        return dataclasses.replace(self, right=self.right * (norm / self.norm))

    def matrix_norm(self, model: ModelLike) -> float:
        """Size of the matrix that it changes (Frobenius), to compare `norm` with.

        Raises:
            AnalysisUnavailable: The model has no such map.
        """
        return float(self._map(model).matrix.norm())

    @contextmanager
    def applied(self, model: ModelLike) -> Iterator[None]:
        """While it lasts, the model is the changed one; afterwards every bit of it is what it was.

        Raises:
            AnalysisUnavailable: The model has no such map.
        """
        one = self._map(model)
        weight = one.weight.detach().reshape(-1, one.weight.shape[-1])[one.rows.start : one.rows.stop]
        kept = weight.clone()
        try:
            with torch.no_grad():
                weight.add_((self.right.mT @ self.left).to(weight))
            yield
        finally:
            weight.copy_(kept)

    def edit(self, model: ModelLike) -> Apply:
        """The same as an edit of a site, for passes, sweeps and generation; the weights stay as they are.

        Raises:
            AnalysisUnavailable: The model has no such map, or the map is no output matrix of an MLP.
        """
        one = self._map(model)
        if not isinstance(one.layer.part, MlpLayer) or one.side != "write":
            raise AnalysisUnavailable(
                f'"{self.label}" stands between no two sites, so no edit of a site does what this does.\n'
                "    Output matrices of MLPs do. For this one: with edit.applied(model): …"
            )
        at = one.layer.part.at

        def moved(value: Tensor, hidden: Tensor) -> Tensor:
            # in the types of the pass, wherever it runs
            left, right = (part.to(value) for part in (self.left, self.right))
            return value + hidden @ left.mT @ right

        return Apply(at.out, moved, reads=(at.hidden,))

    def _map(self, model: ModelLike) -> MapOfModel:
        known = {one.label: one for one in maps_of(require_model(model, "a change of weights"))}
        if self.label not in known:
            raise AnalysisUnavailable(f'no linear map "{self.label}".{nearest(self.label, known)}')
        return known[self.label]
