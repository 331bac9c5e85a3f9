"""Softmax of rows that come in pieces, and attention that never has a whole row: the slow forms that say why it works.

    m = max(m1, m2),  z = z1 e^(m1-m) + z2 e^(m2-m),  u = u1 e^(m1-m) + u2 e^(m2-m)          merge of parts
    lse = m + ln z,  out = u / z
    out = out1 - sigmoid(lse2 - lse1) (out1 - out2),  lse = lse1 - ln sigmoid(lse1 - lse2)   merge of finished parts

    merge(Part.of(scores[:3], values[:3]), Part.of(scores[3:], values[3:])).out

Merging is associative and commutative, so parts may be merged in any order and by any tree: over pieces of a row, tiles
of keys, or devices. What is empty, and a piece in which everything is masked (all scores -inf), is neutral: m = -inf,
z = 0. A row in which all is masked has output 0 and lse -inf, where `torch.softmax` has NaN. Half precision is summed
in float32. The maximum cancels in every result, so no gradient passes through it.

Reads and writes of each element: the plain form 2 + 1 (and it overflows), `safe_softmax` 3 + 1, `online_softmax` 2 + 1.

These functions teach, and judge faster ones: `torch.softmax`, `torch.logsumexp` and
`F.scaled_dot_product_attention` are what models use.

Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithms 2 and 3, section 3.1; Dao
et al. 2022, "FlashAttention", algorithms 1 and 4, for `tiled_attention` and its backward.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.errors import ShapeMismatch
from glassformer.numerics.precision import wide


class Part(NamedTuple):
    """What is known of rows after some of their entries.

    Args:
        maximum: Largest score; -inf where nothing was seen.
        total: Sum of exp(score - maximum); at least 1 once a finite score was seen.
        mixed: Sum of exp(score - maximum) value; of width 0 where there are no values.
    """

    maximum: Float[Tensor, "*rows"]
    total: Float[Tensor, "*rows"]
    mixed: Float[Tensor, "*rows d_value"]

    @classmethod
    def of(cls, scores: Float[Tensor, "*rows key"], values: Float[Tensor, "*_ key d_value"] | None = None) -> "Part":
        """Return the part that some entries make; -inf masks one."""
        scores = wide(scores)
        values = scores.new_zeros(scores.shape[-1], 0) if values is None else values.to(scores.dtype)
        maximum = _maximum(scores)
        weights = (scores - _finite(maximum)[..., None]).exp()
        return cls(maximum, weights.sum(-1), (weights[..., None, :] @ values)[..., 0, :])

    @property
    def lse(self) -> Float[Tensor, "*rows"]:
        """Logarithm of the sum of exp(score)."""
        return self.maximum + self.total.log()

    @property
    def out(self) -> Float[Tensor, "*rows d_value"]:
        """Mean of the values, weighted by the softmax of the scores; 0 where all are masked."""
        return self.mixed / torch.where(self.total == 0, 1.0, self.total)[..., None]


def merge(one: Part, other: Part) -> Part:
    """Return what is known after the entries of both."""
    maximum = torch.maximum(one.maximum, other.maximum)
    # what was summed below a smaller maximum counts for less
    of_one, of_other = ((part.maximum - _finite(maximum)).exp() for part in (one, other))
    return Part(
        maximum,
        one.total * of_one + other.total * of_other,
        one.mixed * of_one[..., None] + other.mixed * of_other[..., None],
    )


class Finished(NamedTuple):
    """The same, normalised: what a kernel returns of some keys."""

    out: Float[Tensor, "*rows d_value"]
    lse: Float[Tensor, "*rows"]


def merge_finished(one: Finished, other: Finished) -> Finished:
    """Return output and log-sum-exp over the entries of both, without their maxima."""
    # where both are empty their difference has no value, and either share will do
    both_empty = (one.lse == -math.inf) & (other.lse == -math.inf)
    ahead = torch.where(both_empty, 0.0, wide(one.lse) - wide(other.lse))
    out = one.out - torch.sigmoid(-ahead)[..., None] * (one.out - other.out)
    # by the larger of the two: the other may be -inf
    larger = torch.maximum(one.lse, other.lse)
    lse = torch.where(both_empty, -math.inf, larger - F.logsigmoid(ahead.abs()))
    return Finished(out.to(one.out.dtype), lse.to(one.lse.dtype))


def safe_softmax(pieces: Iterable[Float[Tensor, "*rows _"]]) -> list[Tensor]:
    """Return the softmax of rows that come in pieces, in three passes: maximum, sum, quotient; of no pieces, none."""
    pieces = _again(pieces)
    maxima = [_maximum(wide(piece)) for piece in pieces]
    if not maxima:
        return []
    maximum = functools.reduce(torch.maximum, maxima)
    shift = _finite(maximum)[..., None]
    total = sum(((wide(piece) - shift).exp().sum(-1) for piece in pieces), torch.zeros_like(maximum))
    return _quotients(pieces, Part(maximum, total, maximum.new_zeros(*maximum.shape, 0)))


def online_softmax(pieces: Iterable[Float[Tensor, "*rows _"]]) -> list[Tensor]:
    """Return the softmax of rows that come in pieces, in two passes: running maximum and sum, quotient."""
    pieces = _again(pieces)
    whole = _merged(pieces)
    return [] if whole is None else _quotients(pieces, whole)


def log_softmax(pieces: Iterable[Float[Tensor, "*rows _"]]) -> list[Tensor]:
    """Return the log-softmax of rows that come in pieces; -inf stays -inf, a row of nothing else too.

    It is never the logarithm of a softmax, which is -inf for scores some hundred below the largest.
    """
    pieces = _again(pieces)
    whole = _merged(pieces)
    if whole is None:
        return []
    lse = _finite(whole.lse)[..., None]
    return [(wide(piece) - lse).to(piece.dtype) for piece in pieces]


def log_sum_exp(parts: Sequence[Float[Tensor, "*rows"]]) -> Float[Tensor, "*rows"]:
    """Return the log-sum-exp of a whole from those of its parts; raises `ShapeMismatch` for none: they have no rows."""
    if not parts:
        raise ShapeMismatch(
            "log_sum_exp: no parts were given, and so no rows; give one or more. A part of none is -inf."
        )
    return Part.of(torch.stack(list(parts), -1)).lse


def online_attention(
    query: Float[Tensor, "*batch query d_head"],
    key: Float[Tensor, "*batch key d_head"],
    value: Float[Tensor, "*batch key d_value"],
    mask: Bool[Tensor, "*_ query key"] | None = None,
    *,
    tile: int = 64,
    scale: float | None = None,
) -> Finished:
    """Return attention in one pass over the keys, tile by tile; O(query) numbers are kept, never a row of scores.

    Args:
        query: Queries.
        key: Keys.
        value: Values.
        mask: True where a query may look; everywhere by default.
        tile: Keys that are read at once.
        scale: Factor on the scores; 1 / sqrt(d_head) by default.
    """
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    found = Part.of(query.new_zeros(*query.shape[:-1], 0), value[..., None, :0, :])
    for keys in _tiles(key.shape[-2], tile):
        scores = _scores(query, key[..., keys, :], None if mask is None else mask[..., keys], factor)
        found = merge(found, Part.of(scores, value[..., None, keys, :]))
    return Finished(found.out.to(value.dtype), found.lse)


def tiled_attention(
    query: Float[Tensor, "*batch query d_head"],
    key: Float[Tensor, "*batch key d_head"],
    value: Float[Tensor, "*batch key d_value"],
    mask: Bool[Tensor, "*_ query key"] | None = None,
    *,
    tile: int = 64,
    scale: float | None = None,
) -> Finished:
    """Return the same with a backward of its own, which keeps no pattern either: it makes each tile anew from the lse.

    With P = exp(S - lse), g the gradient of the output and h that of the lse,

        dV = P' g,   dS = P * (g V' - rowsum(g * out) + h),   dQ = dS K scale,   dK = dS' Q scale

    Arguments as for `online_attention`.
    """
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    out, lse = _Tiled.apply(query, key, value, mask, tile, factor)
    return Finished(out, lse)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, tile: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = online_attention(query, key, value, mask, tile=tile, scale=scale)
        ctx.save_for_backward(query, key, value, mask, out, lse)
        ctx.tile, ctx.scale = tile, scale
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, mask, out, lse = ctx.saved_tensors
        g, h = wide(grads[0]), grads[1]
        shared = ((g * wide(out)).sum(-1) - h)[..., None]
        for_query, for_key, for_value = (torch.zeros_like(wide(x)) for x in (query, key, value))
        for keys in _tiles(key.shape[-2], ctx.tile):
            k, v = wide(key[..., keys, :]), wide(value[..., keys, :])
            scores = _scores(query, key[..., keys, :], None if mask is None else mask[..., keys], ctx.scale)
            pattern = (scores - _finite(lse)[..., None]).exp()
            for_scores = pattern * (g @ v.mT - shared) * ctx.scale
            for_query += for_scores @ k
            for_key[..., keys, :] = for_scores.mT @ wide(query)
            for_value[..., keys, :] = pattern.mT @ g
        return for_query.to(query.dtype), for_key.to(key.dtype), for_value.to(value.dtype), None, None, None


def _again(pieces: Iterable[Tensor]) -> Iterable[Tensor]:
    """Return pieces that can be gone through more than once: an iterator's are kept."""
    return list(pieces) if isinstance(pieces, Iterator) else pieces


def _merged(pieces: Iterable[Tensor]) -> Part | None:
    """Return what is known after all pieces; None after none, which have no rows."""
    whole = None
    for piece in pieces:
        whole = Part.of(piece) if whole is None else merge(whole, Part.of(piece))
    return whole


def _quotients(pieces: Iterable[Tensor], whole: Part) -> list[Tensor]:
    shift, total = _finite(whole.maximum)[..., None], torch.where(whole.total == 0, 1.0, whole.total)[..., None]
    return [((wide(piece) - shift).exp() / total).to(piece.dtype) for piece in pieces]


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = wide(query) @ wide(key).mT * scale
    return scores if mask is None else scores.masked_fill(~mask, -math.inf)


def _tiles(length: int, tile: int) -> list[slice]:
    return [slice(start, start + tile) for start in range(0, length, tile)]


def _maximum(scores: Tensor) -> Tensor:
    """Return the largest score of each row; -inf of a row of none."""
    return scores.detach().amax(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -math.inf)


def _finite(shift: Tensor) -> Tensor:
    """Return what may be subtracted from scores of -inf: they stay so, where -inf less -inf has no value."""
    return torch.where(shift == -math.inf, 0.0, shift)
