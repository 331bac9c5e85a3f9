"""The contract of projections: from what a layer reads of the stream to queries, keys and values at their positions.

    (q, k, v), kept = projection(inputs, kept)

A projection owns whatever precedes rotation, and hands queries and keys to the positions last. What it needs of earlier
positions, or of another stack's output, is its part of the layer's state: `kept`.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.attention.mixer import Dims, Traits
from glassformer.attention.positions import Positions
from glassformer.attention.projections.query_key_norm import HeadNorm
from glassformer.config import Config

Projected = tuple[
    Float[Tensor, "batch *stream head pos d_head"],
    Float[Tensor, "batch *stream kv_head key d_head"],
    Float[Tensor, "batch *value_stream kv_head key d_value"],
]

# as they are made, where groups of heads may share queries and keys
Made = tuple[
    Float[Tensor, "batch *stream query_group pos d_head"],
    Float[Tensor, "batch *stream key_group key d_head"],
    Float[Tensor, "batch *value_stream kv_head key d_value"],
]

Which = Literal["query", "key", "value"]
# what is made of the stream that a layer reads: with what the mechanism itself reads, and what opens its gate
Reader = Literal["query", "key", "value", "mix", "gate"]
Of = Literal["scores", "values"]
# from which of the three, and what all heads make of the one stream, to the same with some heads' own in it
Own = Callable[[Which, Tensor], Tensor]


class ProjectionInputs(NamedTuple):
    """What the queries, keys and values of a pass are made of.

    Args:
        query: What queries read.
        key: What keys read.
        value: What values read.
        positions: Turn queries and keys.
        context: Facts of the pass; for cross-attention those that pair it with the other stack.
        own: Puts in what heads make that read a stream of their own; see `Projection.of_heads`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    positions: Positions
    context: Context
    own: Own | None = None

    def with_own(self, q: Tensor, k: Tensor, v: Tensor) -> Projected:
        """Return queries, keys and values, those of heads that read a stream of their own put in."""
        return (q, k, v) if self.own is None else (self.own("query", q), self.own("key", k), self.own("value", v))


class ProjectionConfig(Config, family=True):
    """How queries, keys and values are made."""

    # whether keys and values may be made from another stack's output
    crosses: ClassVar[bool] = True

    @property
    def turned(self) -> int | None:
        """How many numbers of each query and key, the last ones, positions may turn; None for all."""
        return None

    @property
    def shifts_gate(self) -> bool:
        """Whether what opens an output gate is mixed along the text before, see `Projection.shifted`."""
        return False

    @property
    def reads_coordinates(self) -> bool:
        """Whether queries, keys or values are coordinates of the stream as they stand, which a rotation would mix."""
        return False

    def build(self, dims: Dims, traits: Traits, cross: bool) -> "Projection":
        """Return the module.

        Args:
            dims: Sizes.
            traits: Of the mechanism: how many queries, keys and values it wants of each head.
            cross: Keys and values are made from another stack's output.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it builds")

    def free(self) -> "ProjectionConfig":
        """Return the same with a matrix and a bias for each of the three, where that is one: of whatever values."""
        return self


class Departure(NamedTuple):
    """Why scores are not bilinear in what queries and keys read, or values no matrix times what they read.

    Args:
        how: What is done to them, as it follows the name of a layer: "cuts its values off at 0.7 (clip)".
        so: What follows: "its scores are not bilinear".
        instead: What still works, a sentence.
        once_frozen: Whether nothing is in the way but numbers that analyses of a run hold as they were: scales of
            norms, and for values what `Projection.held_values` gives.
        up_to_scale: Whether it is one positive number for each position, so that the matrix stands up to these.
    """

    how: str
    so: str
    instead: str
    once_frozen: bool = False
    up_to_scale: bool = False


class HeldValues(NamedTuple):
    """What stands between values and `x @ matrix("value")`, bias included: values are that over `scale`, and `shift`.

    Args:
        scale: What it is divided by; axes of size one are shared.
        shift: What is added then; None for nothing.
    """

    scale: Float[Tensor, "*value_stream kv_head pos d_value"]
    shift: Float[Tensor, "*value_stream kv_head pos d_value"] | None = None


READ_SCORES = "Read scores: gf.run(…, read=['blocks.*.attn.scores'])."
TAKE_VALUES = "analysis.attribution.source_effects(run) takes values as they were in a run."
TAKE_MIXED = "Direct logit attribution needs none: analysis.attribution.direct_logit_attribution(run)."


class Projection(nn.Module):
    """What a layer knows of its projection; what is answered here holds for one that keeps nothing."""

    # whether a value is made of what is read at its own position alone
    values_by_position: bool = True
    # whether keys and values of all positions are made of what it keeps, so that the mechanism keeps none
    stores_keys: bool = False
    # whether it keeps what positions turn of a key as they turned it, so that keys made anew need no turning
    keeps_turned: bool = False
    # whether what is read is mixed with what was read before, so that a state holds that
    shifts: bool = False
    # whether norms lie between its matrices, so that what those come to is divided by `scales`
    norms_within: bool = False

    def check(self, positions: Positions) -> None:
        """Raise if positions would do to queries or keys what has no meaning for these; all will do by default."""

    def forward(self, inputs: ProjectionInputs, kept: Any = None) -> tuple[Projected, Any]:
        """Return queries, keys and values as the layer passes them on, and what is kept if anything was.

        Args:
            inputs: What they are made of.
            kept: What earlier positions left behind, or what was made of the other stack's output; `begin` makes the
                empty one. None if there is no state.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it projects")

    def shifted(
        self, reader: Reader, x: Float[Tensor, "*copy batch pos d_model"], context: Context, kept: Any = None
    ) -> Float[Tensor, "*copy batch pos d_model"]:
        """Return what one reader is given of what the layer reads: that itself, unless positions are mixed before.

        Args:
            reader: Who reads. Queries, keys and values are made so in `forward`.
            x: What the layer reads, or what heads read that have a stream of their own.
            context: Facts of the pass.
            kept: As in `forward`, from before it.
        """
        return x

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

    @property
    def reads(self) -> list[nn.Linear]:
        """Its maps that read the stream."""
        raise NotImplementedError(f"{type(self).__name__} does not say by what it reads the stream")

    def departs(self, of: Of, value: int | None = None) -> Departure | None:
        """Return why there is no one matrix to take for it; None if there is, up to scales of `norm_of`.

        Args:
            of: Of `scores`, which a matrix between what query and key read at their own positions would give; or of
                `values`, which `matrix("value")` would make of what is read at theirs.
            value: Which of several values of a head; None for all of them.
        """
        return None

    def scales(self, which: Which, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n width"] | None:
        """Return what `x @ matrix(which)` is divided by, coordinate by coordinate (or one for all); None for one.

        Norms of whole queries and keys come behind and have no part in it.
        """
        return None

    def normed_part(self, which: Which) -> slice:
        """Return which numbers of a query, key or value `scales` divides, where norms lie between the matrices."""
        return slice(None)

    def held_values(self, x: Float[Tensor, "*n pos d_model"]) -> HeldValues | None:
        """Return what makes values of `x @ matrix("value")` and its bias, as it is where x is read; None for nothing.

        With these numbers held values are affine in what is read, where `departs` says that holding makes them so.
        """
        return None

    def absorbs(self, n_new: int, kept: Any, positions: Positions) -> bool:
        """Whether new positions are mixed quicker with what is kept as it lies, by `absorbed`."""
        return False

    def absorbed(self, inputs: ProjectionInputs, kept: Any) -> tuple[Projected, Any]:
        """Return queries, keys and values whose products, mixed by the same pattern, are `restored` to the same z.

        For mechanisms that go `by_products`, and are linear in values: keys and values then need not be made of what
        is kept, if queries meet that, and what is mixed of it becomes values.
        """
        raise AssertionError("absorbs says whether this is defined")

    def restored(self, z: Float[Tensor, "batch head pos mixed"]) -> Float[Tensor, "batch head pos d_value"]:
        """Return mixed values, from what was mixed in their place; see `absorbed`."""
        raise AssertionError("absorbs says whether this is defined")

    def norm_of(self, which: Which) -> HeadNorm | None:
        """Return the norm that queries or keys pass before they are rotated, or None; values pass none."""
        return None

    @property
    def normalises(self) -> bool:
        """Whether queries or keys pass a norm, so that scores are bilinear only up to what it divides by."""
        return self.norm_of("query") is not None or self.norm_of("key") is not None

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
