"""Positions inside attention: what tells a head how far apart two tokens are.

Each fills any of three methods; the default of each is the identity.

    inputs   added to what queries and keys read (query-key-only positions)
    rotate   applied to queries and keys (RoPE: see `attention.rotary`)
    bias     added to the scores (ALiBi)

Positions added to the residual stream are part of the model, not of attention: see `models.parts`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.config import Config, require

LONGEST_KEPT = 8192  # positions whose rows are kept from one pass to the next


class PositionsConfig(Config, family=True):
    """How attention learns about distance."""

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
    """The identity; kinds replace the methods they need."""

    has_bias = False
    # whether a score depends on the distance through the product of query and key
    rotates = False
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
        """Return both turned; `k` is None where the keys are in a state already, turned when they were written."""
        return q, k

    def bias(self, context: Context) -> Float[Tensor, "b head query key"]:
        raise AssertionError("has_bias says whether this is defined")

    def turned(self, q: Float[Tensor, "*n d_head"], offset: int) -> Float[Tensor, "*n d_head"]:
        """Return queries as they meet a key `offset` positions before them: turned by R(offset), the key left alone.

        What rotation multiplies queries and keys by, if anything, is in here for both.

        Raises:
            AnalysisUnavailable: Rotation goes by the length of a pass, and only passes longer than any trained on reach
                this far.
        """
        return q

    def placed(self, rows: Float[Tensor, "*n d_head"], position: int) -> Float[Tensor, "*n d_head"]:
        """Return queries or keys as they are at a position; raises as `turned` does."""
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


@dataclass(frozen=True)
class Alibi(PositionsConfig, kind="alibi"):
    """A penalty on the scores that grows linearly with distance; slopes are fixed per head.

    bias = -factor * slope * abs(query - key)

    Args:
        factor: On the penalty; 1 / sqrt(d_head) where scores are scaled after it was added to them.
        rounded: The precision that slopes, and slope * key position, are rounded to before anything else; None for no
            rounding. The bias is then counted from the first position, where the error grows from: bias = factor *
            rounded(rounded(slope) * key). Without rounding softmax could not tell the two apart.

    Source: Press et al. 2021, "Train Short, Test Long"; Almazrouei et al. 2023, "The Falcon Series" (factor, rounding).
    """

    factor: float = 1.0
    rounded: Literal["bfloat16"] | None = None

    def __post_init__(self) -> None:
        require(self.factor > 0, f"alibi: factor must be positive, found {self.factor}.")

    def build(self, dims: Any) -> "AlibiPositions":
        return AlibiPositions(self, dims.n_heads)

    def bias(
        self, n_heads: int, queries: Int[Tensor, "b query"], keys: Int[Tensor, "b key"]
    ) -> Float[Tensor, "b head query key"]:
        """Return what is added to the scores, in float64; with rounding, the same for every query."""
        slopes = alibi_slopes(n_heads).to(keys.device)[:, None, None]
        if self.rounded is None:
            return -self.factor * slopes * (queries[:, :, None] - keys[:, None, :]).abs()[:, None]
        ramp = (slopes.to(torch.bfloat16) * keys[:, None, None, :]).to(torch.float64)
        return self.factor * ramp.expand(-1, -1, queries.shape[-1], -1)


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """Return 2^(-8(h+1)/H) for a power of two; else those of the lower power and every other one of twice that."""
    power = 2 ** int(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    extra = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return torch.tensor((slopes + extra)[:n_heads], dtype=torch.float64)


class AlibiPositions(Positions):
    has_bias = True

    def __init__(self, config: Alibi, n_heads: int) -> None:
        super().__init__(config)
        self.n_heads = n_heads

    def bias(self, context: Context) -> Float[Tensor, "b head query key"]:
        key = (self.key, self.n_heads)
        if key not in context.memo:
            context.memo[key] = self.config.bias(self.n_heads, context.positions, context.key_positions)
        return context.memo[key]


def sinusoids(
    positions: Int[Tensor, "..."], d_model: int, layout: Literal["interleaved", "halves"] = "interleaved"
) -> Float[Tensor, "... d_model"]:
    """Return sines and cosines of position * 10000^(-2t/d_model) in float64.

    Args:
        positions: Positions.
        d_model: Number of sines and cosines together.
        layout: `interleaved`, each sine before its cosine; or `halves`, all sines before all cosines.

    Source: Vaswani et al. 2017, section 3.5.
    """
    omega = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device) / d_model)
    angle = positions[..., None].to(torch.float64) * omega
    if layout == "halves":
        return torch.cat((angle.sin(), angle.cos()), -1)[..., :d_model]
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[..., :d_model]


@dataclass(frozen=True)
class QueryKeyOnly(PositionsConfig, kind="query_key_only"):
    """Sinusoids added to what queries and keys read, in every layer; the stream and the values stay position-free.

    Args:
        amplitude: Factor on the sinusoids.

    Source: Press et al. 2020, "Shortformer"; the models of Elhage et al. 2021.
    """

    amplitude: float = 1.0

    def build(self, dims: Any) -> "QueryKeyOnlyPositions":
        return QueryKeyOnlyPositions(self)

    def rows(
        self, positions: Int[Tensor, "b pos"], width: int, dtype: torch.dtype, length: Int[Tensor, ""] | None = None
    ) -> tuple[Tensor, ...]:
        return ((self.amplitude * sinusoids(positions, width)).to(dtype),)


class QueryKeyOnlyPositions(Positions):
    def __init__(self, config: QueryKeyOnly) -> None:
        super().__init__(config)

    def inputs(self, x_q: Tensor, x_k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        same = x_q is x_k
        x_q = x_q + self.rows(x_q.shape[-1], x_q, context, keys=False)[0]
        x_k = x_q if same else x_k + self.rows(x_k.shape[-1], x_k, context, keys=context.crossed)[0]
        return x_q, x_k
