"""Parameters that belong to places in a text: a row for each position up to `max_len`.

A place is the position of a token within its document, padding not counted: packed together or alone, a document reads
the same rows.
"""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from glassformer.attention.context import Context
from glassformer.attention.mixer import Dims
from glassformer.errors import TextError


class Places(NamedTuple):
    """Where the queries and the keys of a pass stand, those in the state included."""

    query: Int[Tensor, "b query"]
    key: Int[Tensor, "b key"]


def places(context: Context, n_keys: int, dims: Dims) -> Places:
    """Return the places of the new positions and of the last keys.

    Args:
        context: Of the pass.
        n_keys: Keys that are there.
        dims: Of the layer, whose parameters reach to `max_len`.

    Raises:
        TextError: A document is longer than that.
    """
    if context.first is not None:
        # counted without a look at the tensor, which may lie on another device
        length = context.first + context.positions.shape[-1]
    else:
        length = int(context.key_positions.max()) + 1
    if length > dims.max_len:
        raise TextError(
            f"{length} tokens, but layer {dims.layer} has parameters for each of max_len={dims.max_len} positions "
            f"only; shorten the text to {dims.max_len} tokens."
        )
    return Places(context.positions, context.key_positions[:, -n_keys:])


def rows_at(
    table: Float[Tensor, "head place *width"], where: Int[Tensor, "b pos"]
) -> Float[Tensor, "b head pos *width"]:
    """Return each head's rows at some places."""
    return table.index_select(1, where.flatten()).unflatten(1, where.shape).transpose(0, 1)
