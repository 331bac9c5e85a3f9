"""A depthwise convolution along a text or over a grid: each channel is mixed with itself at places nearby.

    y_t  = sum_{i < width} w_i x_{t-i} + b                       along a text: a position and those before it
    y_rc = sum_{-h <= i, j <= h} w_ij x_{r+i, c+j} + b           over a grid, h = width // 2: a place and those around

A grid is read row by row. Tokens in front of it, as a class token is, take no part and are given nothing; or, where a
layer is told how many there are, each is a grid of one place: y = w_00 x + b. What the mask hides counts as zero, so
does what lies beyond a text's or a grid's edge, and padding is given nothing.
State, along a text: the last width - 1 inputs. A grid is read whole, and has none.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.attention.context import Context, Documents, Padding
from glassformer.attention.packed import by_document, documents_of
from glassformer.config import require
from glassformer.errors import ConfigError


class Depthwise(nn.Module):
    """Taps of each channel, drawn uniformly within 1 / sqrt(their number), and a bias of zero.

    Args:
        channels: How many.
        width: Positions along a text that one is made of, itself among them; an odd number of rows and columns over a
            grid.
        grid: Rows and columns of the input; None for a text.
        outside: How many tokens stand in front of the grid, each made of itself alone; None if they are given nothing.
    """

    def __init__(
        self, channels: int, width: int, grid: tuple[int, int] | None = None, outside: int | None = None
    ) -> None:
        super().__init__()
        require(
            grid is None or width % 2 == 1,
            f"a convolution over a grid has a place in its middle; width={width} is even, use {width + 1}.",
        )
        self.width, self.grid, self.outside = width, grid, outside
        shape = (width,) if grid is None else (width, width)
        self.taps = nn.Parameter(torch.empty(channels, *shape).uniform_(-1, 1) * math.prod(shape) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(channels))

    def along(
        self,
        x: Float[Tensor, "batch *lead pos channel"],
        context: Context,
        before: Float[Tensor, "batch *lead earlier channel"] | None = None,
    ) -> tuple[Float[Tensor, "batch *lead pos channel"], Float[Tensor, "batch *lead earlier channel"]]:
        """Return what a text's positions are made of, and the last inputs.

        Args:
            x: Inputs at the new positions.
            context: Facts of the pass.
            before: Inputs at those just before them, zeros where there are none; None for none.
        """
        n, earlier = x.shape[-2], self.width - 1
        if before is None:
            before = x.new_zeros(*x.shape[:-2], earlier, x.shape[-1])
        known, taps = torch.cat((before.to(x.dtype), x), -2), self.taps.to(x.dtype).unbind(-1)
        mixed = _shown(torch.addcmul(self.bias.to(x.dtype), x, taps[0]), context.reaches(0))
        for i in range(1, self.width):
            mixed = mixed + _shown(known[..., earlier - i : earlier - i + n, :] * taps[i], context.reaches(i))
        return mixed, known[..., n:, :]

    def over(
        self, x: Float[Tensor, "batch *lead pos channel"], context: Context
    ) -> Float[Tensor, "batch *lead pos channel"]:
        """Return what the places of a grid are made of; of several that are packed, each by itself."""
        n = x.shape[-2]
        context.mask.only(Padding, Documents, mechanism="a convolution over a grid")
        runs = documents_of(context, n, n, len(x))
        return self._image(context, x) if runs is None else by_document(self._image, context, runs, x)

    def _image(self, context: Context, x: Tensor) -> Tensor:
        assert self.grid is not None, "asked for where there is a grid"
        rows, columns = self.grid
        ahead, real = x.shape[-2] - rows * columns, context.reaches(0)
        known = 0 <= ahead < rows * columns if self.outside is None else ahead == self.outside
        told = "with a class token in front or without" if self.outside is None else f"{self.outside} in front of it"
        require(
            known,
            f"{x.shape[-2]} tokens are no grid of {rows} x {columns} = {rows * columns}, {told}; give the layers the "
            "grid that the input has.",
        )
        # rows that lie together are a layout that convolutions read as it is
        places = _shown(x, real)[..., ahead:, :].contiguous()
        image = places.flatten(0, -3).unflatten(-2, (rows, columns)).permute(0, 3, 1, 2)
        taps, bias = self.taps.to(x.dtype)[:, None], self.bias.to(x.dtype)
        mixed = F.conv2d(image, taps, bias, padding=self.width // 2, groups=len(bias))
        mixed = mixed.permute(0, 2, 3, 1).reshape(*x.shape[:-2], rows * columns, -1)
        if self.outside is None:
            return _shown(F.pad(mixed, (0, 0, ahead, 0)), real)
        middle = self.taps[:, self.width // 2, self.width // 2].to(x.dtype)
        return _shown(torch.cat((torch.addcmul(bias, _shown(x, real)[..., :ahead, :], middle), mixed), -2), real)

    def flops(self) -> int:
        """Return the operations of the convolution over a grid; along a text it is element-wise."""
        return 0 if self.grid is None else 2 * math.prod(self.grid) * self.taps.numel()


def needs_whole_grid(where: str, grid: tuple[int, int]) -> ConfigError:
    """Return the error for a convolution over a grid that is asked to look back only, or to go on from a state."""
    return ConfigError(
        f"{where} mixes places of a grid of {grid[0]} x {grid[1]} with those around them: it cannot be causal, and has "
        "no state.\n    It works in an encoder (EncoderConfig); without a grid it looks back along a text."
    )


def _shown(x: Float[Tensor, "batch *lead pos channel"], seen: Bool[Tensor, "b pos"] | None) -> Tensor:
    """Return rows that are seen, and zeros in place of the others."""
    if seen is None:
        return x
    return x * seen.view(len(seen), *[1] * (x.ndim - 3), -1, 1)
