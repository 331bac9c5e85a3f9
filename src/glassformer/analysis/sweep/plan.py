"""Plans: what every row of a sweep changes, and the axes the rows are laid out along.

clean = Donor("The cat sat")
plan = grid(lambda layer, pos: [Set(f"blocks.{layer}.resid_pre", clean, at=At(pos=pos))], layer=range(4), pos=range(9))
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from glassformer.arguments import checked
from glassformer.errors import ShapeMismatch
from glassformer.labelled import Coordinate, Labelled
from glassformer.trace import Edit

EditLike = Edit | tuple[str, Callable[[Tensor], Tensor]]


@dataclass(frozen=True, eq=False)
class Plan:
    """Rows of edits, laid out along named axes.

    Args:
        rows: One list of edits per row, in the order of the axes (the last one fastest). `Take(…, row=i)` in a row
            copies from what row `i` of the plan has at that site.
        axes: Coordinates by axis; their number multiplies to that of the rows.
    """

    rows: Sequence[Sequence[EditLike]]
    axes: Mapping[str, Sequence[Coordinate]]

    def __post_init__(self) -> None:
        sizes = {axis: len(labels) for axis, labels in self.axes.items()}
        if math.prod(sizes.values()) != len(self.rows):
            raise ShapeMismatch(f"plan: {len(self.rows)} rows do not fill axes {sizes}.")
        if not self.rows:
            raise ShapeMismatch("plan: there are no rows; give at least one list of edits.")

    @classmethod
    def of(cls, plan: "Plan | Sequence[Sequence[EditLike]]") -> "Plan":
        """A plan as it is, and a plain list of rows as a plan with the one axis `row`."""
        return plan if isinstance(plan, Plan) else cls(plan, {"row": range(len(plan))})


@checked
def grid(edits: Callable[..., Sequence[EditLike]], **axes: Iterable[Any]) -> Plan:
    """Plan with a row for every combination of coordinates.

    Args:
        edits: Called with one coordinate per axis, by name; returns that row's edits.
        axes: Coordinates by axis, the slowest first.
    """
    lists = {axis: list(labels) for axis, labels in axes.items()}
    rows = [list(edits(**dict(zip(lists, point)))) for point in itertools.product(*lists.values())]
    return Plan(rows, {axis: [x if isinstance(x, (int, float)) else str(x) for x in lists[axis]] for axis in lists})


@dataclass(eq=False)
class Donor(Mapping[str, Tensor | Labelled]):
    """Another run to copy from, made by the sweep: once, reading just the sites that edits copy.

    Args:
        inputs: What the model reads, as in `run`; as many rows as the base, or one.
        target: Text or ids of the decoder, for an encoder-decoder.
        edit: Edits of that run.
    """

    inputs: Any
    target: Any = None
    edit: Sequence[EditLike] = ()
    found: dict[str, Tensor | Labelled] = field(default_factory=dict[str, Tensor | Labelled], repr=False)

    def __getitem__(self, name: str) -> Tensor | Labelled:
        return self.found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)
