"""Where a module we did not write keeps one of our sites, and how its axes lie there.

    Place("transformer.h.{i}.attn.c_proj.in", "batch pos (head d_value)")
    Place("layers.{i}.attention.qkv.out", "batch pos (head part d_head)", at={"part": 0})

A tensor at a module boundary is cut and permuted into the axes of the site; an edited value goes the same way back.
"""

# torch's stubs leave much of its API untyped
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from glassformer.arguments import checked
from glassformer.errors import ShapeMismatch, UnknownAxis, nearest
from glassformer.numerics.indices import one

_AXIS = re.compile(r"\([^()]*\)|[^\s()]+")
# what a layout may call an axis for which the site has a narrower name
_ALIASES = {"pos": "key", "head": "kv_head", "d_head": "d_value"}


@checked
@dataclass(frozen=True)
class Place:
    """A module boundary that carries a site.

    Args:
        boundary: `{module}.in` or `{module}.out`: what a module receives or returns. `{i}` stands for the layer.
        layout: Axes of the tensor there in words, left to right; an axis that holds several is written in brackets, the
            slowest first: `batch pos (head d_head)`. By default the axes of the site, heads within the last axis. A
            layout without `batch` is of a module that takes one text at a time.
        at: Index along those axes of the layout that the site does not have.
        tensor: Which of the tensors that the module receives or returns, counted from 0.
        axes: Axes of the site in words, for a name that is not one of ours.
        editable: Whether everything that follows sees an edited value. By default that is assumed of a module's first
            tensor, but not of the stream where a module without parts of its own (a norm, a matrix) receives it: the
            stream goes on beside such a module.
    """

    boundary: str
    layout: str | None = None
    at: Mapping[str, int] = field(default_factory=dict)
    tensor: int = 0
    axes: str | None = None
    editable: bool | None = None

    @property
    def module(self) -> str:
        """Path of the module; empty for the whole model."""
        return self.boundary.rpartition(".")[0]

    @property
    def end(self) -> str:
        """Which side of the module: `in` or `out`."""
        return self.boundary.rpartition(".")[2]


@dataclass(frozen=True)
class Layout:
    """How the axes of one site lie in a tensor: what cuts it into them and puts them back.

    Args:
        site: Name of the site, for messages.
        boundary: Where the tensor is, likewise.
        groups: For each axis of the tensor, the axes it holds.
        axes: Axes of the site.
        sizes: Lengths of axes, as far as they are known.
        at: Index along axes that the site does not have.
    """

    site: str
    boundary: str
    groups: tuple[tuple[str, ...], ...]
    axes: tuple[str, ...]
    sizes: Mapping[str, int]
    at: Mapping[str, int]

    @classmethod
    def of(cls, site: str, axes: Sequence[str], place: Place, sizes: Mapping[str, int]) -> "Layout":
        """Read a layout; raises `UnknownAxis` if it does not hold the axes of the site."""
        groups = parsed(place.layout or usual(axes), axes)
        inside = [axis for group in groups for axis in group]
        lacking = [axis for axis in axes if axis not in inside and axis != "batch"]
        if lacking:
            raise UnknownAxis(
                f'"{site}" has an axis "{lacking[0]}", which the layout "{place.layout}" at "{place.boundary}" lacks.'
                f"{nearest(lacking[0], inside)}\n    Axes of the site: {' '.join(axes)}."
            )
        more = [axis for axis in inside if axis not in axes]
        if sorted(more) != sorted(place.at):
            found = ", ".join(f'"{axis}"' for axis in more) or "none"
            raise UnknownAxis(
                f'"{site}" at "{place.boundary}": axes of the layout that the site does not have: {found}; indices are '
                f"given for {', '.join(map(repr, place.at)) or 'none'}.\n    Give at={{axis: index}} for each of them."
            )
        for group in groups:
            unknown = [axis for axis in group if axis not in sizes]
            if len(unknown) > 1:
                raise UnknownAxis(
                    f'"{site}" at "{place.boundary}": one axis holds {" and ".join(group)}, and the lengths of '
                    f"{' and '.join(unknown)} are not known.\n    Give all but one in sizes."
                )
        return cls(site, place.boundary, groups, tuple(axes), sizes, place.at)

    def split(self, value: Tensor) -> Tensor:
        """Return the site's value: a view of the tensor.

        Raises:
            ShapeMismatch: The tensor is not laid out like that.
        """
        part = self._ordered(value)
        for axis in self.at:
            part = part.select(0, self.at[axis])
        return part if "batch" in self._inside else part.unsqueeze(self.axes.index("batch"))

    def merge(self, value: Tensor, part: Tensor) -> Tensor:
        """Return the tensor with the site's value replaced."""
        if "batch" not in self._inside:
            part = part.select(self.axes.index("batch"), 0)
        ordered = self._ordered(value)
        if self.at:
            ordered = ordered.clone()
            ordered[tuple(self.at.values())] = part.to(value.dtype)
        else:
            ordered = part.to(value.dtype)
        back = [self._order.index(axis) for axis in self._inside]
        return ordered.permute(back).reshape(value.shape)

    @property
    def _inside(self) -> list[str]:
        return [axis for group in self.groups for axis in group]

    @property
    def _order(self) -> list[str]:
        return [*self.at, *(axis for axis in self.axes if axis in self._inside)]

    def _ordered(self, value: Tensor) -> Tensor:
        if value.ndim != len(self.groups):
            raise self._mismatch(value, f"the layout has {len(self.groups)} axes")
        lengths: list[int] = []
        for group, size in zip(self.groups, value.shape):
            known = math.prod(self.sizes.get(axis, 1) for axis in group)
            unknown = any(axis not in self.sizes for axis in group)
            # axes by themselves are as long as they are: position tables and vocabularies may be padded
            if len(group) > 1 and (size % known or (not unknown and size != known)):
                parts = " x ".join(f"{axis}={self.sizes.get(axis, '?')}" for axis in group)
                raise self._mismatch(value, f"an axis of {size} is not {parts}")
            alone = len(group) == 1
            lengths += [size if alone else self.sizes.get(axis, size // known) for axis in group]
        for axis, index in self.at.items():
            length = lengths[self._inside.index(axis)]
            index = one(index, f'"{self.site}" at "{self.boundary}": at={{{axis!r}: …}}')
            if not -length <= index < length:
                raise self._mismatch(value, f"at={{{axis!r}: {index}}}, and that axis has {length} entries")
        return value.reshape(lengths).permute([self._inside.index(axis) for axis in self._order])

    def _mismatch(self, value: Tensor, why: str) -> ShapeMismatch:
        words = " ".join(group[0] if len(group) == 1 else f"({' '.join(group)})" for group in self.groups)
        return ShapeMismatch(
            f'"{self.site}" at "{self.boundary}": the layout is "{words}", the tensor {tuple(value.shape)}: {why}.'
        )


def usual(axes: Sequence[str]) -> str:
    """Return the layout that most modules have: heads side by side in the last axis."""
    if len(axes) == 4 and axes[1].endswith("head") and axes[3].startswith("d_"):
        return f"{axes[0]} {axes[2]} ({axes[1]} {axes[3]})"
    return " ".join(axes)


def parsed(layout: str, axes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return a layout as axes per axis of the tensor, by the names that the site has for them."""
    words: list[str] = _AXIS.findall(layout)
    groups = [tuple(word.strip("()").split()) for word in words]
    # `pos` of a site that says `key` is its key axis, unless the layout has both
    named = {axis: _ALIASES[axis] for axis in _ALIASES if axis not in axes and _ALIASES[axis] in axes}
    return tuple(tuple(named.get(axis, axis) for axis in group) for group in groups)
