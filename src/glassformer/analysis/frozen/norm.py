"""A norm whose scale is held at what it was in a run: the only way a vector or a direction passes a norm.

vector      x -> (x - mean) * gain / scale          an addend of the stream, in front of the norm to behind it
direction   u -> (u * gain / scale) - mean          its transpose: from behind the norm to in front of it
"""

import dataclasses
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from glassformer.models.norms import Norm

Vectors = Float[Tensor, "*n d_model"]


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A norm and the scale it divided by, `batch pos` or what broadcasts with it; no norm is the identity."""

    norm: Norm | None
    scale: Tensor | None

    @classmethod
    def of(cls, norm: Norm | None, read: Callable[[str], Tensor]) -> "FrozenNorm":
        """Take a norm with the scale that was read at its site."""
        return cls(norm, None if norm is None or norm.identity else read(norm.at_scale))

    def __call__(self, x: Vectors, *, bias: bool = False, live: bool = False) -> Vectors:
        """Apply it to an addend of the stream; with `bias` (and, if wanted, a live scale) to a whole stream."""
        norm = self.norm
        if norm is None or norm.identity:
            return x
        scale = norm.scale(x) if live else self._scale
        return norm.affine(x, scale) if bias else norm.linear(x, scale)

    def unscaled(self, x: Vectors) -> Vectors:
        """Return what it makes of an addend up to its scale."""
        return x if self.norm is None else self.norm.linear(x, x.new_ones(x.shape[:-1]))

    def adjoint(self, u: Vectors) -> Vectors:
        """Return a direction behind it as a direction before it."""
        norm = self.norm
        if norm is None or norm.identity:
            return u
        return norm.transposed(u / self._scale[..., None])

    @property
    def bias(self) -> Float[Tensor, " d_model"] | None:
        return None if self.norm is None else self.norm.shift

    @property
    def _scale(self) -> Tensor:
        assert self.scale is not None, "a norm with a gain has a scale"
        return self.scale
