"""What makes a labelled tensor an array: indexing, arithmetic, comparisons, numpy and torch.

    pattern[0, -1], 2 * pattern, pattern - other, pattern > 0.5, numpy.asarray(pattern), torch.softmax(scores, -1)

Labels stay wherever an entry keeps its place. Axes go by their names, as in xarray: those of one operand are among
those of the other, in any order.
"""

# numpy and torch hand over anything, and torch's stubs leave much of its API untyped
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import itertools
import numbers
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from glassformer.errors import ShapeMismatch, WrongArgument

if TYPE_CHECKING:
    import numpy

    from glassformer.labelled.tensor import Coordinate, RowLabels

# functions of torch whose result has each entry where its operand has it, by name: of entries alone, and along an axis
ENTRYWISE = frozenset(
    re.findall(
        r"\w+",
        """
        abs add and atan2 ceil clamp cos cosh div eq erf exp exp2 expm1 floor floor_divide floordiv fmod ge gelu gt
        isclose isfinite isinf isnan le leaky_relu log log10 log1p log2 logaddexp logical_and logical_not logical_or
        logical_xor logit lt masked_fill maximum minimum mul nan_to_num ne neg or pow reciprocal relu remainder round
        rsqrt rsub sigmoid sign silu sin sinh softplus sqrt square sub tan tanh true_divide where xor
        """,
    )
)
ALONG = frozenset(("cumsum", "log_softmax", "normalize", "softmax", "softmin"))


class LabelledAlgebra(ABC):
    """The base of `Labelled` that behaves as an array."""

    values: Tensor
    axes: tuple[str, ...]
    coords: "Mapping[str, Sequence[Coordinate]]"
    of: str
    rows: "Mapping[str, RowLabels]"
    # numpy's arrays leave arithmetic with one to it
    __array_priority__: ClassVar[float] = 1000.0
    # comparisons are entry by entry, as torch's; as a key it is itself
    __hash__ = object.__hash__

    @abstractmethod
    def select(self, **at: Any) -> Self: ...

    @abstractmethod
    def dim(self, axis: str) -> int: ...

    @abstractmethod
    def blanked(self) -> Self: ...

    @property
    def ndim(self) -> int:
        return self.values.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def __getitem__(self, where: Any) -> Self:
        """Return what is picked along the axes in their order, each as `select` does: `pattern[0, :, -1]`, `[..., 0]`.

        Several indices on two axes combine as a grid.

        Raises:
            ShapeMismatch: There are more places than axes, an index is out of range, or a place is none.
            UnknownAxis: There is no such coordinate.
        """
        asked = list(where) if isinstance(where, tuple) else [where]
        if isinstance(where, LabelledAlgebra) or (isinstance(where, Tensor) and where.dtype == torch.bool):
            if where.ndim > 1:
                raise ShapeMismatch(
                    f"{self!r}: a mask over several axes leaves no axis to label; take numbers, .values[mask.values]."
                )
            asked = [getattr(where, "values", where) if isinstance(where, LabelledAlgebra) else where]
        gaps = [i for i, place in enumerate(asked) if isinstance(place, EllipsisType)]
        if len(gaps) > 1 or len(asked) - len(gaps) > len(self.axes) or any(place is None for place in asked):
            raise ShapeMismatch(
                f"{self!r} takes a place for each of its {len(self.axes)} axes, or fewer, and one `…` for those "
                f"between; found {len(asked)}: {repr(asked)[:60]}."
            )
        if gaps:
            between = len(self.axes) - len(asked) + 1
            asked[gaps[0] : gaps[0] + 1] = [slice(None)] * between
        whole = slice(None)
        chosen = {a: p for a, p in zip(self.axes, asked) if not (isinstance(p, slice) and p == whole)}
        return self.select(**chosen)

    def __len__(self) -> int:
        """Return the entries of the first axis; raises `WrongArgument` for a single number."""
        if not self.axes:
            raise WrongArgument(f"{self!r} is a single number, which has no length.")
        return self.values.shape[0]

    def __iter__(self) -> Iterator[Self]:
        """Go along the first axis; raises `WrongArgument` for a single number."""
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        """Return whether a single entry is true; raises `ShapeMismatch` for several."""
        return bool(self._entry())

    def to_numpy(self) -> "numpy.ndarray[Any, Any]":
        """The numbers as numpy has them, half precision as single; NaN at padding."""
        return wide(self.blanked().values).numpy()

    def __array__(self, dtype: "numpy.dtype[Any] | None" = None, copy: bool | None = None) -> "numpy.ndarray[Any, Any]":
        import numpy

        return numpy.array(self.to_numpy(), dtype) if copy else numpy.asarray(self.to_numpy(), dtype)

    def __dlpack__(self, **how: Any) -> Any:
        """The numbers as other array libraries take them, and `torch.as_tensor`: half precision too, NaN at padding."""
        return self.blanked().values.detach().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self.values.__dlpack_device__()

    def __getattr__(self, name: str) -> Any:
        """Raise `AttributeError` for what there is none of; what a tensor has is said to be there."""
        there = f": take it of the numbers, .values.{name}" if hasattr(Tensor, name) else "."
        raise AttributeError(f'a labelled tensor has no "{name}"{there}', name=name, obj=self)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch: labels stay where entries do, anything else is of the bare numbers.

        Bare numbers are NaN at padding. torch takes axes as numbers, `scores.dim("key")`.
        """
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "").strip("_")
        if name not in ENTRYWISE | ALONG or given.get("out") is not None:
            return func(*_bare(list(args)), **_bare(given))
        # what stands at padding would count in the sums along an axis
        args = [one.blanked() if name in ALONG and isinstance(one, LabelledAlgebra) else one for one in args]
        return _entrywise(lambda *operands: func(*operands, **_bare(given)), *args)

    def _entry(self) -> Tensor:
        if self.axes:
            raise ShapeMismatch(
                f"{self!r} is no single number: it has axes {' '.join(self.axes)}; select one entry, "
                f".select({', '.join(f'{axis}=…' for axis in self.axes)})."
            )
        return self.values

    def __matmul__(self, other: Any) -> Tensor:
        own = self.blanked().values
        return torch.matmul(own, _factor(other, own))

    def __rmatmul__(self, other: Any) -> Tensor:
        own = self.blanked().values
        return torch.matmul(_factor(other, own), own)

    def __neg__(self) -> Self:
        return _entrywise(operator.neg, self)

    def __abs__(self) -> Self:
        return _entrywise(operator.abs, self)

    def __invert__(self) -> Self:
        return _entrywise(operator.invert, self)

    def __add__(self, other: Any) -> Self:
        return self._with(operator.add, other)

    def __radd__(self, other: Any) -> Self:
        return self._with(operator.add, other, turned=True)

    def __sub__(self, other: Any) -> Self:
        return self._with(operator.sub, other)

    def __rsub__(self, other: Any) -> Self:
        return self._with(operator.sub, other, turned=True)

    def __mul__(self, other: Any) -> Self:
        return self._with(operator.mul, other)

    def __rmul__(self, other: Any) -> Self:
        return self._with(operator.mul, other, turned=True)

    def __truediv__(self, other: Any) -> Self:
        return self._with(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._with(operator.truediv, other, turned=True)

    def __floordiv__(self, other: Any) -> Self:
        return self._with(operator.floordiv, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._with(operator.floordiv, other, turned=True)

    def __mod__(self, other: Any) -> Self:
        return self._with(operator.mod, other)

    def __rmod__(self, other: Any) -> Self:
        return self._with(operator.mod, other, turned=True)

    def __pow__(self, other: Any) -> Self:
        return self._with(operator.pow, other)

    def __rpow__(self, other: Any) -> Self:
        return self._with(operator.pow, other, turned=True)

    def __and__(self, other: Any) -> Self:
        return self._with(operator.and_, other)

    def __rand__(self, other: Any) -> Self:
        return self._with(operator.and_, other, turned=True)

    def __or__(self, other: Any) -> Self:
        return self._with(operator.or_, other)

    def __ror__(self, other: Any) -> Self:
        return self._with(operator.or_, other, turned=True)

    def __xor__(self, other: Any) -> Self:
        return self._with(operator.xor, other)

    def __rxor__(self, other: Any) -> Self:
        return self._with(operator.xor, other, turned=True)

    def __lt__(self, other: Any) -> Self:
        return self._with(operator.lt, other)

    def __le__(self, other: Any) -> Self:
        return self._with(operator.le, other)

    def __gt__(self, other: Any) -> Self:
        return self._with(operator.gt, other)

    def __ge__(self, other: Any) -> Self:
        return self._with(operator.ge, other)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]  # entry by entry, as arrays compare
        return self._with(operator.eq, other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]  # entry by entry, as arrays compare
        return self._with(operator.ne, other)

    def _with(self, function: Callable[[Any, Any], Any], other: Any, *, turned: bool = False) -> Any:
        if not isinstance(other, LabelledAlgebra | Tensor | numbers.Number) and not hasattr(other, "__array__"):
            return NotImplemented
        return _entrywise(function, other, self) if turned else _entrywise(function, self, other)


def wide(values: Tensor) -> Tensor:
    """Values as array libraries take them: on the CPU, no half precision, nothing left to conjugate or negate."""
    values = values.detach().cpu().resolve_conj().resolve_neg()
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _entrywise(function: Callable[..., Any], *operands: Any) -> Any:
    """Return what a function of entries makes of operands, with the labels that they agree on."""
    labelled = [one for one in operands if isinstance(one, LabelledAlgebra)]
    whole = max(labelled, key=lambda one: len(one.axes))
    for other in labelled:
        _check_axes(whole, other)
    found = function(*(_in_order(one, whole) for one in operands))
    if not isinstance(found, Tensor):
        return found
    coords = {
        axis: labels
        for one in labelled
        for axis, labels in one.coords.items()
        if all(list(labels) == list(o.coords.get(axis, labels)) for o in labelled)
    }
    of = whole.of if all(one.of == whole.of for one in labelled) else ""
    return type(whole)(found, whole.axes, coords, of, _rows(labelled))  # type: ignore[call-arg]


def _check_axes(whole: LabelledAlgebra, other: LabelledAlgebra) -> None:
    own = dict(zip(whole.axes, whole.values.shape))
    wrong = [f"{axis}={n}" for axis, n in zip(other.axes, other.values.shape) if own.get(axis) != n]
    if wrong:
        raise ShapeMismatch(
            f"{other!r} does not fit {whole!r}: the latter has no {' and no '.join(wrong)}.\n"
            "    Axes go by their names, and have one size: select a part of one, or take .values."
        )


def _in_order(operand: Any, whole: LabelledAlgebra) -> Any:
    """Return an operand's numbers with the axes of another in their order, of one entry where it has none of a name."""
    if isinstance(operand, LabelledAlgebra):
        present = [axis for axis in whole.axes if axis in operand.axes]
        values = operand.values.permute([operand.axes.index(axis) for axis in present])
        return values[tuple(slice(None) if axis in present else None for axis in whole.axes)]
    if not isinstance(operand, Tensor) and not hasattr(operand, "__array__"):
        return operand
    values = operand if isinstance(operand, Tensor) else torch.as_tensor(operand, device=whole.values.device)
    behind = whole.values.shape[whole.ndim - values.ndim :] if values.ndim <= whole.ndim else ()
    if len(behind) != values.ndim or any(n not in (1, size) for n, size in zip(values.shape, behind)):
        raise ShapeMismatch(
            f"a tensor of shape {tuple(values.shape)} does not fit {whole!r}.\n"
            "    Without names it is as long as the last axes, or 1; for anything else take .values."
        )
    return values


def _rows(labelled: Sequence[LabelledAlgebra]) -> "dict[str, RowLabels]":
    """Return the labels that differ from row to row, as places where operands call them differently."""
    found: dict[str, RowLabels] = {}
    for one in labelled:
        for axis, by_row in one.rows.items():
            other = found.setdefault(axis, by_row)
            if _real(other) != _real(by_row):
                raise ShapeMismatch(
                    f'rows of the two batches differ in length along "{axis}": padding stands elsewhere.'
                )
            if [list(row) for row in other] != [list(row) for row in by_row]:
                found[axis] = [_counted(row) for row in by_row]
    return found


def _real(rows: "RowLabels") -> list[list[bool]]:
    return [[label is not None for label in row] for row in rows]


def _counted(row: "Sequence[Coordinate | None]") -> "list[Coordinate | None]":
    count = itertools.count()
    return [None if label is None else next(count) for label in row]


def _factor(operand: Any, beside: Tensor) -> Any:
    """Return a factor of a product of matrices as a tensor, beside the other one."""
    array = hasattr(operand, "__array__") and not isinstance(operand, Tensor | LabelledAlgebra)
    return torch.as_tensor(operand, device=beside.device) if array else _bare(operand)


def _bare(given: Any) -> Any:
    """Return what was given with the numbers of labelled tensors in their place, at any depth of lists."""
    if isinstance(given, LabelledAlgebra):
        return given.blanked().values
    if isinstance(given, dict):
        return {name: _bare(one) for name, one in given.items()}
    return type(given)(map(_bare, given)) if type(given) in (list, tuple) else given
