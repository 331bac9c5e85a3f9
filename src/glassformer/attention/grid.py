"""The grid: rows and columns that positions fill row by row, behind those that stand in none of them."""

from typing import NamedTuple

from jaxtyping import Bool, Int
from torch import Tensor


class GridPlaces(NamedTuple):
    """Where positions stand in a grid.

    Args:
        row: Index of the row; 0 outside.
        column: Index of the column; 0 outside.
        inside: Whether a position is in the grid at all.
    """

    row: Int[Tensor, "*n"]
    column: Int[Tensor, "*n"]
    inside: Bool[Tensor, "*n"]


class Grid(NamedTuple):
    """Rows and columns of an input with two dimensions.

    Args:
        rows: How many there are.
        columns: How many there are.
        outside: Positions before the first place of the grid: a class token.
    """

    rows: int
    columns: int
    outside: int = 0

    def places(self, positions: Int[Tensor, "*n"]) -> GridPlaces:
        """Return the row and the column of positions."""
        place = (positions - self.outside).clamp_min(0)
        return GridPlaces(place // self.columns, place % self.columns, positions >= self.outside)
