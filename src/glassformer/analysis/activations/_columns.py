"""Columns of a store: which numbers of a site make one row, and how rows are cut out of a pass.

A row is what one position has at a site. Axes beside `batch` and the positions are laid out flat in the order of the
site table, the last running fastest: `z`, `batch head pos d_value`, gives rows of head * d_value numbers, those of head
0 first. A head by its label, `L1H6.z`, gives rows of d_value.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.errors import ShapeMismatch
from glassformer.models.evaluation import evaluating
from glassformer.models.reading import Inputs
from glassformer.numerics.precision import without_autocast
from glassformer.trace import Request, Site, Tape

_POSITIONS = ("pos", "query", "key")
# a length that shows in a pass alone, as of a module that a spec is about
_UNKNOWN = -1


@dataclass(frozen=True)
class Column:
    """One site of a store.

    Args:
        name: Of the site, or of a head's part of it, `L1H6.z`.
        axes: What is laid out flat in a row, in order; none where a position has one number.
        shape: Their lengths.
        source: Whether its positions are those of an encoder's text, in a model that reads pairs.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    source: bool = False

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return math.prod(self.shape)

    @property
    def is_stream(self) -> bool:
        """Whether a row is one vector as wide as the stream."""
        return self.axes == ("d_model",)

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {"name": self.name, "axes": list(self.axes), "shape": list(self.shape), "source": self.source}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Column":
        return cls(data["name"], tuple(data["axes"]), tuple(data["shape"]), data["source"])


def columns_of(model: Any, sites: Iterable[str] | str) -> dict[str, Column]:
    """Return what is recorded of a model, by the names under which a tape keeps it.

    Raises:
        UnknownSite: A name that no site has.
        ShapeMismatch: A site has no vector at each position: scores and patterns have two positions, some have none.
    """
    tape = Tape(model, sites)
    return {name: _column(request, tape.table[request.read.site]) for name, request in tape.requests.items()}


def _column(request: Request, site: Site) -> Column:
    axes = tuple(request.read.at.remaining(site.axes))
    positions = [axis for axis in axes if axis in _POSITIONS]
    if not axes:
        raise ShapeMismatch(
            f'record_activations: what the axes of "{site.name}" mean is not known, so it has no positions.\n'
            "    Of a module that is not ours: name its sites by a spec, glassformer.foreign(module, spec)."
        )
    if len(positions) != 1 or "batch" not in axes:
        found = " ".join(axes)
        raise ShapeMismatch(
            f'record_activations: "{request.name}" has axes {found}, and a row is what one position has.\n'
            "    Record a site of single positions: resid_post, z, mlp.hidden; patterns and scores by gf.run."
        )
    rest = tuple(axis for axis in axes if axis not in ("batch", *positions))
    sizes = tuple(site.sizes.get(axis, _UNKNOWN) for axis in rest)
    return Column(request.name, rest, sizes, site.reads_source(positions[0]))


def passed(model: Any, columns: Mapping[str, Column], inputs: Inputs) -> Tape:
    """Return what a pass left at some sites, dropout off and in the types of the weights.

    Raises:
        SiteNotRead: The pass did not come by one of them.
    """
    tape = Tape(model, list(columns))
    # of blocks and embeddings alone the pass stops behind the last of them
    read = [tape.table[request.read.site] for request in tape.requests.values()]
    tape.logits = any(site.layer is None and site.part != "embed" for site in read)
    with evaluating(model), torch.no_grad(), without_autocast():
        model(*inputs.args, **inputs.kwargs, tape=tape)
    tape.check_visited()
    return tape


def measured(model: Any, columns: Mapping[str, Column], inputs: Inputs) -> dict[str, Column]:
    """Return columns with all their lengths; where the model does not know them, a pass shows them."""
    if all(_UNKNOWN not in column.shape for column in columns.values()):
        return dict(columns)
    tape, found = passed(model, columns, inputs), dict[str, Column]()
    for name, column in columns.items():
        seen = dict(zip(_axes(tape, name), tape.values[name].shape))
        found[name] = dataclasses.replace(column, shape=tuple(seen[axis] for axis in column.axes))
    return found


def rows_at(
    tape: Tape, column: Column, mask: Bool[Tensor, "batch pos"], dtype: torch.dtype
) -> Float[Tensor, "row width"]:
    """Return the rows of a site after a pass, row of the batch by row of the batch, positions in order.

    Args:
        tape: Of the pass.
        column: The site.
        mask: Which positions are rows.
        dtype: Of the rows, which lie on the CPU.

    Raises:
        ShapeMismatch: The site has other positions than the text, or holds no floating-point numbers.
    """
    value, axes = tape.values[column.name], _axes(tape, column.name)
    place = next(i for i, axis in enumerate(axes) if axis in _POSITIONS)
    value = value.movedim((axes.index("batch"), place), (0, 1))
    if value.shape[:2] != mask.shape or not value.is_floating_point():
        raise ShapeMismatch(
            f'record_activations: "{column.name}" holds {str(value.dtype).removeprefix("torch.")} at '
            f"{value.shape[0]} x {value.shape[1]} places, and the pass read {mask.shape[0]} x {mask.shape[1]} tokens.\n"
            "    Record a site with floating-point numbers at each token."
        )
    rows = value.flatten(0, 1) if bool(mask.all()) else value[mask.to(value.device)]
    rows = rows.reshape(len(rows), column.width)
    return rows.to("cpu", dtype).contiguous()


def _axes(tape: Tape, name: str) -> tuple[str, ...]:
    """Return the axes of what a tape keeps under a name."""
    read = tape.requests[name].read
    return tuple(read.at.remaining(tape.table[read.site].axes))
