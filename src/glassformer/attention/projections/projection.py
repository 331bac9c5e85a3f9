"""The contract of projections: from what a layer reads of the stream to queries, keys and values at their positions.

    (q, k, v), kept = projection(x_q, x_k, x_v, positions, context, kept)

A projection owns whatever precedes rotation, and hands queries and keys to the positions last. What it needs of earlier
positions, or of another stack's output, is its part of the layer's state: `kept`.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.positions import Positions
from glassformer.config import Config

Projected = tuple[
    Float[Tensor, "batch *stream head pos d_head"],
    Float[Tensor, "batch *stream kv_head key d_head"],
    Float[Tensor, "batch *value_stream kv_head key d_value"],
]

Which = Literal["query", "key", "value"]
# from which of the three, and what all heads make of the one stream, to the same with some heads' own in it
Own = Callable[[Which, Tensor], Tensor]


class ProjectionConfig(Config, family=True):
    """How queries, keys and values are made."""

    # whether keys and values may be made from another stack's output
    crosses: ClassVar[bool] = True

    def build(self, dims: Dims, traits: Traits, cross: bool) -> "Projection":
        """Return the module.

        Args:
            dims: Sizes.
            traits: Of the mechanism: how many queries, keys and values it wants of each head.
            cross: Keys and values are made from another stack's output.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it builds")


class Projection(nn.Module):
    """What a layer knows of its projection; what is answered here holds for one that keeps nothing."""

    # whether a score is bilinear in what the query and the key read at their own positions
    bilinear: bool = True
    # whether a value is made of what is read at its own position alone
    values_by_position: bool = True
    # whether keys and values of all positions are made of what it keeps, so that the mechanism keeps none
    stores_keys: bool = False
    # whether only some of what makes a query or key turns with its position, which it sees to when they are written
    turns_when_written: bool = False

    def forward(
        self,
        x_q: Tensor,
        x_k: Tensor,
        x_v: Tensor,
        positions: Positions,
        context: Context,
        kept: Any = None,
        own: Own | None = None,
    ) -> tuple[Projected, Any]:
        """Return queries, keys and values as the layer passes them on, and what is kept if anything was.

        Args:
            x_q: What queries read.
            x_k: What keys read.
            x_v: What values read.
            positions: Turn queries and keys.
            context: Facts of the pass; for cross-attention those that pair it with the other stack.
            kept: What earlier positions left behind, or what was made of the other stack's output; `begin` makes the
                empty one. None if there is no state.
            own: Puts in what heads make that read a stream of their own; see `of_heads`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it projects")

    def of_heads(
        self, which: Which, x: Float[Tensor, "copy batch pos d_model"], heads: Int[Tensor, " copy"]
    ) -> Float[Tensor, "batch *stream copy pos d_head"]:
        """Return what some heads make of a stream each: the usual projection of each, of which its head is left."""
        folded = x.flatten(0, 1)
        every = self.by_position(folded, folded, folded)[("query", "key", "value").index(which)]
        every = every.unflatten(0, x.shape[:2]).movedim(-3, 1)
        return every[torch.arange(len(heads), device=heads.device), heads].movedim(0, -3)

    def by_position(self, x_q: Tensor, x_k: Tensor, x_v: Tensor) -> Projected:
        """Return queries, keys and values by head as far as each is made of its own position."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it projects")

    def begin(self, batch: int, like: Tensor) -> Any:
        """Return what is kept before the first position; None if nothing ever is."""
        return None

    def keeps(self, length: int) -> bool:
        """Whether what is kept after `length` positions still says what was after fewer; see `cut`."""
        return True

    def cut(self, kept: Any, length: int) -> Any:
        """Return what was kept after the first `length` positions, if the projection `keeps` that."""
        return kept

    def state_numbers(self, length: int, source_length: int) -> int:
        """Return how many numbers are kept of one sequence after `length` positions."""
        return 0

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        """Yield (part, number) of the parameters of its matrices; what norms and convolutions have is theirs."""
        raise NotImplementedError(f"{type(self).__name__} does not say what parameters it has")

    def flops(self, n_queries: int, n_keys: int) -> dict[str, int]:
        """Return the operations by part of projecting one sequence, 2 per multiply-add."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it costs")
