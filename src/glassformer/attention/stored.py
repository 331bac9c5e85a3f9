"""Values that a mechanism has stored: in training, constants."""

from jaxtyping import Bool, Float
from torch import Tensor


def weighed_stored(
    pattern: Float[Tensor, "*lead query key"],
    v: Float[Tensor, "*lead key d_value"],
    stored: Bool[Tensor, "*_ query key"],
) -> Float[Tensor, "*lead query d_value"]:
    """Return what a pattern makes of values, those that are stored to a query taken as constants."""
    return pattern.masked_fill(stored, 0.0) @ v + pattern.masked_fill(~stored, 0.0) @ v.detach()
