"""Laws f(g x) = rho(g) f(x): what acts, on what goes in and on what comes out, and which layers say that they obey.

Some act on tokens, the others on the queries, keys and values of one attention layer:

    batch                   rows are exchanged
    tokens                  tokens are exchanged, and where they stand is left; no mask
    tokens with positions   tokens are exchanged and take their positions along; no mask
    translation             all positions are moved on
    truncation              what comes behind is left out; causal mask
    repetition              each token is there several times, at its position; no mask: only their measure is seen
    values scaled, turned   z(q, k, v M) = z(q, k, v) M, M a number, or a rotation
    values shifted          z(q, k, v + b) = z(q, k, v) + b: each row of weights sums to one
    queries against keys    z(c q, k / c, v) = z(q, k, v)
    heads turned            z(q R, k R, v) = z(q, k, v), R a rotation
    keys shifted            z(q, k + b, v) = z(q, k, v): what all keys have in common is not seen
    heads                   key heads, and the query heads that read them, are exchanged

Each is of a group or a monoid: to act with g and then with h is to act with their product.
Source: Gavranovic et al. 2024, "Categorical Deep Learning" (2402.15332), section 2; Bronstein et al. 2021, "Geometric
Deep Learning" (2104.13478), sections 3.1 and 5.4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.attention import AttentionLayer
from glassformer.numerics.decompositions import qr

MaskName = Literal["causal", "full"]
Element = int | float | Tensor


class Point(NamedTuple):
    """What goes into a map.

    Args:
        stream: What it reads at each position; token ids, if it is a model.
        positions: Where tokens stand.
        heads: Queries, keys and values, if the map is what a layer makes of these.
    """

    stream: Tensor
    positions: Int[Tensor, " pos"]
    heads: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; laws of heads are asked where there are some."""
        assert self.heads is not None, "a law of heads acts on queries, keys and values"
        return self.heads


def _says_nothing(_: AttentionLayer) -> bool | None:
    return None


@dataclass(frozen=True)
class EquivarianceLaw:
    """A law f(g x) = rho(g) f(x).

    Args:
        acts: What acts, in words.
        element: Draws a generic g for an input.
        product: Of two elements the one that acts as the first and then the second.
        on_input: What g makes of what goes in.
        on_output: What rho(g) makes of what comes out.
        stated: Whether an attention layer says of itself that it obeys; None if it says nothing.
        masks: Under which masks it is asked; of several, the first that a map takes. Of a model it is asked under the
            model's own.
        of_heads: Whether it acts on queries, keys and values.
        moves_places: Whether it brings tokens to other positions, which position vectors in the stream tell apart.
    """

    acts: str
    element: Callable[[Point, torch.Generator], Element]
    product: Callable[[Any, Any], Element]
    on_input: Callable[[Any, Point], Point]
    on_output: Callable[[Any, Tensor], Tensor]
    stated: Callable[[AttentionLayer], bool | None] = _says_nothing
    masks: tuple[MaskName, ...] = ("causal", "full")
    of_heads: bool = False
    moves_places: bool = False


# ---- elements, and their products


def _order(n: int, generator: torch.Generator) -> Int[Tensor, " n"]:
    """Return an order that moves something, if there is anything to move."""
    found = torch.randperm(n, generator=generator)
    while n > 1 and torch.equal(found, torch.arange(n)):
        found = torch.randperm(n, generator=generator)
    return found


def _rotation(n: int, generator: torch.Generator) -> Float[Tensor, "n n"]:
    return qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]


def _vector(n: int, generator: torch.Generator) -> Float[Tensor, " n"]:
    return torch.randn(n, generator=generator, dtype=torch.float64)


def _sum(g: Any, h: Any) -> Any:
    return g + h


def _times(g: Any, h: Any) -> Any:
    return g * h


def _in_turn(g: Tensor, h: Tensor) -> Tensor:
    return g[h]


def _matrices(g: Tensor, h: Tensor) -> Tensor:
    return g @ h


# ---- what elements do


def _exchange_rows(order: Tensor, point: Point) -> Point:
    return point._replace(stream=point.stream[order])


def _exchange_tokens(order: Tensor, point: Point) -> Point:
    return point._replace(stream=point.stream[:, order])


def _exchange_placed(order: Tensor, point: Point) -> Point:
    return Point(point.stream[:, order], point.positions[order])


def _move_on(by: int, point: Point) -> Point:
    return point._replace(positions=point.positions + by)


def _cut(length: int, point: Point) -> Point:
    return Point(point.stream[:, :length], point.positions[:length])


def _repeat(times: int, point: Point) -> Point:
    return Point(point.stream.repeat_interleave(times, 1), point.positions.repeat_interleave(times))


def _against(c: float, point: Point) -> Point:
    q, k, v = point.qkv
    return point._replace(heads=(c * q, k / c, v))


def _turn_both(turn: Tensor, point: Point) -> Point:
    q, k, v = point.qkv
    return point._replace(heads=(q @ turn, k @ turn, v))


def _shift_keys(by: Tensor, point: Point) -> Point:
    q, k, v = point.qkv
    return point._replace(heads=(q, k + by, v))


def _exchange_heads(order: Tensor, point: Point) -> Point:
    q, k, v = point.qkv
    return point._replace(heads=(_by_group(order, q), k[..., order, :, :], v[..., order, :, :]))


def _by_group(order: Tensor, rows: Tensor) -> Tensor:
    """Return query heads in groups that follow an order of key heads."""
    return rows.unflatten(-3, (len(order), -1)).index_select(-4, order).flatten(-4, -3)


def _turned(turn: Tensor, rows: Tensor) -> Tensor:
    return rows @ turn


def _values(change: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Point], Point]:
    def acted(g: Any, point: Point) -> Point:
        q, k, v = point.qkv
        return point._replace(heads=(q, k, change(g, v)))

    return acted


def _side_by_side(change: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Return what a change of values is of z, in which several of them may lie side by side."""

    def acted(g: Tensor, z: Tensor) -> Tensor:
        return change(g, z.unflatten(-1, (-1, g.shape[-1]))).flatten(-2)

    return acted


def _rows(order: Tensor, out: Tensor) -> Tensor:
    return out[order]


def _tokens(order: Tensor, out: Tensor) -> Tensor:
    return out[:, order]


def _same(_: Any, out: Tensor) -> Tensor:
    return out


# ---- what layers say of themselves


def _always(_: AttentionLayer) -> bool | None:
    return True


def _knows_no_places(layer: AttentionLayer) -> bool | None:
    """No positions, and a mechanism that would read another text, by no order and at no distance."""
    return True if layer.config.positions.kind == "none" and _by_scores(layer) else None


def _by_distance(layer: AttentionLayer) -> bool | None:
    """Positions that come in by their differences, and nothing else that goes by them."""
    place = layer.positions
    biased = place.has_bias and place.bias_by_offset
    in_line = not (place.by_length or place.has_scores or layer.config.positions.of_grid)
    turned = place.rotates and layer.mixer.by_offset and in_line
    return True if (biased or turned) and _by_scores(layer) else None


def _by_scores(layer: AttentionLayer) -> bool:
    """Whether where a key is makes a difference by its score alone."""
    mixer = layer.config.mixer
    return mixer.crosses and not mixer.by_order and layer.config.projection.crosses


def _looks_back(layer: AttentionLayer) -> bool | None:
    return None if layer.config.mixer.bidirectional or layer.positions.by_length else True


def _linear(layer: AttentionLayer) -> bool | None:
    return True if layer.mixer.traits.linear_in_value in ("exact", "grouped") else None


def _one_for_all_channels(layer: AttentionLayer) -> bool | None:
    return True if layer.mixer.traits.linear_in_value == "exact" else None


def _of_a_whole(layer: AttentionLayer) -> bool | None:
    traits = layer.mixer.traits
    return True if traits.linear_in_value == "exact" and traits.rows_sum_to_one else None


def _by_products(layer: AttentionLayer) -> bool | None:
    place = layer.positions
    meets = not (place.at_read or place.has_scores or layer.config.positions.doubles)
    return True if layer.mixer.traits.by_products and meets else None


EQUIVARIANCE_LAWS: dict[str, EquivarianceLaw] = {
    "batch": EquivarianceLaw(
        "permutations of rows", lambda x, rng: _order(len(x.stream), rng), _in_turn, _exchange_rows, _rows, _always,
    ),
    "tokens": EquivarianceLaw(
        "permutations of tokens", lambda x, rng: _order(len(x.positions), rng), _in_turn,
        _exchange_tokens, _tokens, _knows_no_places, masks=("full",), moves_places=True,
    ),
    "tokens with positions": EquivarianceLaw(
        "permutations of tokens and positions", lambda x, rng: _order(len(x.positions), rng), _in_turn,
        _exchange_placed, _tokens, _knows_no_places, masks=("full",),
    ),
    "translation": EquivarianceLaw(
        # no multiple of what small settings count in
        "whole numbers, by moving on", lambda x, rng: 5, _sum, _move_on, _same, _by_distance, moves_places=True,
    ),
    "truncation": EquivarianceLaw(
        "whole numbers, by the smaller of two", lambda x, rng: (len(x.positions) + 1) // 2, min,
        _cut, lambda length, out: out[:, :length], _looks_back, masks=("causal",),
    ),
    "repetition": EquivarianceLaw(
        "whole numbers, by multiplying", lambda x, rng: 2, _times,
        _repeat, lambda times, out: out.repeat_interleave(times, 1), masks=("full",),
    ),
    "values scaled": EquivarianceLaw(
        "numbers but zero, by multiplying", lambda x, rng: -1.7, _times,
        _values(_times), _times, _linear, of_heads=True,
    ),
    "values turned": EquivarianceLaw(
        "rotations of values", lambda x, rng: _rotation(x.qkv[2].shape[-1], rng), _matrices,
        _values(_turned), _side_by_side(_turned), _one_for_all_channels, of_heads=True,
    ),
    "values shifted": EquivarianceLaw(
        "vectors, by adding to values", lambda x, rng: _vector(x.qkv[2].shape[-1], rng), _sum,
        _values(_sum), _side_by_side(_sum), _of_a_whole, of_heads=True,
    ),
    "queries against keys": EquivarianceLaw(
        "numbers above zero, by multiplying", lambda x, rng: 1.7, _times, _against, _same, _by_products, of_heads=True,
    ),
    "heads turned": EquivarianceLaw(
        "rotations of queries and keys", lambda x, rng: _rotation(x.qkv[0].shape[-1], rng), _matrices,
        _turn_both, _same, _by_products, of_heads=True,
    ),
    "keys shifted": EquivarianceLaw(
        "vectors, by adding to keys", lambda x, rng: _vector(x.qkv[1].shape[-1], rng), _sum,
        _shift_keys, _same, of_heads=True,
    ),
    "heads": EquivarianceLaw(
        "permutations of key heads", lambda x, rng: _order(x.qkv[1].shape[-3], rng), _in_turn,
        _exchange_heads, _by_group, of_heads=True,
    ),
}  # fmt: skip
