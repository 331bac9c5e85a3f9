"""What a block is made of: sub-layers, each with one signature, whatever they hold.

    out, state = sub_layer(x, context, source=…, state=…, tape=…)

`x` is what the sub-layer reads of the stream, `out` what it writes there. Attention, recurrences and convolutions look
at other positions and carry a state from one segment to the next; MLPs work position by position and carry nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.config import Config, require
from glassformer.errors import ConfigError
from glassformer.trace import Site, Tape, declare

# how ranks share a linear map: by what it gives, each reading all, or by what it reads, their results to be summed
Parallel = Literal["column", "row"]


class SubLayerConfig(Config, family=True):
    """What a block is made of: attention, cross-attention, MLP, …"""

    # its name in a block
    role: ClassVar[str] = ""
    # whether it looks at earlier positions only, whatever the mask says
    only_backwards: ClassVar[bool] = False

    @property
    def reads_whole(self) -> tuple[int, int] | None:
        """Rows and columns of a grid that it reads whole, so that it cannot look back only; None for none."""
        return None

    def build(self, d_model: int, max_len: int, layer: int, path: str) -> "SubLayerModule":
        """Return the module, with freshly made parameters.

        Args:
            d_model: Width of the stream.
            max_len: Longest context the model is meant for.
            layer: Index of the block.
            path: Where it lies: the beginning of its sites' names.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it builds")

    def on_grid(self, grid: tuple[int, int], outside: int) -> Self:
        """Return it as it stands in a model whose positions are places of a grid, row by row.

        What has a field `grid` is told; what goes by rows and columns alone has no field `outside`.

        Args:
            grid: Rows and columns.
            outside: Positions before the first of the grid.

        Raises:
            ConfigError: It was told another grid, or cannot have positions outside.
        """
        config: Any = self
        if not hasattr(self, "grid"):
            return self
        said = f'{self.role or self.kind}: grid={config.grid}, and the model reads a grid of {grid}; leave "grid" out.'
        require(config.grid in (None, grid), said)
        if hasattr(self, "outside"):
            return self.replace(grid=grid, outside=outside or None)
        require(
            not outside,
            f'"{self.kind}" goes by rows and columns, and {outside} positions stand in none; leave out the class token '
            '(class_token=False, classifies="mean").',
        )
        return self.replace(grid=grid)


class SubLayerModule(nn.Module):
    """A sub-layer as blocks know it; what it answers here holds for one that carries no state."""

    path: str
    # whether what it writes at a position depends on that position alone
    by_position: bool = False
    # sites of what each head reads before the norm, by quantity, where heads read by themselves
    at_inputs: Mapping[str, str] = {}

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Float[Tensor, "batch key d_model"] | None = None,
        state: Any = None,
        tape: Tape | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], Any]:
        """Return what is written to the stream, and the state after these positions if one was given.

        Args:
            x: What it reads of the stream.
            context: Masks and positions; `context.source` holds those of another stack's output.
            source: That output.
            state: What earlier positions left behind; `begin` makes the empty state.
            tape: Reads and edits.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it computes")

    def input_sites(self, d_model: int, layer: int) -> Iterator[Site]:
        """Yield the sites of what it reads, before the norm."""
        axes = {"in": "batch pos d_model"}
        yield from declare(self.path, axes, {"d_model": d_model}, layer=layer, lazy=("in",))

    def sites(self) -> Iterator[Site]:
        """Yield its sites in the order they are visited."""
        raise NotImplementedError(f"{type(self).__name__} does not say its sites")

    def absent(self) -> dict[str, str]:
        """Return why it has no site of a name, for names that others of its kind have."""
        return {}

    def begin(self, batch: int, like: Tensor) -> Any:
        """Return the empty state on the device and in the dtype of `like`; None if nothing is carried."""
        return None

    def keeps(self, length: int) -> bool:
        """Whether the state after `length` positions still holds what it was after fewer; see `cut`."""
        return True

    def cut(self, state: Any, length: int) -> Any:
        """Return the state as it was after its first `length` positions, if the sub-layer `keeps` that."""
        return state

    def outgrows(self, before: int, after: int) -> bool:
        """Whether a state of `before` positions is of no use to a text that grows to `after`: it has to be reread."""
        return False

    def flops(self, length: int, source_length: int, causal: bool) -> dict[str, int]:
        """Return the floating-point operations of its matrix products over one sequence, by part.

        Args:
            length: Positions.
            source_length: Positions of the other stack's output, if it reads one.
            causal: Whether positions see only earlier ones.
        """
        return {}

    def state_bytes(self, length: int, source_length: int, dtype: torch.dtype) -> int:
        """Return the bytes of one sequence's state after `length` positions; arguments as in `flops`."""
        return 0

    def charged(self) -> tuple[str, ...]:
        """Return the sites that `charges` reads; none where training adds nothing to the loss for this sub-layer."""
        return ()

    def charges(self, read: Mapping[str, Tensor], real: Bool[Tensor, "batch pos"] | None) -> list[Any]:
        """Return what training adds to the loss for what it did in one pass, each a `models.routing.Charge`.

        Args:
            read: Its sites of that pass, by name.
            real: Which positions are no padding; None for all.
        """
        return []

    def require_spread(self) -> None:
        """Raise `ConfigError` unless processes may share the positions of a text that it runs over, see `Spread`."""
        require(
            self.by_position,
            f'"{self.path}" ({type(self).__name__}) mixes positions in a way that ranks cannot share. Attention with '
            "Softmax(), Linear() and Lightning() can be shared so, and MLPs; or let ranks share rows (dp).",
        )

    def take_part(self, part: int, parts: int) -> Mapping[str, Parallel]:
        """Compute one of several equal parts, of the heads or neurons, from here on; its sites stay those of all.

        The weights are left as they are. Returned is which linear maps hold a part of them then, by path, and how.

        Args:
            part: Which, from 0.
            parts: How many.

        Raises:
            ConfigError: It is not made of such parts, or not of so many.
        """
        raise ConfigError(
            f'"{self.path}" ({type(self).__name__}) is not shared by heads or neurons: of the sub-layers, attention '
            "and MLPs are. Let ranks share rows (dp)."
        )

    def own_parameters(self) -> Iterator[tuple[str, int]]:
        """Yield (part, number) of the parameters that no attention slot or norm accounts for."""
        yield from ()


class ByPosition(SubLayerModule):
    """A sub-layer that works at each position by itself: `write` says what it adds there."""

    by_position = True

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        context: Context,
        *,
        source: Float[Tensor, "batch key d_model"] | None = None,
        state: Any = None,
        tape: Tape | None = None,
    ) -> tuple[Float[Tensor, "batch pos d_model"], Any]:
        return self.write(x, tape), state

    def write(
        self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return what is written to the stream."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it computes")
