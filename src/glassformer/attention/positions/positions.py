"""Positions inside attention: what tells a head how far apart two tokens are.

Each kind fills any of five methods; the default of each leaves things as they are.

    inputs   added to what queries and keys read (query-key-only positions)
    rotate   applied to queries and keys (rotary positions), when keys are written or, `at_read`, whenever they are read
    scores   which queries and keys a score is of (dual chunks)
    bias     added to the scores (ALiBi, relative position bias)
    doubled  applied to the features that a mechanism without scores makes of queries and keys (LRPE)

Positions added to the residual stream are part of the model, not of attention: see `models.embedding`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.config import Config

LONGEST_KEPT = 8192  # positions whose rows are kept from one pass to the next


class PositionsConfig(Config, family=True):
    """How attention learns about distance."""

    # whether keys may come from another sequence
    crosses: ClassVar[bool] = True
    # whether it turns what a mechanism makes of queries and keys, two numbers then standing for each
    doubles: ClassVar[bool] = False
    # whether it goes by rows and columns, which the layer's input has to have
    of_grid: ClassVar[bool] = False
    # whether queries are turned for each key that they meet, and not once
    turns_for_each: ClassVar[bool] = False

    def build(self, dims: Any) -> "Positions":
        return Positions(self)

    def rows(
        self, positions: Int[Tensor, "b pos"], width: int, dtype: torch.dtype, length: Int[Tensor, ""] | None = None
    ) -> tuple[Tensor, ...]:
        """Return what this kind needs to know of each position, `b pos d`: fixed numbers, no parameters.

        Args:
            positions: Which positions.
            width: Of what the rows are applied to.
            dtype: Of the rows.
            length: Positions in the pass, for a kind that goes `by_length`; None stands for any it was trained on.
        """
        raise AssertionError(f'positions "{self.kind}" have no rows')


class Positions(nn.Module):
    """Leaves everything as it is; kinds replace the methods they need."""

    has_bias = False
    # whether what is added to a score depends on how far apart query and key are, and not on where
    bias_by_offset = False
    # whether scores are more than the product of query and key
    has_scores = False
    # whether a score depends on the distance through the product of query and key
    rotates = False
    # whether keys are written as projected, and turned whenever they are read
    at_read = False
    # whether a position means something else in a longer pass
    by_length = False

    def __init__(self, config: PositionsConfig) -> None:
        super().__init__()
        self.config: Any = config
        # a string's hash is kept, a config's is worked out at every look-up
        self.key = f"{config.kind} {config!r}"

    def inputs(self, x_q: Tensor, x_k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return what the query and the key projections read."""
        return x_q, x_k

    def rotate(self, q: Tensor, k: Tensor | None, context: Context) -> tuple[Tensor, Tensor | None]:
        """Return queries and keys of this pass, both turned; `k` is None where the keys are in a state already."""
        return q, k

    def written(self, q: Tensor, k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return both as the layer passes them on and a state holds them; keys are left alone if turned `at_read`."""
        if self.at_read:
            return self.rotate(q, None, context)[0], k
        q, turned = self.rotate(q, k, context)
        assert turned is not None, "keys were given"
        return q, turned

    def read(self, k: Tensor, context: Context) -> Tensor:
        """Return the last keys of a pass, those in the state included, as queries meet them."""
        return k

    def scores(
        self,
        score: Callable[[Tensor, Tensor], Tensor],
        q: Float[Tensor, "batch *stream head query d_head"],
        k: Float[Tensor, "batch *stream head key d_head"],
        context: Context,
    ) -> Float[Tensor, "batch *stream head query key"]:
        """Return what stands for `score(q, k)`, of queries and keys as `rotate` leaves them."""
        raise AssertionError("has_scores says whether this is defined")

    def has_parts(self, context: Context) -> bool:
        """Whether `mix` is defined of a pass without state: scores are products, if of several queries."""
        return False

    def mix(
        self,
        q: Float[Tensor, "batch head pos d_head"],
        k: Float[Tensor, "batch head pos d_head"],
        v: Float[Tensor, "batch head pos d_value"],
        scale: float,
    ) -> Float[Tensor, "batch head pos d_value"]:
        """Return the values mixed by the softmax of `scores` of products, times `scale`, without making them."""
        raise AssertionError("has_parts says whether this is defined")

    def extra_flops(self, n_queries: int, n_keys: int, dims: Any, in_parts: bool) -> int:
        """Return the operations of `scores`, or of `mix`, less those of mixing all pairs by one product per stream."""
        return 0

    def bias(self, context: Context) -> Float[Tensor, "b head query key"]:
        """Return what is added to the scores."""
        raise AssertionError("has_bias says whether this is defined")

    def doubled(
        self, q: Float[Tensor, "batch head pos d_head"], k: Float[Tensor, "batch head pos d_head"], context: Context
    ) -> tuple[Float[Tensor, "batch head pos d_feature"], Float[Tensor, "batch head pos d_feature"]]:
        """Return features of queries and keys, keys by query head, as they meet: each as two numbers."""
        raise AssertionError("the config's `doubles` says whether this is defined")

    def within(self, context: Context) -> Context:
        """Return the context as the mechanism sees it: with what is done to keys that are read, and to scores."""
        told = self.at_read or self.has_scores or self.has_bias or self.rotates or self.config.doubles
        return replace(context, encoding=self) if told else context

    def turned(self, q: Float[Tensor, "*n d_head"], offset: int | Int[Tensor, " offset"]) -> Float[Tensor, "*n d_head"]:
        """Return queries as they meet a key `offset` positions before them: turned by R(offset), the key left alone.

        Of several offsets, their mean.

        What rotation multiplies queries and keys by, if anything, is in here for both.

        Raises:
            AnalysisUnavailable: Rotation goes by the length of a pass, and only passes longer than any trained on reach
                this far.
        """
        return q

    def earlier(
        self, q: Float[Tensor, "batch *n pos d_head"], by: Int[Tensor, "b pos"]
    ) -> Float[Tensor, "batch *n pos d_head"]:
        """Return queries as `rotate` would have left them so many positions earlier."""
        return q

    def placed(
        self, rows: Float[Tensor, "*n pos d_head"], positions: Int[Tensor, " pos"]
    ) -> Float[Tensor, "*n pos d_head"]:
        """Return queries or keys as they are at positions, one of each row; raises as `turned` does."""
        return rows

    def outgrows(self, before: int, after: int) -> bool:
        """Whether a state of `before` positions is of no use to a text that grows to `after`: it has to be reread."""
        return False

    def rows(self, width: int, like: Tensor, context: Context, keys: bool) -> tuple[Tensor, ...]:
        """Return the config's rows for the new positions, worked out once for all layers of a pass."""
        key = (self.key, width, like.dtype, keys)
        if key not in context.memo:
            positions = context.new_positions(keys)
            stop = None if context.first is None or keys else context.first + positions.shape[-1]
            plain = type(positions) is Tensor and not torch.compiler.is_compiling()
            if self.by_length:
                context.memo[key] = self.config.rows(positions, width, like.dtype, context.length(keys))
            elif stop is None or stop > LONGEST_KEPT or not plain:
                context.memo[key] = self.config.rows(positions, width, like.dtype)
            else:
                # rounded up, so that a text that grows token by token finds its rows there
                known = _counted_rows(self.config, width, -(-stop // 512) * 512, like.dtype, positions.device)
                context.memo[key] = tuple(row[:, context.first : stop] for row in known)
        return context.memo[key]


@lru_cache(maxsize=32)
def _counted_rows(
    config: PositionsConfig, width: int, length: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Return the rows of positions 0, 1, 2, …; at short lengths they take longer than a layer's attention."""
    # inference tensors could not be used in a later pass that is differentiated
    with torch.inference_mode(False):
        return config.rows(torch.arange(length, device=device)[None], width, dtype)


@dataclass(frozen=True)
class NoPositions(PositionsConfig, kind="none"):
    """Order is seen only through the causal mask, or not at all."""
