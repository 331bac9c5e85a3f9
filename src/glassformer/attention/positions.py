"""Positions inside attention: what tells a head how far apart two tokens are.

Each fills any of three methods; the default of each is the identity.
    inputs   added to what queries and keys read (query-key-only positions)
    rotate   applied to queries and keys (RoPE)
    bias     added to the scores (ALiBi)
Positions added to the residual stream are part of the model, not of attention: see `models.parts`.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.attention.context import Context
from glassformer.config import Config, require


class PositionsConfig(Config, family=True):
    """How attention learns about distance."""

    def build(self, dims: Any) -> "Positions":
        return Positions()


class Positions(nn.Module):
    """The identity; kinds replace the methods they need."""

    has_bias = False

    def inputs(self, x_q: Tensor, x_k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return what the query and the key projections read."""
        return x_q, x_k

    def rotate(self, q: Tensor, k: Tensor | None, context: Context) -> tuple[Tensor, Tensor | None]:
        """Return both turned; `k` is None where the keys are in a state already, turned when they were written."""
        return q, k

    def bias(self, context: Context) -> Float[Tensor, "b head query key"]:
        raise AssertionError("has_bias says whether this is defined")


@dataclass(frozen=True)
class NoPositions(PositionsConfig, kind="none"):
    """Order is seen only through the causal mask, or not at all."""


@dataclass(frozen=True)
class Llama3Scaling(Config):
    """Frequency scaling of Llama 3.1 for contexts longer than the training length.

    Wavelengths shorter than `original_length / high` are kept, those longer than `original_length / low` are stretched by
    `factor`, and those between are blended.  Source: Llama 3.1 reference code.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        require(self.factor > 0, f"rope scaling: factor must be positive, found {self.factor}.")
        require(self.low < self.high, f"rope scaling: low={self.low} must be below high={self.high}.")
        require(
            self.original_length >= 1, f"rope scaling: original_length must be at least 1, found {self.original_length}."
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


class RopePositions(Positions):
    def __init__(self, config: Rope, d_head: int) -> None:
        super().__init__()
        require(int(d_head * config.fraction) >= 2, f"rope: d_head={d_head} leaves no pair to turn.")
        self.config, self.d_head = config, d_head
        self.turned = 2 * int(d_head * config.fraction / 2)
        # a string's hash is kept, a config's is worked out at every look-up
        self.key = f"rope {d_head} {config!r}"

    def rotate(self, q: Tensor, k: Tensor | None, context: Context) -> tuple[Tensor, Tensor | None]:
        turned = None if k is None else self._turn(k, context, keys=context.crossed)
        return self._turn(q, context, keys=False), turned

    def _turn(self, x: Tensor, context: Context, keys: bool) -> Tensor:
        cos, sin = self._table(context, x, keys)
        part = x if self.turned == x.shape[-1] else x[..., : self.turned]
        # (a, b) -> (a cos - b sin, b cos + a sin); the table's sines carry the sign
        if self.config.pairing == "half":
            first, second = part.chunk(2, -1)
            partner = torch.cat((second, first), -1)
        else:
            partner = part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        part = torch.addcmul(part * cos, partner, sin)
        return part if part.shape == x.shape else torch.cat((part, x[..., self.turned :]), -1)

    def _table(self, context: Context, x: Tensor, keys: bool) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines, `b [stream] head pos turned`, the same for all layers of one pass."""
        key = (self.key, x.dtype, x.ndim, keys)
        if key not in context.memo:
            # angles in float64: a float32 product of position and frequency is off by whole degrees at long range
            positions = context.new_positions(keys)
            angle = positions[..., None].to(torch.float64) * self.config.frequencies(self.d_head).to(positions.device)
            cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
            if self.config.pairing == "half":
                cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
            else:
                cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
            for _ in range(x.ndim - 3):
                cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
            context.memo[key] = cos, sin
        return context.memo[key]


@dataclass(frozen=True)
class Alibi(PositionsConfig, kind="alibi"):
    """A penalty on the scores that grows linearly with distance; slopes are fixed per head.

    Source: Press et al. 2021, "Train Short, Test Long".
    """

    def build(self, dims: Any) -> "AlibiPositions":
        return AlibiPositions(dims.n_heads)


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """Return 2^(-8(h+1)/H) for a power of two; else those of the lower power plus every other one of twice that power."""
    power = 2 ** int(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    extra = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return torch.tensor((slopes + extra)[:n_heads], dtype=torch.float64)


class AlibiPositions(Positions):
    has_bias = True

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads

    def bias(self, context: Context) -> Float[Tensor, "b head query key"]:
        key = ("alibi", self.n_heads)
        if key not in context.memo:
            slopes = alibi_slopes(self.n_heads).to(context.positions.device)
            distance = (context.positions[:, :, None] - context.key_positions[:, None, :]).abs()
            context.memo[key] = -slopes[:, None, None] * distance[:, None]
        return context.memo[key]


def sinusoids(positions: Int[Tensor, "..."], d_model: int) -> Float[Tensor, "... d_model"]:
    """Return sine and cosine of position * 10000^(-2t/d_model), interleaved (Vaswani et al. 2017, section 3.5), float64."""
    omega = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device) / d_model)
    angle = positions[..., None].to(torch.float64) * omega
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
        return QueryKeyOnlyPositions(self.amplitude)


class QueryKeyOnlyPositions(Positions):
    def __init__(self, amplitude: float) -> None:
        super().__init__()
        self.amplitude = amplitude

    def inputs(self, x_q: Tensor, x_k: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        same = x_q is x_k
        x_q = x_q + self._table(x_q, context, keys=False)
        x_k = x_q if same else x_k + self._table(x_k, context, keys=context.crossed)
        return x_q, x_k

    def _table(self, x: Tensor, context: Context, keys: bool) -> Tensor:
        key = ("query_key_only", self.amplitude, x.shape[-1], x.dtype, keys)
        if key not in context.memo:
            context.memo[key] = (self.amplitude * sinusoids(context.new_positions(keys), x.shape[-1])).to(x.dtype)
        return context.memo[key]
