"""Norms: what brings a vector to a standard size before it is read, or behind a sub-layer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from glassformer.arguments import Amount, Positive
from glassformer.attention import LearnedScale
from glassformer.config import UNSAID, Config, require
from glassformer.trace import Site, Tape, declare, site, wants

Half = Literal["first", "second"]
NO_LENGTH = 1e-12  # least length that a vector is divided by to be one of length 1: zeros stay zeros


class NormConfig(Config, family=True):
    """How a vector is brought to a standard size before it is read."""

    def build(
        self,
        d_model: int,
        path: str,
        layer: int | None,
        names: tuple[str, str] = ("norm", "scale"),
        tied: "Norm | None" = None,
    ) -> "Norm":
        return Norm(self, d_model, path, layer, names, tied)


@dataclass(frozen=True)
class LayerNorm(NormConfig, kind="layer_norm"):
    """(x - mean) / sqrt(variance + eps) * gain + bias,  gain = offset + weight.

    Args:
        eps: Added to the variance.
        bias: Whether there is a bias.
        gain: Whether there is a gain; without gain and bias the norm has no parameters.
        offset: What is added to the stored weight, as in `RmsNorm`.
        half: The half of the stream that it reads, and outside of which it gives zeros; None for all of it.

    Source: Ba et al. 2016; Groeneveld et al. 2024, "OLMo", section 2.1 (without parameters); Parmar et al. 2024,
    "Nemotron-4" (stored around 0).
    """

    eps: Amount = 1e-5
    bias: bool = True
    gain: bool = True
    offset: float = 0.0
    half: Half | None = field(default=None, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        _check_offset("layer_norm", self.offset, self.gain)


@dataclass(frozen=True)
class RmsNorm(NormConfig, kind="rms_norm"):
    """x / sqrt(mean of squares + eps) * gain,  gain = offset + weight.

    Args:
        eps: Added to the mean of squares.
        offset: What is added to the stored weight; with 1, weights near 0 are near the identity, where half precision
            has the most digits.
        gain: Whether there is a gain; without it the norm has no parameters.
        factor: On the gain: a constant, where what is normed goes on the stream larger than it is read; None for 1.

    Source: Zhang and Sennrich 2019; Gemma Team 2024, "Gemma" (stored around 0).
    """

    eps: Amount = 1e-5
    offset: float = 0.0
    gain: bool = True
    factor: Positive | None = field(default=None, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        _check_offset("rms_norm", self.offset, self.gain)
        require(self.gain or self.factor is None, f"rms_norm: factor={self.factor} is on a gain, and there is none.")


def _check_offset(kind: str, offset: float, gain: bool) -> None:
    require(math.isfinite(offset), f"{kind}: offset must be a finite number, found {offset}.")
    require(gain or not offset, f"{kind}: offset={offset} is part of a gain, and there is none.")


@dataclass(frozen=True)
class ScaleOnly(NormConfig, kind="scale_only"):
    """x * factor: what stands in a norm's place behind sub-layers whose writes are added in a fixed proportion.

    Its scale, the number that it divides by, is 1 / factor whatever x is.

    Args:
        factor: Of the proportion.
        half: The half of the stream that is written into, the other being left as it is; None for all of it.

    Source: Granite Team 2024, "Granite 3.0 Language Models" (residual multiplier); Kitaev et al. 2020, "Reformer",
    section 3, after Gomez et al. 2017, for a stream of two halves of which each is read to write into the other.
    """

    factor: float = 1.0
    half: Half | None = field(default=None, metadata={UNSAID: True})

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.factor) and self.factor != 0,
            f"scale_only: factor must be a finite number other than 0, found {self.factor}.",
        )


@dataclass(frozen=True)
class UnitNorm(NormConfig, kind="unit"):
    """``x / |x| * gain``: a direction, as the point of the unit sphere there, times a learned vector if asked.

    Args:
        gain: Where the gain begins, and at what size it is stored; it counts by its absolute value. None for no gain.

    Source: Loshchilov et al. 2024, "nGPT" (2410.01131), section 2.2.
    """

    gain: LearnedScale | None = None


@dataclass(frozen=True)
class NoNorm(NormConfig, kind="none"):
    """The identity."""


class Norm(nn.Module):
    """A norm with two sites: its output, and the scale it divides by (lazy; reading it changes the route).

    With `tied` it has the parameters of another norm, stored there, and sites of its own. `weight` is the parameter;
    what the norm multiplies by and adds are `gain` and `shift`.
    """

    tied: "Norm | None"

    def __init__(
        self,
        config: NormConfig,
        d_model: int,
        path: str,
        layer: int | None,
        names: tuple[str, str],
        tied: "Norm | None" = None,
    ) -> None:
        super().__init__()
        self.config, self.d_model, self.path, self.layer, self.names = config, d_model, path, layer, names
        self.at_out, self.at_scale = (f"{path}.{name}" for name in names)
        self.identity, self.centred = isinstance(config, NoNorm), isinstance(config, LayerNorm)
        self.eps = config.eps if isinstance(config, (LayerNorm, RmsNorm)) else 0.0
        self.offset = config.offset if isinstance(config, (LayerNorm, RmsNorm)) else 0.0
        self.factor = config.factor if isinstance(config, ScaleOnly) else None
        self.unit, learned = isinstance(config, UnitNorm), config.gain if isinstance(config, UnitNorm) else None
        enlarged = config.factor if isinstance(config, RmsNorm) else None if learned is None else learned.factor
        # on the gain, where there is one
        self.enlarged = 1.0 if enlarged is None else enlarged
        # how many coordinates the square of what it divides by is the mean over; 1 for a sum
        self.over = 1 if self.unit else d_model
        half = config.half if isinstance(config, (LayerNorm, ScaleOnly)) else None
        require(half is None or d_model % 2 == 0, f"{config.kind}: half of a stream of an even width; found {d_model}.")
        width = d_model if half is None else d_model // 2
        # where it reads, if that is not everywhere
        self.inside = None if half is None else slice(0, width) if half == "first" else slice(width, d_model)
        gain = learned is not None or (isinstance(config, (LayerNorm, RmsNorm)) and config.gain)
        begins = 1.0 - self.offset if learned is None else learned.size
        bias = isinstance(config, LayerNorm) and config.bias
        # a plain attribute: registering the other norm here would store its parameters twice
        self.__dict__["tied"] = tied
        own = tied is None
        self.weight = nn.Parameter(torch.full((width,), begins)) if gain and own else None
        self.bias = nn.Parameter(torch.zeros(width)) if bias and own else None

    @property
    def gain(self) -> Float[Tensor, " d_model"] | None:
        """What is multiplied by; None for ones. Half-precision weights with an offset give it in float32."""
        gain = self._own_gain()
        if self.inside is None:
            return gain
        return self._outside_zero(gain if gain is not None else torch.ones(self.inside.stop - self.inside.start))

    @property
    def shift(self) -> Float[Tensor, " d_model"] | None:
        """What is added; None for zeros."""
        shift = self._own_shift()
        return shift if shift is None or self.inside is None else self._outside_zero(shift)

    def _own_gain(self) -> Tensor | None:
        """Return the gain of what it reads."""
        weight = self.weight if self.tied is None else self.tied.weight
        weight = weight.abs() if self.unit and weight is not None else weight
        gain = weight if weight is None or not self.offset else self.offset + _widened(weight)
        return gain if gain is None or self.enlarged == 1 else gain * self.enlarged

    def _own_shift(self) -> Tensor | None:
        return self.bias if self.tied is None else self.tied.bias

    def _outside_zero(self, x: Float[Tensor, "... half"]) -> Float[Tensor, "... d_model"]:
        assert self.inside is not None, "it reads a half"
        return F.pad(x, (self.inside.start, self.d_model - self.inside.stop))

    def forward(
        self, x: Float[Tensor, "batch pos d_model"], tape: Tape | None = None
    ) -> Float[Tensor, "batch pos d_model"]:
        if not self.identity:
            if wants(tape, self.at_scale):
                x = self.affine(x, site(tape, self.at_scale, self.scale(x)))
            elif self.inside is not None:
                read, gain, shift = x[..., self.inside], self._own_gain(), self._own_shift()
                if self.factor is not None:
                    x = self._outside_zero(read * self.factor)
                else:
                    x = self._outside_zero(F.layer_norm(read, read.shape[-1:], gain, shift, self.eps).to(x.dtype))
            elif self.factor is not None:
                x = x * self.factor
            elif self.unit:
                x, gain = F.normalize(x, dim=-1, eps=NO_LENGTH), self.gain
                x = x if gain is None else x * gain
            elif self.centred and not self.offset:
                x = F.layer_norm(x, (self.d_model,), self.gain, self.shift, self.eps)
            elif self.centred:
                shift = None if self.shift is None else _widened(self.shift)
                x = F.layer_norm(_widened(x), (self.d_model,), self.gain, shift, self.eps).to(x.dtype)
            elif not self.offset:
                x = F.rms_norm(x, (self.d_model,), self.gain, self.eps)
            else:
                # 1 + weight has fewer digits in half precision than weight has
                x = F.rms_norm(_widened(x), (self.d_model,), self.gain, self.eps).to(x.dtype)
        return site(tape, self.at_out, x)

    def scale(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "..."]:
        """Return what x is divided by."""
        if self.factor is not None:
            return x.new_full(x.shape[:-1], 1 / self.factor)
        if self.unit:
            return x.norm(dim=-1).clamp_min(NO_LENGTH)
        x = x if self.inside is None else x[..., self.inside]
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        return (x.square().mean(-1) + self.eps).sqrt()

    def affine(self, x: Float[Tensor, "... d_model"], scale: Float[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """Return the norm with its scale given: affine in x."""
        out, shift = self.linear(x, scale), self.shift
        return out if shift is None else out + shift

    def linear(self, x: Float[Tensor, "... d_model"], scale: Float[Tensor, "..."]) -> Float[Tensor, "... d_model"]:
        """Return the linear part of `affine`: what becomes of one addend of the stream."""
        if self.identity:
            return x
        x = x - self.mean(x) if self.centred else x
        out, gain = x / scale[..., None], self.gain
        return out if gain is None else (out * gain.to(out.device)).to(out.dtype)

    def mean(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... 1"]:
        """Return the mean of what it reads."""
        return (x if self.inside is None else x[..., self.inside]).mean(-1, keepdim=True)

    def transposed(self, u: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Return a direction behind the norm as one before it: x . transposed(u) = linear(x) . u at a scale of 1."""
        gain = self.gain
        u = u if gain is None else (u * gain.detach().to(u.device)).to(u.dtype)
        if not self.centred or self.inside is None:
            return u - u.mean(-1, keepdim=True) if self.centred else u
        return self._outside_zero(u[..., self.inside] - self.mean(u))

    def sites(self) -> Iterator[Site]:
        scale = {} if self.identity else {self.names[1]: "batch pos"}
        axes = scale | {self.names[0]: "batch pos d_model"}
        yield from declare(self.path, axes, {"d_model": self.d_model}, layer=self.layer, lazy=self.names[1:])


def _widened(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
