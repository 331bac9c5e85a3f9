"""Positions inside attention: what tells a head how far apart two tokens are.

Each fills any of three methods; the default of each is the identity.

    inputs   added to what queries and keys read (query-key-only positions)
    rotate   applied to queries and keys (RoPE)
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

    def rows(self, positions: Int[Tensor, "b pos"], width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return what this kind needs to know of each position, `b pos d`: fixed numbers, no parameters."""
        raise AssertionError(f'positions "{self.kind}" have no rows')


class Positions(nn.Module):
    """The identity; kinds replace the methods they need."""

    has_bias = False
    # whether a score depends on the distance through the product of query and key
    rotates = False

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
        """Return queries as they meet a key `offset` positions before them: turned by R(offset), the key left alone."""
        return q

    def rows(self, width: int, like: Tensor, context: Context, keys: bool) -> tuple[Tensor, ...]:
        """Return the config's rows for the new positions, worked out once for all layers of a pass."""
        key = (self.key, width, like.dtype, keys)
        if key not in context.memo:
            positions = context.new_positions(keys)
            stop = None if context.first is None or keys else context.first + positions.shape[-1]
            plain = type(positions) is Tensor and not torch.compiler.is_compiling()
            if stop is None or stop > LONGEST_KEPT or not plain:
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
class Llama3Scaling(Config):
    """Frequency scaling of Llama 3.1 for contexts longer than the training length.

    Wavelengths shorter than `original_length / high` are kept, those longer than `original_length / low` are stretched
    by `factor`, and those between are blended.  Source: Llama 3.1 reference code.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        require(self.factor > 0, f"rope scaling: factor must be positive, found {self.factor}.")
        require(self.low < self.high, f"rope scaling: low={self.low} must be below high={self.high}.")
        require(
            self.original_length >= 1,
            f"rope scaling: original_length must be at least 1, found {self.original_length}.",
        )


@dataclass(frozen=True)
class Rope(PositionsConfig, kind="rope"):
    """Rotary positions: pair t of queries and keys turns by position * base^(-2t/d).

    Scores then depend on positions only through their difference; values are left alone.

    Args:
        base: Longest wavelength is about 2 pi base.
        pairing: `half` pairs t with t + d/2, `interleaved` pairs 2t with 2t + 1; equal up to a permutation of the
            columns of W_Q and W_K.
        fraction: Share of d_head that turns; the rest is left alone.
        scaling: Llama 3.1 frequency scaling.

    Source: Su et al. 2021, "RoFormer".
    """

    base: float = 10000.0
    pairing: Literal["half", "interleaved"] = "half"
    fraction: float = 1.0
    scaling: Llama3Scaling | None = None

    def __post_init__(self) -> None:
        require(self.base > 1, f"rope: base must be above 1, found {self.base}.")
        require(0 < self.fraction <= 1, f"rope: fraction must be in (0, 1], found {self.fraction}.")

    def build(self, dims: Any) -> "RopePositions":
        return RopePositions(self, dims.d_head)

    def frequencies(self, d_head: int) -> Float[Tensor, " pair"]:
        """Return the angle per position of each pair, in radians, float64."""
        turned = 2 * int(d_head * self.fraction / 2)
        omega = self.base ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
        if (s := self.scaling) is None:
            return omega
        wavelength = 2 * math.pi / omega
        blend = ((s.original_length / wavelength - s.low) / (s.high - s.low)).clamp(0, 1)
        return (1 - blend) * omega / s.factor + blend * omega

    def rows(self, positions: Int[Tensor, "b pos"], width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the cosines of both members of each pair, and their sines, which carry the sign."""
        # angles in float64: a float32 product of position and frequency is off by whole degrees at long range
        angle = positions[..., None].to(torch.float64) * self.frequencies(width).to(positions.device)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        if self.pairing == "half":
            return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)


class RopePositions(Positions):
    rotates = True

    def __init__(self, config: Rope, d_head: int) -> None:
        super().__init__(config)
        require(int(d_head * config.fraction) >= 2, f"rope: d_head={d_head} leaves no pair to turn.")
        self.d_head = d_head
        self.width = 2 * int(d_head * config.fraction / 2)

    def rotate(self, q: Tensor, k: Tensor | None, context: Context) -> tuple[Tensor, Tensor | None]:
        turned = None if k is None else self._turn(k, context, keys=context.crossed)
        return self._turn(q, context, keys=False), turned

    def turned(self, q: Float[Tensor, "*n d_head"], offset: int) -> Float[Tensor, "*n d_head"]:
        cos, sin = self.config.rows(torch.tensor([[offset]], device=q.device), self.d_head, q.dtype)
        return self._turn_by(q, cos[0, 0], sin[0, 0])

    def _turn(self, x: Tensor, context: Context, keys: bool) -> Tensor:
        cos, sin = self.rows(self.d_head, x, context, keys)
        # b pos turned -> b [stream] head pos turned
        for _ in range(x.ndim - 3):
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return self._turn_by(x, cos, sin)

    def _turn_by(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        part = x if self.width == x.shape[-1] else x[..., : self.width]
        # (a, b) -> (a cos - b sin, b cos + a sin)
        if self.config.pairing == "half":
            first, second = part.chunk(2, -1)
            partner = torch.cat((second, first), -1)
        else:
            partner = part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        part = torch.addcmul(part * cos, partner, sin)
        return part if part.shape == x.shape else torch.cat((part, x[..., self.width :]), -1)


@dataclass(frozen=True)
class Alibi(PositionsConfig, kind="alibi"):
    """A penalty on the scores that grows linearly with distance; slopes are fixed per head.

    Source: Press et al. 2021, "Train Short, Test Long".
    """

    def build(self, dims: Any) -> "AlibiPositions":
        return AlibiPositions(self, dims.n_heads)


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
        key = ("alibi", self.n_heads)
        if key not in context.memo:
            slopes = alibi_slopes(self.n_heads).to(context.positions.device)
            distance = (context.positions[:, :, None] - context.key_positions[:, None, :]).abs()
            context.memo[key] = -slopes[:, None, None] * distance[:, None]
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

    def rows(self, positions: Int[Tensor, "b pos"], width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return ((self.amplitude * sinusoids(positions, width)).to(dtype),)


class QueryKeyOnlyPositions(Positions):
    def __init__(self, config: QueryKeyOnly) -> None:
        super().__init__(config)

    def inputs(self, x_q: Tensor, x_k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        same = x_q is x_k
        x_q = x_q + self.rows(x_q.shape[-1], x_q, context, keys=False)[0]
        x_k = x_q if same else x_k + self.rows(x_k.shape[-1], x_k, context, keys=context.crossed)[0]
        return x_q, x_k
