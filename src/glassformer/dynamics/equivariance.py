"""Equivariance in one table: which laws a layer, a block or a model obeys, found by trying, and which it is known to.

    f(g x) = rho(g) f(x)        for all g that act on what goes in and on what comes out; `equivariance_laws` has them

In the words of categories f is a homomorphism of algebras, and the square of f and the two actions commutes. Maps that
obey a law compose: g then obeys behind f, and a sum of both does, where the action is linear. So a block obeys what all
its sub-layers obey, and a stack what all its blocks do. Of a law that a part breaks nothing follows: another part may
mend it, as two reversals do each other.

Whether a law holds is found by trying one generic element on one random input, in float64: a law that is broken is
broken by far more than rounding, unless what breaks it is not reached (a window wider than the text). What is added to
a normaliser, lest it be zero, breaks laws by some millionths, which count as holding.
Source: Gavranovic et al. 2024, "Categorical Deep Learning" (2402.15332), section 2.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.arguments import Count, checked
from glassformer.attention import AttentionLayer, Context, Mask, SubLayerModule, causal
from glassformer.attention.projections import ProjectionInputs
from glassformer.config import require
from glassformer.dynamics.equivariance_laws import EQUIVARIANCE_LAWS, EquivarianceLaw, MaskName, Point
from glassformer.errors import AnalysisUnavailable, GlassformerError, UnknownKind, nearest
from glassformer.labelled import Labelled, Result
from glassformer.models import Block, Model, Stack
from glassformer.provenance import Binding

# of a law in float64, in root mean squares of its right side: rounding, and what is added to a normaliser besides
EXACT, NEAR = 1e-9, 1e-4


@dataclass(frozen=True, eq=False)
class EquivarianceTable(Result):
    """Which laws a map obeys.

    Args:
        defect: Largest difference of the two sides of each law, in root mean squares of the right one, `law`; NaN where
            the law is not defined.
        holds: Whether that is 1e-4 at most; None where the law is not defined.
        stated: What is known without trying, from traits of mechanisms and the laws of parts; None for nothing.
        left_out: Laws that are not defined, and why.
    """

    HEADLINE = ("defect",)

    defect: Labelled
    holds: dict[str, bool | None]
    stated: dict[str, bool | None]
    left_out: dict[str, str]

    @property
    def exact(self) -> list[str]:
        """Laws that hold but for rounding: the defect is 1e-9 at most."""
        return [str(law) for law, one in zip(self.defect.labels("law"), self.defect.values.tolist()) if one <= EXACT]

    @property
    def contradicted(self) -> list[str]:
        """Laws that are known to hold, and were seen broken."""
        return [law for law, known in self.stated.items() if known and self.holds[law] is False]


@checked
def equivariance_table(module: nn.Module, *, length: Count = 8, seed: int = 0) -> EquivarianceTable:
    """Which laws a map from streams to streams obeys: every law, tried on it.

    Args:
        module: A sub-layer, a block, a stack, or a decoder or encoder of tokens, which has a mask of its own and whose
            output is the stream at its end. Of one that is not in float64 a copy is tried that is.
        length: Tokens of a text.
        seed: Of inputs and elements.

    Raises:
        ConfigError: The module is in training mode, in which it may be another map at each call.
        AnalysisUnavailable: It is no such map, or reads another stack's output.
    """
    tried, defects, left_out = _as_map(module), dict[str, float](), dict[str, str]()
    for name in EQUIVARIANCE_LAWS:
        try:
            defects[name] = _defect(name, tried, length, seed)
        except AnalysisUnavailable as error:
            left_out[name] = str(error).partition("\n")[0]
    values = torch.tensor([defects.get(name, torch.nan) for name in EQUIVARIANCE_LAWS], dtype=torch.float64)
    return EquivarianceTable(
        defect=Labelled(values, ("law",), {"law": [*EQUIVARIANCE_LAWS]}),
        holds={name: defects[name] <= NEAR if name in defects else None for name in EQUIVARIANCE_LAWS},
        stated={name: _stated(EQUIVARIANCE_LAWS[name], tried) for name in EQUIVARIANCE_LAWS},
        left_out=left_out,
    ).bound(Binding("equivariance_table", module, seed=seed))


@checked
def equivariance_defect(law: str, module: nn.Module, *, length: Count = 8, seed: int = 0) -> float:
    """How far a map is from obeying one law, as `EquivarianceTable.defect` has it.

    Args:
        law: Its name, from `EQUIVARIANCE_LAWS`.
        module: As of `equivariance_table`.
        length: Tokens of a text.
        seed: Of input and element.

    Raises:
        UnknownKind: There is no such law.
        ConfigError: As of `equivariance_table`.
        AnalysisUnavailable: As of `equivariance_table`, or the law is not defined for this map.
    """
    if law not in EQUIVARIANCE_LAWS:
        raise UnknownKind(f'no law "{law}".{nearest(law, EQUIVARIANCE_LAWS)} Laws: {", ".join(EQUIVARIANCE_LAWS)}.')
    return _defect(law, _as_map(module), length, seed)


def _defect(name: str, module: nn.Module, length: int, seed: int) -> float:
    law = EQUIVARIANCE_LAWS[name]
    if law.of_heads and not isinstance(module, AttentionLayer):
        raise AnalysisUnavailable(
            f'the law "{name}" acts on queries, keys and values of one attention layer; found {type(module).__name__}.'
        )
    refused: GlassformerError | None = None
    for mask in _masks(law, module):
        try:
            return _broken_by(law, module, mask, length, torch.Generator().manual_seed(seed))
        except GlassformerError as error:
            refused = error
    raise AnalysisUnavailable(f'the law "{name}" is not defined here: {refused}') from refused


def _masks(law: EquivarianceLaw, module: nn.Module) -> tuple[MaskName, ...]:
    """Return the masks under which a law is asked of a map; a model has one of its own."""
    if isinstance(module, Model):
        return ("full",) if module.reads_ahead() else ("causal",)
    return law.masks


def _broken_by(
    law: EquivarianceLaw, module: nn.Module, mask: MaskName, length: int, generator: torch.Generator
) -> float:
    """Return the difference of both sides of a law, over the size of the right one."""
    point = _point(module, law.of_heads, length, generator)
    element = law.element(point, generator)
    right = law.on_output(element, _value(module, point, mask))
    left = _value(module, law.on_input(element, point), mask)
    unit = right.square().mean().sqrt() if right.any() else right.new_ones(())
    return float((left - right).abs().max() / unit)


def _stated(law: EquivarianceLaw, module: nn.Module) -> bool | None:
    """Return whether a map is known to obey a law, by traits or because all its parts do; None if nothing is known."""
    if isinstance(module, AttentionLayer):
        return law.stated(module)
    if law.of_heads:
        return None
    if isinstance(module, SubLayerModule):
        return True if module.by_position else None
    if isinstance(module, Model):
        placed = law.moves_places and module.output_embed.positions is not None
        if placed or not set(_masks(law, module)) <= set(law.masks):
            return None
    return True if all(_stated(law, part) for part in _parts(module)) else None


def _parts(module: nn.Module) -> list[nn.Module]:
    """Return the maps that a map is composed of, but for sums and for what works position by position."""
    if isinstance(module, Block):
        return [module.part(name) for name in module.names]
    if isinstance(module, Stack):
        return [*module.blocks]
    assert isinstance(module, Model), "the maps there are"
    return [module.output_stack]


def _as_map(module: nn.Module) -> nn.Module:
    """Return a module as a float64 map from one stream to another that is the same at each call."""
    of_tokens = isinstance(module, Model) and len(module.stacks) == 1 and module.output_embed.patches is None
    if not (of_tokens or isinstance(module, SubLayerModule | Block | Stack)):
        raise AnalysisUnavailable(
            f"laws are of maps from one stream to another; found {type(module).__name__}. Give a sub-layer, a block, a "
            "stack (model.stack), or a decoder or encoder of tokens."
        )
    require(not module.training, "a map is the same at each call; this one is in training mode. Call .eval() before.")
    if any(isinstance(part, AttentionLayer) and part.config.cross for part in module.modules()):
        raise AnalysisUnavailable("laws are of maps from one stream to another; cross-attention reads a second one.")
    if all(parameter.dtype == torch.float64 for parameter in module.parameters()):
        return module
    return copy.deepcopy(module).double()


def _point(module: Any, of_heads: bool, length: int, generator: torch.Generator) -> Point:
    """Return a random input of three rows."""
    positions = torch.arange(length)
    if isinstance(module, Model):
        return Point(torch.randint(module.output_embed.vocab_size, (3, length), generator=generator), positions)
    width = next(site.sizes["d_model"] for site in module.sites() if "d_model" in site.sizes)
    x = torch.randn(3, length, width, generator=generator, dtype=torch.float64)
    if not of_heads:
        return Point(x, positions)
    place, context = module.positions, Context(Mask(), positions[None], positions[None])
    with torch.no_grad():
        of_query, of_key = place.inputs(x, x, context)
        heads, _ = module.projection(ProjectionInputs(of_query, of_key, x, place, context))
    return Point(x, positions, heads)


@torch.no_grad()
def _value(module: Any, point: Point, mask: MaskName) -> Tensor:
    """Return what a map makes of an input."""
    looks_back, positions = mask == "causal", point.positions[None]
    counted = torch.equal(point.positions, torch.arange(len(point.positions)))
    context = Context(
        causal() if looks_back else Mask(),
        positions,
        positions,
        # what sees both ways cannot be scanned
        form="auto" if looks_back else "parallel",
        first=0 if counted else None,
    )
    if point.heads is not None:
        x = module.projection.shifted("mix", point.stream, context)
        return module.mixer(*point.heads, x, module.positions.within(context), None, None)[0]
    if not isinstance(module, Model):
        return module(point.stream, context)[0]
    embed = module.output_embed
    if embed.positions is not None:
        embed.positions.check(int(point.positions.max()) + 1)
    return module.output_stack(embed(point.stream, positions, None), context)[0]
