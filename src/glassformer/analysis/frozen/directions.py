"""Directions of the stream on their way down: from the logits, or from any place, to everything that wrote there.

    (x W) . u = x . (u W')

A dot product with what a component writes is one with what it reads from, once the direction has been carried through
its output matrix; so no write is ever built. Norms are carried through with their scales frozen: then their transpose
is a fixed map times one factor per position, and a few distinct directions serve any number of rows and positions.

Axes: `row place`, the rows and positions that are looked at.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis._run import Run
from glassformer.analysis.frozen.norm import FrozenNorm
from glassformer.analysis.places import Places
from glassformer.attention.merge import MergeHeads
from glassformer.errors import ShapeMismatch
from glassformer.models import ModelLike, SubLayer, require_model, written_before
from glassformer.models.norms import Norm
from glassformer.models.readout import ReadoutLayer


@dataclasses.dataclass(frozen=True, eq=False)
class Directions:
    """A direction for every row and place, as few distinct vectors and a factor each.

    Args:
        distinct: The vectors.
        which: Index of the vector of each place; an axis is 1 where all share one, and None is one for all.
        factor: What it is multiplied by.
    """

    distinct: Float[Tensor, "n d_model"]
    which: Int[Tensor, "rows places"] | None
    factor: Float[Tensor, "row place"]

    @classmethod
    def of(cls, given: Float[Tensor, "*rows d_model"], at: Places) -> "Directions":
        """Take one direction, one per row, or one per row and place; raises `ShapeMismatch`."""
        if not given.shape[-1]:
            raise ShapeMismatch("directions have d_model=0: give one number for each coordinate of the stream.")
        vectors = at.fitted(given, "directions", rest=1)
        index = torch.arange(vectors[..., 0].numel(), device=given.device).reshape(vectors.shape[:-1])
        ones = given.new_ones(at.positions.shape)
        return cls(vectors.flatten(0, 1), None if index.numel() == 1 else index, ones)

    @classmethod
    def chosen(cls, distinct: Float[Tensor, "n d_model"], which: Int[Tensor, "row place"]) -> "Directions":
        """Take a choice among vectors, noticing where rows or places share one."""
        factor = distinct.new_ones(which.shape)
        for axis in (0, 1):
            first = which.narrow(axis, 0, 1)
            which = first if bool((which == first).all()) else which
        return cls(distinct, None if len(distinct) == 1 else which, factor)

    def spread(self, values: Float[Tensor, "distinct ..."]) -> Float[Tensor, "row place ..."]:
        """Return the value of each place's vector, factors left out; axes are 1 where all share one."""
        return values[0][None, None] if self.which is None else values[self.which]

    def dot(self, x: Float[Tensor, "row place d_model"]) -> Float[Tensor, "row place"]:
        return products(x[..., None, :], self.spread(self.distinct)[..., None, :])[..., 0] * self.factor

    def constant(self, vector: Float[Tensor, " d_model"]) -> Float[Tensor, "row place"]:
        """Return the dot product with a vector that is the same everywhere."""
        return self.spread(self.distinct @ vector.detach()) * self.factor

    def through(self, merge: MergeHeads) -> Float[Tensor, "rows places head d_z"]:
        """Return the direction of each head's mixed values that its output matrix turns into this one, factors out."""
        # the weight as it is stored: its view by heads would be copied
        heads = (self.distinct @ merge.output.weight.detach()).unflatten(-1, (merge.dims.n_heads, merge.dims.d_z))
        return self.spread(heads)

    def __mul__(self, each: Float[Tensor, " d_model"]) -> "Directions":
        """Return the directions with every coordinate multiplied."""
        return Directions(self.distinct * each.detach().to(self.distinct.device), self.which, self.factor)

    def before(self, norm: Norm, run: Run, at: Places) -> "Directions":
        """Return the directions before a norm that has these behind it."""
        found = FrozenNorm.of(norm, lambda site: at.of_stream(run[site].values))
        if found.scale is None:
            return self
        # what divides differs by place; the rest of the transpose is done once for each distinct vector
        unscaled = FrozenNorm(norm, found.scale.new_ones(()))
        return Directions(unscaled.adjoint(self.distinct), self.which, self.factor / found.scale)

    def before_readout(
        self, readout: ReadoutLayer, run: Run, at: Places
    ) -> tuple["Directions", Float[Tensor, "row place"]]:
        """Return the directions before a readout that has these behind it, and what it adds by its biases.

        Its norm's scale is frozen, and so is what its activation multiplies each number by: act(u) / u.
        """
        shift, behind = readout.norm.shift, self.before(readout.norm, run, at)
        slope = readout.slope(at.of_stream(run[readout.at.pre].values).detach())
        rows = behind.spread(behind.distinct) * behind.factor[..., None] * slope
        constant = torch.zeros_like(behind.factor) if shift is None else self.constant(shift)
        if readout.input.bias is not None:
            constant = constant + rows @ readout.input.bias.detach()
        return Directions.of(rows @ readout.input.weight.detach(), at), constant


U = TypeVar("U", Directions, Tensor)


@dataclasses.dataclass(frozen=True, eq=False)
class Write:
    """A sub-layer, the directions its write is measured along, and what the norm after it adds by its bias."""

    layer: SubLayer
    directions: Directions
    bias: Float[Tensor, "row place"] | None


@dataclasses.dataclass(frozen=True, eq=False)
class PulledDirections:
    """Directions at every sub-layer, in the order of the forward pass, and of token and position vectors at the bottom.

    `entry_bias` is what a norm on those adds by its bias; `final` are the directions before the final norm, and
    `final_bias` what that norm adds by its bias, if it took part.
    """

    writes: list[Write]
    entry: Directions
    final: Directions
    final_bias: Float[Tensor, "row place"] | None
    entry_bias: Float[Tensor, "row place"] | None = None


def pull_back(run: Run, directions: Directions, at: Places, site: str | None = None) -> PulledDirections:
    """Carry directions down to everything that wrote to the stream.

    Args:
        run: A forward pass that read the scales of the norms on the way.
        directions: Where they start.
        at: Places they belong to.
        site: Place in the stream where they start; by default behind the final norm, as the unembedding reads.
    """
    model = require_model(run.model)
    last, norm, layers = model.output_stack.final, model.output_embed.norm, model.sub_layers()

    def before(norm: Norm, u: Directions) -> Directions:
        return u.before(norm, run, at)

    final = directions if site is not None else before(last, directions)
    final_bias = None if site is not None or last.shift is None else directions.constant(last.shift)
    earlier, u, writes = layers if site is None else written_before(layers, site), final, list[Write]()
    for layer, written, above, below in carried_down(earlier, final, before):
        writes.append(Write(layer, written, None if layer.shift is None else above.constant(layer.shift)))
        u = below
    if norm is None:
        return PulledDirections(writes[::-1], u, final, final_bias)
    entry_bias = None if norm.shift is None else u.constant(norm.shift)
    return PulledDirections(writes[::-1], before(norm, u), final, final_bias, entry_bias)


def carried_down(
    layers: Sequence[SubLayer], u: U, before: Callable[[Norm, U], U]
) -> Iterator[tuple[SubLayer, U, U, U]]:
    """Carry a direction of the stream down past some sub-layers.

    Args:
        layers: In the order of the forward pass.
        u: A direction of the stream above the last of them.
        before: Takes a direction behind a norm to one in front of it.

    Yields:
        Each sub-layer, last one first, with the direction of what it returns, and those of the stream above it and
        below: what was written earlier passes a norm on the stream, too, less the share that is lost of it.
    """
    for layer in reversed(layers):
        summed = u if layer.stream_norm is None else before(layer.stream_norm, u)
        written = summed if layer.write_norm is None else before(layer.write_norm, summed)
        below = summed if layer.rate is None else summed * (1 - layer.rate.detach())
        yield layer, written, u, below
        u = below


def scale_sites(model: ModelLike) -> list[str]:
    """Return what `pull_back` needs, from what the unembedding reads: scales of norms, and what a readout freezes."""
    model = require_model(model)
    readout, behind = model.unembed.readout, [norm for layer in model.sub_layers() for norm in layer.behind]
    norms = [model.output_embed.norm, *behind, model.output_stack.final]
    found = [norm.at_scale for norm in norms if norm is not None and not norm.identity]
    if readout is not None:
        found += [readout.at.pre, *([] if readout.norm.identity else [readout.norm.at_scale])]
    return found


def products(
    x: Float[Tensor, "row place head d_value"], u: Float[Tensor, "rows places head d_value"]
) -> Float[Tensor, "row place head"]:
    """The dot products of what stands at each place and head with a vector that some places may share."""
    if u.shape[1] > 1:
        return (x * u).sum(-1)
    # one vector for all places of a row: a matrix product, which is several times as fast as many dot products
    return (x.transpose(1, 2) @ u.permute(0, 2, 3, 1))[..., 0].transpose(1, 2)
