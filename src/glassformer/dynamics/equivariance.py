"""Equivariance laws in one table: which actions a layer, a block or a model commutes with, and which it does not.

    f(g x) = rho(g) f(x)        for all g of a group or monoid that acts on what goes in and on what comes out

In the words of categories f is a homomorphism of algebras of the monad of that group, and the square of f and the two
actions commutes. Maps that obey a law compose: the law of a block follows from those of its sub-layers, that of a stack
from those of its blocks. Nothing follows from a law that a part breaks, for another part may mend it.

Some laws act on tokens, the others on the queries, keys and values of one attention layer:

    batch                   rows are exchanged
    tokens                  tokens are exchanged, and where they stand is left; no mask
    tokens with positions   tokens are exchanged and take their positions along; no mask
    translation             all positions are moved on
    truncation              what comes behind is left out; causal mask
    repetition              each token is there several times, at its position; no mask: only their measure is seen
    values scaled, turned   z(q, k, v M) = z(q, k, v) M, M a number, or a rotation
    values shifted          z(q, k, v + b) = z(q, k, v) + b: each row of weights sums to one
    queries against keys    z(c q, k / c, v) = z(q, k, v)
    heads turned            z(q R, k R, v) = z(q, k, v), R orthogonal
    keys shifted            z(q, k + b, v) = z(q, k, v): what all keys have in common is not seen
    heads                   key heads, and the query heads that read them, are exchanged

That a law holds is found by trying one generic element on one random input, in float64: there a law that is broken is
broken by far more than rounding, unless what breaks it is not reached (a window wider than the text).
Source: Gavranovic et al. 2024, "Categorical Deep Learning" (2402.15332), section 2, for laws as homomorphisms; Bronstein
et al. 2021, "Geometric Deep Learning" (2104.13478), sections 3.1 and 5.4.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glassformer.arguments import Count, Within, checked
from glassformer.attention import AttentionLayer, Context, Mask, SubLayerModule, causal
from glassformer.attention.projections import ProjectionInputs
from glassformer.config import require
from glassformer.errors import AnalysisUnavailable, GlassformerError, UnknownKind, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import Block, Model, Stack
from glassformer.numerics.decompositions import qr
from glassformer.provenance import Binding

EXACT = 1e-9  # of a float64 law, in root mean squares of the right side
MaskName = Literal["causal", "full"]
Element = int | float | Tensor
Length = Count


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


@dataclass(frozen=True)
class EquivarianceLaw:
    """A law f(g x) = rho(g) f(x).

    Args:
        acts: What acts, in words.
        element: Draws a generic g for an input.
        composed: Of two elements the one that acts as the first and then the second.
        on_input: What g makes of what goes in.
        on_output: What rho(g) makes of what comes out.
        masks: Under which masks it is asked; of several, the first that a map takes.
        of_heads: Whether it acts on queries, keys and values.
        stated: Whether an attention layer says of itself that it obeys; None if it says nothing.
    """

    acts: str
    element: Callable[[Point, torch.Generator], Element]
    composed: Callable[[Any, Any], Element]
    on_input: Callable[[Any, Point], Point]
    on_output: Callable[[Any, Tensor], Tensor]
    masks: tuple[MaskName, ...]
    of_heads: bool
    stated: Callable[[AttentionLayer], bool | None]


@dataclass(frozen=True, eq=False)
class EquivarianceTable(Result):
    """Which laws a map obeys.

    Args:
        defect: Largest difference of the two sides of each law, in root mean squares of the right one, `law`; NaN where
            the law is not defined.
        holds: Whether that is rounding; None where the law is not defined.
        stated: What is known without trying, from traits of mechanisms and from the laws of parts; None for nothing.
        left_out: Laws that are not defined, and why.
    """

    HEADLINE = ("defect",)

    defect: Labelled
    holds: dict[str, bool | None]
    stated: dict[str, bool | None]
    left_out: dict[str, str]

    @property
    def contradicted(self) -> list[str]:
        """Laws that are stated and were seen otherwise."""
        return [law for law, said in self.stated.items() if said is not None and self.holds[law] is (not said)]


@checked
def equivariance_table(module: nn.Module, *, length: Length = 8, seed: int = 0) -> EquivarianceTable:
    """Try every law on a map from streams to streams.

    Args:
        module: A sub-layer, a block, a stack, or a decoder or encoder of tokens, whose output is its last stream.
            Numbers are float64: of others a copy is tried.
        length: Tokens of a text.
        seed: Of inputs and elements.

    Raises:
        ConfigError: The module is in training mode, in which it may draw anew at each call.
        AnalysisUnavailable: It is no such map, or reads another stack's output.
    """
    module = _as_map(module)
    found = {name: _tried(name, module, length, seed) for name in LAWS}
    defects = torch.tensor([one if isinstance(one, float) else torch.nan for one in found.values()])
    return EquivarianceTable(
        defect=Labelled(defects.double(), ("law",), {"law": [*found]}),
        holds={name: one <= EXACT if isinstance(one, float) else None for name, one in found.items()},
        stated={name: stated(name, module) for name in LAWS},
        left_out={name: one for name, one in found.items() if isinstance(one, str)},
    ).bound(Binding("equivariance_table", module, seed=seed))


@checked
def equivariance_defect(name: str, module: nn.Module, *, length: Length = 8, seed: int = 0) -> float:
    """How far a map is from obeying one law: see `EquivarianceTable.defect`.

    Args:
        name: Of the law, from `LAWS`.
        module: As of `equivariance_table`.
        length: Tokens of a text.
        seed: Of inputs and elements.

    Raises:
        UnknownKind: There is no such law.
        ConfigError: As of `equivariance_table`.
        AnalysisUnavailable: As of `equivariance_table`, or the law is not defined for this map.
    """
    law, module = _law(name), _as_map(module)
    if law.of_heads and not isinstance(module, AttentionLayer):
        raise AnalysisUnavailable(
            f'the law "{name}" acts on queries, keys and values of one attention layer; found {type(module).__name__}.'
        )
    generator = torch.Generator().manual_seed(seed)
    refused: GlassformerError | None = None
    for mask in law.masks:
        try:
            point = _point(module, law, length, generator)
            element = law.element(point, generator)
            right = law.on_output(element, _value(module, point, mask))
            left = _value(module, law.on_input(element, point), mask)
        except GlassformerError as error:
            refused = error
            continue
        unit = right.square().mean().sqrt() if right.any() else 1.0
        return float((left - right).abs().max() / unit)
    assert refused is not None, "a law has a mask"
    raise AnalysisUnavailable(f'the law "{name}" is not defined here: {refused}') from refused


def stated(name: str, module: nn.Module) -> bool | None:
    """Whether a map is known to obey a law, without trying: by traits, or since all its parts do; None if it is not.

    Args:
        name: Of the law, from `LAWS`.
        module: A sub-layer, a block, a stack or a model.
    """
    law = _law(name)
    if isinstance(module, AttentionLayer):
        return law.stated(module)
    if law.of_heads:
        return None
    if isinstance(module, SubLayerModule):
        return True if module.by_position else None
    if isinstance(module, Model) and module.output_embed.positions is not None and name in _BY_PLACE:
        # position vectors stay where they are, and are others further on
        return None
    return True if all(stated(name, part) for part in composed_of(module)) else None


def composed_of(module: nn.Module) -> list[nn.Module]:
    """The maps that a block, a stack or a model is composed of, but for sums and for what works position by position.

    Args:
        module: One of these.

    Raises:
        AnalysisUnavailable: It is something else.
    """
    if isinstance(module, Block):
        return [module.part(name) for name in module.names]
    if isinstance(module, Stack):
        return [*module.blocks]
    if isinstance(module, Model):
        return [module.output_stack]
    raise AnalysisUnavailable(f"{type(module).__name__} is composed of no maps; a block, a stack or a model is.")


def _law(name: str) -> EquivarianceLaw:
    if name not in LAWS:
        raise UnknownKind(f'no law "{name}".{nearest(name, LAWS)} Laws: {", ".join(LAWS)}.')
    return LAWS[name]


def _tried(name: str, module: nn.Module, length: int, seed: int) -> float | str:
    """Return the defect, or the first sentence on why there is none."""
    try:
        return equivariance_defect(name, module, length=length, seed=seed)
    except AnalysisUnavailable as error:
        return str(error).partition("\n")[0]


def _as_map(module: nn.Module) -> nn.Module:
    """Return a module as a float64 map that may be called again and again."""
    text = isinstance(module, Model) and len(module.stacks) == 1 and module.output_embed.patches is None
    if not (text or isinstance(module, SubLayerModule | Block | Stack)):
        raise AnalysisUnavailable(
            f"laws are of maps from one stream to another; found {type(module).__name__}. Give a sub-layer, a block, a "
            "stack (model.stack), or a decoder or encoder of tokens."
        )
    require(not module.training, "a map is the same at each call: call .eval() before.")
    if any(isinstance(part, AttentionLayer) and part.config.cross for part in module.modules()):
        raise AnalysisUnavailable("laws are of maps from one stream to another; cross-attention reads a second one.")
    if all(p.dtype == torch.float64 for p in module.parameters()):
        return module
    return copy.deepcopy(module).double()


def _point(module: nn.Module, law: EquivarianceLaw, length: int, generator: torch.Generator) -> Point:
    """Return a random input of three rows."""
    positions = torch.arange(length)
    if isinstance(module, Model):
        return Point(torch.randint(0, module.config.vocab_size, (3, length), generator=generator), positions)
    x = torch.randn(3, length, _width(module), generator=generator, dtype=torch.float64)
    if not (law.of_heads and isinstance(module, AttentionLayer)):
        return Point(x, positions)
    context = Context(Mask(), positions[None], positions[None])
    place = module.positions
    with torch.no_grad():
        heads, _ = module.projection(ProjectionInputs(*place.inputs(x, x, context), x, place, context))
    return Point(x, positions, heads)


def _width(module: nn.Module) -> int:
    """Return the width of the stream that a map reads."""
    if isinstance(module, Stack):
        return module.blocks[0].d_model
    if isinstance(module, AttentionLayer):
        return module.dims.d_model
    if isinstance(module, Block):
        return module.d_model
    assert isinstance(module, SubLayerModule), "the maps there are"
    return next(site.sizes["d_model"] for site in module.sites() if "d_model" in site.sizes)


@torch.no_grad()
def _value(module: Any, point: Point, mask: MaskName) -> Tensor:
    """Return what a map makes of an input."""
    positions, is_causal = point.positions[None], mask == "causal"
    counted = torch.equal(point.positions, torch.arange(len(point.positions)))
    # what sees both ways cannot be scanned
    context = Context(
        causal() if is_causal else Mask(), positions, positions,
        form="auto" if is_causal else "parallel", first=0 if counted else None,
    )  # fmt: skip
    if isinstance(module, Model):
        embed = module.output_embed
        if embed.positions is not None:
            embed.positions.check(int(point.positions.max()) + 1)
        return module.output_stack(embed(point.stream, positions, None), context)[0]
    if point.heads is None:
        return module(point.stream, context)[0]
    x = module.projection.shifted("mix", point.stream, context)
    return module.mixer(*point.heads, x, module.positions.within(context), None, None)[0]


# ---- elements


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


def _given(point: Point) -> tuple[Tensor, Tensor, Tensor]:
    assert point.heads is not None, "laws of heads are asked of queries, keys and values"
    return point.heads


def _sum(g: Any, h: Any) -> Any:
    return g + h


def _product(g: Any, h: Any) -> Any:
    return g * h


def _in_turn(g: Tensor, h: Tensor) -> Tensor:
    return g[h]


def _matrices(g: Tensor, h: Tensor) -> Tensor:
    return g @ h


def _same(_: Any, out: Tensor) -> Tensor:
    return out


# ---- what layers say of themselves


def _says_nothing(_: AttentionLayer) -> None:
    return None


def _always(_: AttentionLayer) -> bool:
    return True


def _blind_to_order(layer: AttentionLayer) -> bool | None:
    """Whether nothing tells one place from another: no positions, and a mechanism that crosses to a source unordered."""
    mixer, plain = layer.config.mixer, layer.config.positions.kind == "none"
    return True if plain and mixer.crosses and not mixer.by_order and _by_position(layer) else None


def _by_distance(layer: AttentionLayer) -> bool | None:
    """Whether positions come in by their differences alone."""
    place = layer.positions
    biased = place.has_bias and place.bias_by_offset
    turned = place.rotates and layer.mixer.by_offset and not place.by_length and not place.has_scores
    return True if (biased or turned) and _by_position(layer) else None


def _by_position(layer: AttentionLayer) -> bool:
    """Whether queries, keys and values are each made at their own position."""
    return layer.config.projection.crosses and not layer.projection.shifts


def _looks_back(layer: AttentionLayer) -> bool | None:
    return None if layer.config.mixer.bidirectional or layer.positions.by_length else True


def _linear(layer: AttentionLayer) -> bool | None:
    return True if layer.mixer.traits.linear_in_value in ("exact", "grouped", "convolved") else None


def _same_for_all_channels(layer: AttentionLayer) -> bool | None:
    return True if layer.mixer.traits.linear_in_value == "exact" else None


def _of_a_whole(layer: AttentionLayer) -> bool | None:
    traits = layer.mixer.traits
    return True if traits.linear_in_value == "exact" and traits.rows_sum_to_one else None


def _by_products(layer: AttentionLayer) -> bool | None:
    place = layer.positions
    untouched = not (place.at_read or place.has_scores or layer.config.positions.doubles)
    return True if layer.mixer.traits.by_products and untouched else None


# ---- the laws


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


def _on_values(change: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Point], Point]:
    def acted(g: Any, point: Point) -> Point:
        q, k, v = _given(point)
        return point._replace(heads=(q, k, change(g, v)))

    return acted


def _side_by_side(change: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Return what a change of values is of z, in which several of them may lie side by side."""

    def acted(g: Tensor, z: Tensor) -> Tensor:
        return change(g, z.unflatten(-1, (-1, g.shape[-1]))).flatten(-2)

    return acted


def _against(c: float, point: Point) -> Point:
    q, k, v = _given(point)
    return point._replace(heads=(c * q, k / c, v))


def _turn_both(turn: Tensor, point: Point) -> Point:
    q, k, v = _given(point)
    return point._replace(heads=(q @ turn, k @ turn, v))


def _shift_keys(by: Tensor, point: Point) -> Point:
    q, k, v = _given(point)
    return point._replace(heads=(q, k + by, v))


def _exchange_heads(order: Tensor, point: Point) -> Point:
    q, k, v = _given(point)
    return point._replace(heads=(_grouped(order, q), k[..., order, :, :], v[..., order, :, :]))


def _grouped(order: Tensor, rows: Tensor) -> Tensor:
    """Return query heads as groups that follow an order of key heads."""
    return rows.unflatten(-3, (len(order), -1)).index_select(-4, order).flatten(-4, -3)


def _tokens(
    acts: str, element: Any, composed: Any, on_input: Any, on_output: Any, stated: Any, *masks: MaskName
) -> EquivarianceLaw:
    asked: tuple[MaskName, ...] = masks or ("causal", "full")
    return EquivarianceLaw(acts, element, composed, on_input, on_output, asked, False, stated)


def _heads(
    acts: str, element: Any, composed: Any, on_input: Any, on_output: Any, stated: Any
) -> EquivarianceLaw:
    return EquivarianceLaw(acts, element, composed, on_input, on_output, ("causal", "full"), True, stated)


LAWS: dict[str, EquivarianceLaw] = {
    "batch": _tokens(
        "permutations of rows", lambda p, rng: _order(len(p.stream), rng), _in_turn,
        _exchange_rows, lambda order, out: out[order], _always,
    ),
    "tokens": _tokens(
        "permutations of tokens", lambda p, rng: _order(len(p.positions), rng), _in_turn,
        _exchange_tokens, lambda order, out: out[:, order], _blind_to_order, "full",
    ),
    "tokens with positions": _tokens(
        "permutations of tokens and positions", lambda p, rng: _order(len(p.positions), rng), _in_turn,
        _exchange_placed, lambda order, out: out[:, order], _blind_to_order, "full",
    ),
    "translation": _tokens(
        "whole numbers, by moving on", lambda p, rng: 5, _sum, _move_on, _same, _by_distance,
    ),
    "truncation": _tokens(
        "whole numbers, by the smaller of two", lambda p, rng: (len(p.positions) + 1) // 2, min,
        _cut, lambda length, out: out[:, :length], _looks_back, "causal",
    ),
    "repetition": _tokens(
        "whole numbers, by multiplying", lambda p, rng: 2, _product,
        _repeat, lambda times, out: out.repeat_interleave(times, 1), _says_nothing, "full",
    ),
    "values scaled": _heads(
        "numbers but zero, by multiplying", lambda p, rng: -1.7, _product,
        _on_values(_product), _product, _linear,
    ),
    "values turned": _heads(
        "rotations of values", lambda p, rng: _rotation(_given(p)[2].shape[-1], rng), _matrices,
        _on_values(lambda turn, v: v @ turn), _side_by_side(lambda turn, z: z @ turn), _same_for_all_channels,
    ),
    "values shifted": _heads(
        "vectors, by adding to values", lambda p, rng: _vector(_given(p)[2].shape[-1], rng), _sum,
        _on_values(_sum), _side_by_side(_sum), _of_a_whole,
    ),
    "queries against keys": _heads(
        "numbers above zero, by multiplying", lambda p, rng: 1.7, _product, _against, _same, _by_products,
    ),
    "heads turned": _heads(
        "rotations of queries and keys", lambda p, rng: _rotation(_given(p)[0].shape[-1], rng), _matrices,
        _turn_both, _same, _by_products,
    ),
    "keys shifted": _heads(
        "vectors, by adding to keys", lambda p, rng: _vector(_given(p)[1].shape[-1], rng), _sum,
        _shift_keys, _same, _says_nothing,
    ),
    "heads": _heads(
        "permutations of key heads", lambda p, rng: _order(_given(p)[1].shape[-3], rng), _in_turn,
        _exchange_heads, lambda order, z: _grouped(order, z), _says_nothing,
    ),
}  # fmt: skip
_BY_PLACE = ("tokens", "translation")
