"""The residual stream at one place as the sum of what was written to it.

    x = token + position + sum over earlier layers of (heads + attention bias + mlp)

Components come in the order of the forward pass, named as in direct logit attribution. In post-norm stacks the stream
itself passes norms; components are carried through them with the scales that were recorded (norms frozen), and the
norms' biases are components of their own. Elsewhere nothing between a write and the place is normalised.

Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (the residual stream as a communication
channel).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.components import Component, head_labels
from glassformer.analysis.frozen.addends import by_source, each_write, place_of, residual_sites, source_sites, stack_of
from glassformer.analysis.frozen.norm import FrozenNorm
from glassformer.analysis.question import question
from glassformer.errors import AnalysisUnavailable, ShapeMismatch, nearest
from glassformer.labelled import Coordinate, Labelled, Result
from glassformer.models import ModelLike, require_model
from glassformer.numerics.precision import wide


@dataclasses.dataclass(frozen=True, eq=False)
class Writes(Result):
    """Everything that was written to the stream at one position.

    Args:
        norm_share: Size of each component over the size of the stream, `component`; writes cancel, so it can exceed 1.
        signed_share: Dot product with the stream over the stream's square, `component`; sums to 1.
        cosine: Between each two components, `component other`; 0 where one of them is zero.
        vectors: The components, `component d_model`; their sum is the stream.
        components: What each of them is.
        site: The place.
        position: Index of the position.
    """

    HEADLINE = ("norm_share", "signed_share", "cosine")
    SIGNED = ("signed_share", "cosine", "vectors")

    norm_share: Labelled
    signed_share: Labelled
    cosine: Labelled
    vectors: Labelled
    components: tuple[Component, ...]
    site: str
    position: int


@dataclasses.dataclass(frozen=True, eq=False)
class WriteShares(Result):
    """How much of the stream each component is, at every position.

    Args:
        signed: Dot product with the stream over the stream's square, `component pos`; sums to 1 over components.
        norm: Size over the size of the stream, `component pos`.
        site: The place.
    """

    HEADLINE = ("signed", "norm")
    SIGNED = ("signed",)

    signed: Labelled
    norm: Labelled
    site: str


@dataclasses.dataclass(frozen=True, eq=False)
class WriteProjections(Result):
    """What each component wrote along some directions, at every position.

    Args:
        values: `component pos direction`; the sum over components is the stream along the direction.
        site: The place.
    """

    HEADLINE = ("values",)
    SIGNED = ("values",)

    values: Labelled
    site: str


def _stack_sites(model: ModelLike, site: str | None = None) -> list[str]:
    """Return what `writes` reads to take apart the stack that a place lies in."""
    return residual_sites(model, stack_of(require_model(model), site))


def _write_source_sites(model: ModelLike) -> list[str]:
    return residual_sites(model) + source_sites(model)


@question("What is the stream at one place made of?", reads=_stack_sites, holds=("norm scales",))
def writes(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    site: str | None = None,
    position: int = -1,
    row: int = 0,
) -> Writes:
    """Split the stream at one place and position into everything that wrote to it.

    Args:
        site: A place in a residual stream, `blocks.2.resid_pre`; by default what the final norm reads.
        position: Which; negative ones count from the end of the row.

    Returns:
        Components `token`, `position`, `L0H0` …, `L0 attn bias`, `L0 mlp`, …

    Raises:
        SiteNotRead: The run lacks a site.
        UnknownSite: No such place in a residual stream.
    """
    site, stack = place_of(run, site)
    at = _index(run, stack, position)
    pairs = list(each_write(run, site))
    components = tuple(c for found, _ in pairs for c in found)
    vectors = torch.cat([vector[:, at] for _, vector in pairs])
    stream = run[site].values[0, at].detach()
    sizes = vectors.norm(dim=-1)
    unit = vectors / sizes.clamp_min(torch.finfo(vectors.dtype).tiny)[:, None]
    names = _names(components)
    return Writes(
        norm_share=Labelled(sizes / stream.norm(), ("component",), names),
        signed_share=Labelled(vectors @ stream / stream.square().sum(), ("component",), names),
        cosine=Labelled(unit @ unit.mT, ("component", "other"), names | {"other": names["component"]}),
        vectors=Labelled(vectors, ("component", "d_model"), names),
        components=components,
        site=site,
        position=at,
    )


@question("How much of the stream is each component?", reads=_stack_sites, holds=("norm scales",))
def write_shares(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    site: str | None = None,
    row: int = 0,
) -> WriteShares:
    """Write shares: how much of the stream each component is at every position; components are not kept.

    Args:
        site: As for `writes`.
    """
    site, stack = place_of(run, site)
    # squares of what float16 holds are more than it holds
    stream = wide(run[site].values[0].detach())
    square = stream.square().sum(-1)
    signed, sizes, components = [], [], []
    for found, written in each_write(run, site):
        vectors = wide(written)
        components += found
        signed.append(torch.einsum("ctd,td->ct", vectors, stream) / square)
        sizes.append(vectors.norm(dim=-1) / square.sqrt())
    names = _names(components) | _positions(run, stack)
    axes = ("component", "pos")
    return WriteShares(Labelled(torch.cat(signed), axes, names), Labelled(torch.cat(sizes), axes, names), site)


@question("Which components write along a direction?", reads=_stack_sites, holds=("norm scales",))
def write_projections(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    directions: Float[Tensor, "*direction d_model"],
    site: str | None = None,
    row: int = 0,
    labels: Sequence[str] = (),
) -> WriteProjections:
    """Write projections: what each component wrote along some directions of the stream; components are not kept.

    Args:
        directions: One direction, or one per row; they are taken as they are, not normalised.
        site: As for `writes`.
        labels: Names of the directions.
    """
    site, stack = place_of(run, site)
    directions = torch.atleast_2d(directions)
    if directions.ndim != 2 or directions.shape[-1] != run[site].size("d_model"):
        raise ShapeMismatch(
            f"write_projections: directions are {'x'.join(map(str, directions.shape))}; "
            f"the stream has d_model={run[site].size('d_model')}. Give one direction, or one per row."
        )
    components, values = [], []
    for found, vectors in each_write(run, site):
        components += found
        values.append(vectors @ directions.to(vectors).mT)
    names = _names(components) | _positions(run, stack)
    names |= {"direction": list(labels)} if labels else {}
    return WriteProjections(Labelled(torch.cat(values), ("component", "pos", "direction"), names), site)


@question(
    "What does a head write on behalf of each token?",
    reads=_write_source_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates"),
)
def write_sources(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    label: str,
    position: int = -1,
    row: int = 0,
) -> Labelled:
    """Split what a head wrote at one position by the key whose value it moved; `key d_model`.

    The keys sum to the head's write, behind the norm of a sandwich block with its scale frozen. In a post-norm block
    the stream's norm is left out, as it comes after the write has been added.

    Args:
        label: A head of the stack that ends in the logits, `L1H3`.
        position: Which.

    Raises:
        SiteNotRead: The run lacks a site.
        AnalysisUnavailable: There is no such head, or its mechanism has no pattern.
    """
    model = require_model(run.model)
    at = run.place(position)
    heads = {label: (layer, h) for layer in model.sub_layers() for h, label in enumerate(head_labels(layer))}
    if label not in heads:
        raise AnalysisUnavailable(
            f'write_sources: no head "{label}" in the stack that ends in the logits.{nearest(label, heads)}'
        )
    layer, h = heads[label]
    moved = by_source(run, layer, at, h).detach()
    if (norm := layer.write_norm) is not None and not norm.identity:
        run.require([norm.at_scale], "write_sources")
        moved = FrozenNorm.of(norm, lambda site: run[site].values[0, at])(moved)
    tokens = run.source_tokens if layer.crosses else run.tokens
    keys: list[Coordinate] = [f"{i}:{token}" for i, token in enumerate(tokens)]
    return Labelled(moved.detach(), ("key", "d_model"), {"key": keys} if len(keys) == len(moved) else {})


def _index(run: Run, stack: str, position: int) -> int:
    if stack != "encoder":
        return run.place(position)
    length = len(run.source_tokens)
    if not -length <= position < length:
        raise ShapeMismatch(f"position {position}: the source has {length} tokens.")
    return position % length


def _names(components: Sequence[Component]) -> dict[str, Sequence[Coordinate]]:
    return {"component": [c.label for c in components]}


def _positions(run: Run, stack: str) -> dict[str, Sequence[Coordinate]]:
    tokens = run.source_tokens if stack == "encoder" else run.tokens
    return {"pos": [f"{i}:{token}" for i, token in enumerate(tokens)]}
