"""What each linear map of a model read in a pass and what came back to it: its gradient as two thin factors.

    y_i = x_i W        dL/dW = sum over i of x_i' d_i,        d_i = dL/dy_i, the VJP at the map's output

A map is some rows of a weight: of one matrix that makes queries, keys and values there are three, of the stacked
matrices of experts one each. What a pass multiplies by them is seen where the product is made, so that no mechanism
and no sub-layer has to name it; what is multiplied by any other way is not seen, and left out.
"""

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from glassformer.attention.linear_map import linear
from glassformer.models import Matrix, Model, SubLayer
from glassformer.models.mlp import MlpLayer

Side = Literal["read", "write", "inside"]
_LETTERS = {"query": "Q", "key": "K", "value": "V"}
_OF_MLPS = {"input": "in", "gate": "gate", "output": "out"}


@dataclasses.dataclass(frozen=True, eq=False)
class MapOfModel:
    """One linear map of a sub-layer.

    Args:
        label: `L0 mlp in`, `L0 mlp gate`, `L0 mlp out`, `L1 attn Q` … `L1 attn O`; `L1 attn merge.gate` after where the
            module lies, for maps that only some kinds have.
        weight: The parameter it is of, `*some d_out d_in`.
        rows: Which rows of it, if it is laid out as one matrix.
        layer: The sub-layer.
        side: Whether it reads the stream, writes to it, or stands between what does.
    """

    label: str
    weight: Tensor
    rows: range
    layer: SubLayer
    side: Side

    @property
    def matrix(self) -> Float[Tensor, "d_in d_out"]:
        """The map as a view on its parameter, in the convention y = x W."""
        return self.weight.detach().reshape(-1, self.weight.shape[-1])[self.rows.start : self.rows.stop].mT

    def gradient_of(self, gradient: Tensor) -> Float[Tensor, "d_in d_out"]:
        """Return its part of the gradient of the parameter."""
        return gradient.reshape(-1, gradient.shape[-1])[self.rows.start : self.rows.stop].mT


class Product(NamedTuple):
    """One product with a map: what was read, what was made, and which columns of that are the map's.

    `shape` are the axes that rows had before they were laid below each other.
    """

    read: Float[Tensor, "row d_in"]
    made: Float[Tensor, "*batch d_made"]
    columns: slice
    shape: tuple[int, ...]


def maps_of(model: Model) -> list[MapOfModel]:
    """Return every linear map in the sub-layers of a model's stacks, in the order of the forward pass.

    A parameter that several sub-layers share is there once, under the first one's label.
    """
    return [MapOfModel(_label(one), one.weight, one.rows, one.layer, _side(one)) for one in model.matrices()]


def _label(one: Matrix) -> str:
    return f"{one.layer.label} {_said(one)}"


def _said(one: Matrix) -> str:
    """Return what a matrix is called in its sub-layer: a letter, an end of an MLP, or where its module lies."""
    if one.within in _LETTERS:
        return _LETTERS[one.within]
    which = f"[{one.within}]" if one.within else ""
    if one.layer.attention is not None:
        return f"O{which}" if one.path == "merge.output" else one.path + which
    return (_OF_MLPS.get(one.path, one.path) if isinstance(one.layer.part, MlpLayer) else one.path) + which


def _side(one: Matrix) -> Side:
    layer, path = one.layer, one.path
    d_model, (d_out, d_in) = layer.block.d_model, one.shape
    if one.within in _LETTERS:
        return "inside" if layer.crosses and one.within != "query" else "read"
    if layer.attention is not None:
        reads = path.startswith("projection.") and d_in == d_model and not layer.crosses
        return "write" if path == "merge.output" else "read" if reads else "inside"
    if path.endswith("output") and d_out == d_model:
        return "write"
    return "read" if d_in == d_model else "write" if d_out == d_model else "inside"


class Products(TorchFunctionMode):
    """While it is entered, notes every product with one of some maps.

    What a product makes has a derivative, whether or not the weights are frozen.

    Args:
        maps: Whose products are noted.
    """

    def __init__(self, maps: Sequence[MapOfModel]) -> None:
        super().__init__()
        by_place: dict[int, list[MapOfModel]] = {}
        for one in maps:
            by_place.setdefault(one.weight.data_ptr(), []).append(one)
        self.places = sorted(by_place)
        self.there = [by_place[place] for place in self.places]
        self.found: dict[str, list[Product]] = {one.label: [] for one in maps}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        # a matrix may be some rows of a parameter: it is known by where it lies
        if (func is not linear and func is not F.linear) or not self.places:
            return made
        x, weight = args[0], args[1]
        at = bisect.bisect_right(self.places, weight.data_ptr()) - 1
        first, d_in = self._first_row(at, weight), weight.shape[-1]
        if first is None:
            return made
        made = made if made.requires_grad else made.detach().requires_grad_()
        for one in self.there[at]:
            if first <= one.rows.start and one.rows.stop <= first + len(weight):
                columns = slice(one.rows.start - first, one.rows.stop - first)
                self.found[one.label].append(Product(x.detach().reshape(-1, d_in), made, columns, x.shape[:-1]))
        return made

    def _first_row(self, at: int, weight: Tensor) -> int | None:
        """Return the row of a parameter that a matrix begins with; None if it is no rows of it."""
        if at < 0:
            return None
        whole, d_in = self.there[at][0].weight, weight.shape[-1]
        row, rest = divmod(weight.data_ptr() - self.places[at], weight.element_size() * d_in)
        inside = whole.shape[-1] == d_in and weight.stride() == (d_in, 1) and row * d_in < whole.numel()
        return row if inside and rest == 0 else None


def vjps_of(
    products: Mapping[str, Sequence[Product]], loss: Float[Tensor, ""]
) -> dict[str, tuple[Float[Tensor, "row d_in"], Float[Tensor, "row d_out"]]]:
    """Return what each map read and what came back to it, the rows of all its products below each other."""
    every = {id(one.made): one.made for of_map in products.values() for one in of_map}
    found = torch.autograd.grad(loss, list(every.values()), allow_unused=True)
    back = {key: torch.zeros_like(made) if g is None else g for (key, made), g in zip(every.items(), found)}
    return {
        label: (
            torch.cat([one.read for one in of_map]),
            torch.cat([back[id(one.made)][..., one.columns].flatten(0, -2) for one in of_map]),
        )
        for label, of_map in products.items()
        if of_map
    }
