"""Rotary positions: pairs of coordinates of queries and keys turn by an angle that grows with position.

angle of pair t at position p = p * omega_t,    omega_t = base^(-2t/d), or what a scaling makes of it
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import PositiveShare, Within
from glassformer.attention.context import Context
from glassformer.attention.positions.positions import Positions, PositionsConfig
from glassformer.attention.positions.rope_scaling import Length, RopeScaling, plain_frequencies
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable


@dataclass(frozen=True)
class Rope(PositionsConfig, kind="rope"):
    """Rotary positions: pair t of queries and keys turns by position * base^(-2t/d).

    Scores then depend on positions only through their difference; values are left alone.

    Args:
        base: Longest wavelength is about 2 pi base.
        pairing: `half` pairs t with t + d/2, `interleaved` pairs 2t with 2t + 1; equal up to a permutation of the
            columns of W_Q and W_K.
        fraction: Share of d_head that turns; the rest is left alone. Where the projection says which part of a head may
            turn (`Latent(rotary=…)`), of that part.
        scaling: Frequencies for long texts.
        at_read: Keys are kept as they were projected and turned whenever they are read, not once when they are written;
            scores are the same.

    Source: Su et al. 2021, "RoFormer".
    """

    base: Annotated[float, Within(1, above=True)] = 10000.0
    pairing: Literal["half", "interleaved"] = "half"
    fraction: PositiveShare = 1.0
    scaling: RopeScaling | None = None
    at_read: bool = False

    def build(self, dims: Any) -> "RopePositions":
        return RopePositions(self, dims.d_turned)

    def width(self, d_head: int) -> int:
        """Return how many numbers of each head turn, in pairs."""
        # a fraction that was a quotient, 30 / 44, must not lose a pair to rounding
        return 2 * int(d_head * self.fraction / 2 + 1e-6)

    def frequencies(self, d_head: int, length: Length = None) -> Float[Tensor, " pair"]:
        """Return the angle per position of each pair, in radians, float64; `length` as in `RopeScaling`."""
        width = self.width(d_head)
        if self.scaling is None:
            return plain_frequencies(self.base, width)
        return self.scaling.frequencies(self.base, width, length)

    @property
    def amplitude(self) -> float:
        """Factor on what turns."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    def rows(
        self, positions: Int[Tensor, "b pos"], width: int, dtype: torch.dtype, length: Length = None
    ) -> tuple[Tensor, ...]:
        """Return the cosines of both members of each pair, and their sines, which carry the sign."""
        # angles in float64: a float32 product of position and frequency is off by whole degrees at long range
        angle = positions[..., None].to(torch.float64) * self.frequencies(width, length).to(positions.device)
        cos, sin = angle.cos(), angle.sin()
        if (amplitude := self.amplitude) != 1.0:
            cos, sin = cos * amplitude, sin * amplitude
        cos, sin = cos.to(dtype), sin.to(dtype)
        if self.pairing == "half":
            return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)


class RopePositions(Positions):
    """Turns the last `d_turned` numbers of whatever it is given, or the share of them that the config says.

    A query may thus be turned whole, and a key that all heads share, which holds those numbers alone, by itself.
    """

    rotates = True

    def __init__(self, config: Rope, d_turned: int) -> None:
        super().__init__(config)
        require(int(d_turned * config.fraction) >= 2, f"rope: d_head={d_turned} leaves no pair to turn.")
        self.d_turned = d_turned
        self.width = config.width(d_turned)
        self.at_read = config.at_read
        self.by_length = config.scaling is not None and config.scaling.by_length
        # a scaling that does not fit these sizes says so here
        config.frequencies(d_turned)

    def rotate(self, q: Tensor, k: Tensor | None, context: Context) -> tuple[Tensor, Tensor | None]:
        turned = None if k is None else self._turn(k, context, keys=context.crossed)
        return self._turn(q, context, keys=False), turned

    def read(self, k: Tensor, context: Context) -> Tensor:
        # a state may hold fewer keys than there were positions: rows are aligned at the end
        cos, sin = (row[:, -k.shape[-2] :] for row in self.rows(self.d_turned, k, context, keys=True))
        return self._turn_rows(k, cos, sin)

    def turned(self, q: Float[Tensor, "*n d_head"], offset: int | Int[Tensor, " offset"]) -> Float[Tensor, "*n d_head"]:
        # a turn is linear in its cosines and sines, and so is the mean of several
        cos, sin = (row.mean(0) * self.config.amplitude for row in self._rows(torch.as_tensor(offset).reshape(-1), q))
        return self._turn_by(q, cos, sin)

    def placed(
        self, rows: Float[Tensor, "*n pos d_head"], positions: Int[Tensor, " pos"]
    ) -> Float[Tensor, "*n pos d_head"]:
        return self._turn_by(rows, *self._rows(positions, rows))

    def earlier(
        self, q: Float[Tensor, "batch *n pos d_head"], by: Int[Tensor, "b pos"]
    ) -> Float[Tensor, "batch *n pos d_head"]:
        cos, sin = self.config.rows(-by, self.d_turned, q.dtype)
        # a second turn, without what the first has multiplied by
        return self._turn_rows(q, cos / self.config.amplitude, sin / self.config.amplitude)

    def outgrows(self, before: int, after: int) -> bool:
        # keys that are turned when they are read are turned by how long the text is then
        return not self.at_read and self.config.scaling is not None and self.config.scaling.outgrows(before, after)

    def _rows(self, positions: Int[Tensor, " pos"], like: Tensor) -> tuple[Tensor, ...]:
        scaling, furthest = self.config.scaling, int(positions.abs().max())
        if scaling is not None and (longest := scaling.trained_on()) is not None and furthest >= longest:
            raise AnalysisUnavailable(
                f"rotation by {furthest} positions: only texts of more than {longest} tokens reach that far, and there "
                f'"{scaling.kind}" scaling turns queries and keys by how long the text is, which weights do not tell.\n'
                f"    Ask for offsets below {longest}, or read scores: gf.run(…, read=['blocks.*.attn.scores'])."
            )
        rows = self.config.rows(positions[None].to(like.device), self.d_turned, like.dtype)
        return tuple(row[0] for row in rows)

    def placed_at(
        self, x: Float[Tensor, "batch *n pos d_head"], positions: Int[Tensor, "b pos"]
    ) -> Float[Tensor, "batch *n pos d_head"]:
        """Return queries or keys turned by any positions, one for each row of the sequence."""
        return self._turn_rows(x, *self.config.rows(positions, self.d_turned, x.dtype))

    def _turn(self, x: Tensor, context: Context, keys: bool) -> Tensor:
        cos, sin = self.rows(self.d_turned, x, context, keys)
        return self._turn_rows(x, cos, sin)

    def _turn_rows(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # b pos turned -> b [stream] head pos turned
        for _ in range(x.ndim - 3):
            cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return self._turn_by(x, cos, sin)

    def _turn_by(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        start = x.shape[-1] - self.d_turned
        part = x if self.width == x.shape[-1] else x[..., start : start + self.width]
        # (a, b) -> (a cos - b sin, b cos + a sin)
        if self.config.pairing == "half":
            first, second = part.chunk(2, -1)
            partner = torch.cat((second, first), -1)
        else:
            partner = part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        part = torch.addcmul(part * cos, partner, sin)
        if part.shape == x.shape:
            return part
        return torch.cat((x[..., :start], part, x[..., start + self.width :]), -1)
