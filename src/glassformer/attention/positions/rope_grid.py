"""Rotary positions in two axes: half of the pairs turn by an angle that grows with the row, half with the column.

angle of pair t at (row, column) = row * omega_t,     omega_t = base^(-4t/d)     for the first d/4 pairs
                                   column * omega_t                              for the others
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Within
from glassformer.attention.context import Context
from glassformer.attention.grid import Grid
from glassformer.attention.positions.positions import Positions, PositionsConfig
from glassformer.attention.positions.rope_scaling import plain_frequencies
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable, ConfigError


@dataclass(frozen=True)
class RopeGrid(PositionsConfig, kind="rope_grid"):
    """Rotary positions of an input with rows and columns: half of each query and key turns by rows, half by columns.

    Scores then depend on positions only through their differences in both axes. Pairs are neighbours, 2t and 2t + 1.
    What stands outside the grid, a class token, is not turned, as nothing is at the first row and column. The layer
    says which grid it is (`Attention.grid`), or the model that reads images.

    Args:
        base: Longest wavelength is about 2 pi base, in rows or columns. Grids are short: it is less than a text's.

    Source: Heo et al. 2024, "Rotary Position Embedding for Vision Transformer", section 3.2 (axial frequencies).
    """

    base: Annotated[float, Within(1, above=True)] = 100.0

    of_grid: ClassVar[bool] = True

    def build(self, dims: Any) -> "RopeGridPositions":
        require(
            dims.grid is not None,
            'attention: positions "rope_grid" go by rows and columns; give Attention(grid=…), or a model that reads '
            "images, which tells its layers.",
        )
        rows, columns = dims.grid
        return RopeGridPositions(self, Grid(rows, columns, dims.outside), dims.d_turned)

    def grid_rows(
        self, grid: Grid, positions: Int[Tensor, "b pos"], width: int, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "b pos width"], Float[Tensor, "b pos width"]]:
        """Return the cosines of both members of each pair, and their sines, which carry the sign."""
        row, column, _ = grid.places(positions)
        omega = plain_frequencies(self.base, width // 2).to(positions.device)
        angle = torch.cat([place[..., None].to(torch.float64) * omega for place in (row, column)], -1)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        return cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)


class RopeGridPositions(Positions):
    """Turns the last `d_turned` numbers of queries and keys: half of them by the row, half by the column."""

    rotates = True

    def __init__(self, config: RopeGrid, grid: Grid, d_turned: int) -> None:
        super().__init__(config)
        require(
            d_turned % 4 == 0,
            f"rope_grid: d_head={d_turned} does not divide into pairs for rows and pairs for columns; give a multiple "
            "of 4.",
        )
        self.grid, self.d_turned = grid, d_turned
        self.key = f"{self.key} {grid}"

    def rotate(self, q: Tensor, k: Tensor | None, context: Context) -> tuple[Tensor, Tensor | None]:
        turned = None if k is None else self._turn(k, self._of_pass(k, context, context.crossed))
        return self._turn(q, self._of_pass(q, context, False)), turned

    def turned(self, q: Float[Tensor, "*n d_head"], offset: int | Int[Tensor, " offset"]) -> Float[Tensor, "*n d_head"]:
        raise AnalysisUnavailable(
            "rotation by an offset: these positions turn queries and keys by rows and by columns, so a number of "
            "positions between two of them says not by how much.\n"
            "    Read scores of an image: gf.run(model, image, read=['blocks.*.attn.scores'])."
        )

    def earlier(
        self, q: Float[Tensor, "batch *n pos d_head"], by: Int[Tensor, "b pos"]
    ) -> Float[Tensor, "batch *n pos d_head"]:
        raise ConfigError(
            'attention: positions "rope_grid" go by rows and columns, and this mechanism asks for a number of '
            "positions earlier; use others."
        )

    def placed(
        self, rows: Float[Tensor, "*n pos d_head"], positions: Int[Tensor, " pos"]
    ) -> Float[Tensor, "*n pos d_head"]:
        cos, sin = self.config.grid_rows(self.grid, positions[None].to(rows.device), self.d_turned, rows.dtype)
        return self._turn(rows, (cos[0], sin[0]))

    def _of_pass(self, like: Tensor, context: Context, keys: bool) -> tuple[Tensor, ...]:
        """Return cosines and sines of the new positions, `b 1 pos width`, worked out once for all layers of a pass."""
        key = (self.key, self.d_turned, like.dtype, keys, like.ndim)
        if key not in context.memo:
            found = self.config.grid_rows(self.grid, context.new_positions(keys), self.d_turned, like.dtype)
            # b pos width -> b [stream] head pos width
            context.memo[key] = tuple(row.unflatten(0, (-1, *[1] * (like.ndim - 3))) for row in found)
        return context.memo[key]

    def _turn(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        # (a, b) -> (a cos - b sin, b cos + a sin)
        still, part = x.split([x.shape[-1] - self.d_turned, self.d_turned], -1)
        partner = part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return torch.cat((still, torch.addcmul(part * rows[0], partner, rows[1])), -1)
