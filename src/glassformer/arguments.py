"""Arguments as callers give them, checked where a public function begins: one door for all of them.

    @checked
    def head_scores(model: ModelLike, *, seed: int = 0, unit: Count = 25) -> ...: ...

    head_scores(model, unit="many")      WrongArgument: head_scores: unit= takes a whole number, 1 or more; found ...

What is asked is what the signature says. Numbers of other libraries are numbers, arrays are the lists they hold; what a
signature leaves open (`Any`) is the function's own to judge, and so is a missing or an unknown argument, Python's.
"""

import functools
import inspect
import math
import operator
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from glassformer.docstrings import docstring_of
from glassformer.errors import WrongArgument, nearest

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

LARGEST = 2**31 - 1  # of anything that is counted


@dataclass(frozen=True)
class Within:
    """Bounds of a number.

    Args:
        low: The least there is.
        high: The largest there is; at `LARGEST` and above it goes unsaid.
        above: Whether `low` itself is not allowed.
        below: Whether `high` itself is not allowed.
    """

    low: int | float
    high: int | float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: int | float) -> bool:
        least = self.low < value if self.above else self.low <= value
        return least and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low}" if self.above else f"{self.low} or more"
        return f"{'above ' if self.above else ''}{self.low} to {'below ' if self.below else ''}{self.high}"

    def refusal(self, value: int | float) -> str:
        """Return what a number has to be that is not within: `must be at least 1`."""
        if self.high < LARGEST:
            return f"must be in {'(' if self.above else '['}{self.low}, {self.high}{')' if self.below else ']'}"
        if value > self.low:
            return f"must be at most {self.high}"
        if self.low == 0:
            return "must be positive" if self.above else "must not be negative"
        return f"must be {'above' if self.above else 'at least'} {self.low}"


class _Some:
    """Of a list: it has an entry."""

    def __contains__(self, value: Any) -> bool:
        return not hasattr(value, "__len__") or len(value) > 0

    def __str__(self) -> str:
        return "one entry or more"


# how many of something there are, none included or not
Natural = Annotated[int, Within(0, LARGEST)]
Count = Annotated[int, Within(1, LARGEST)]
Pixels = Annotated[int, Within(100, 10_000)]  # of a page's height
Several = Annotated[Sequence[T], _Some()]
Counts = Annotated[tuple[Count, ...], _Some()]
# how many different ones there are of what a vocabulary has a token for, or a row may hold
Kinds = Annotated[int, Within(1, 2**20)]
# how much of something there is, of whatever size, finite, or more than nothing
Amount = Annotated[float, Within(0)]
FiniteAmount = Annotated[float, Within(0, sys.float_info.max)]
Positive = Annotated[float, Within(0, sys.float_info.max, above=True)]
# a share of a whole: of any size, not nothing, or not all of it, such as what is dropped
Share = Annotated[float, Within(0, 1)]
PositiveShare = Annotated[float, Within(0, 1, above=True)]
Rate = Annotated[float, Within(0, 1, below=True)]
Exponent = Annotated[float, Within(-100, 100)]

# what a 64-bit integer holds: torch takes no others
_WHOLE = Within(-(2**63), 2**63 - 1)
_SHOWN = 60


def checked(function: F) -> F:
    """A function, or a dataclass, that refuses arguments its signature does not allow by `WrongArgument`.

    Its docstring describes parameters that mean the same everywhere, if it leaves them out.
    """
    if isinstance(function, type):
        made: Any = function
        made.__init__ = checked(made.__init__)
        return cast(F, made)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        check(function, args, kwargs)
        return function(*args, **kwargs)

    called.__doc__ = docstring_of(function)
    return cast(F, called)


def check(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `WrongArgument` if an argument is not what the signature of a function says."""
    signature = _signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        # what is missing or unknown, Python says itself at the call
        return
    for name, value in given.items():
        asked = signature.parameters[name]
        rows = {asked.VAR_POSITIONAL: tuple, asked.VAR_KEYWORD: dict.values}.get(asked.kind)
        for one in [value] if rows is None else rows(value):
            place = name if rows is not None or asked.kind == asked.POSITIONAL_ONLY else f"{name}="
            if kind := not_dense(one):
                raise WrongArgument(
                    f"{_name(function)}: {place} is a tensor that is {kind}. Give a dense one, with a number in each "
                    "place."
                )
            if not fits(one, asked.annotation):
                raise WrongArgument(
                    f"{_name(function)}: {place} takes {described(asked.annotation)}; found {shown(one)}."
                    f"{near(one, asked.annotation)}"
                )


def not_dense(value: Any) -> str:
    """Return why a tensor has no entries that can be looked at, in a word; empty for any other tensor, or value.

    This module does not load PyTorch: without it there is no tensor.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return ""
    if value.is_quantized:
        return "quantised"
    if value.is_meta:
        return "without numbers (meta)"
    if value.is_nested:
        return "nested"
    return "" if value.layout == torch.strided else "sparse"


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation asks for, as far as that can be told without using it up."""
    plain = _PLAIN.get(hint) if isinstance(hint, type) else None
    if plain is not None:
        return plain(value)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is Annotated:
        return fits(value, inner[0]) and all(
            value in bounds for bounds in inner[1:] if isinstance(bounds, Within | _Some)
        )
    if origin is not None:
        return _fits_generic(value, origin, inner)
    if hint is None:
        return value is None
    if not isinstance(hint, type) or hint is inspect.Parameter.empty:
        return True
    try:
        return isinstance(value, hint) and not _holds_nan(value, hint)
    except TypeError:
        # a protocol that cannot be asked for
        return True


def is_bounded(hint: Any) -> bool:
    """Whether an annotation bounds numbers that it speaks of."""
    return next(_bounds(hint), None) is not None


def refusal(value: Any, hint: Any) -> str:
    """Return what a value has to be that does not fit a bounded annotation: `must be at least 1`, if it is a number."""
    bounds, entries = next(_bounds(hint)), value if isinstance(value, tuple | list) else (value,)
    if any(isinstance(one, float) and not math.isfinite(one) for one in entries):
        return "must be a finite number"
    wrong = [one for one in entries if _is_number(one) and one not in bounds]
    return bounds.refusal(wrong[0]) if wrong else f"must be {described(hint)}"


def _bounds(hint: Any) -> Iterator[Within]:
    if isinstance(hint, Within):
        yield hint
    for inner in get_args(hint):
        yield from _bounds(inner)


def described(hint: Any) -> str:
    """Return an annotation in words: what would work."""
    if isinstance(hint, type) and hint in _WORDS:
        return _WORDS[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        words = list(dict.fromkeys(described(one) for one in inner if one is not type(None)))
        words += ["None"] if type(None) in inner else []
        return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    if origin is Literal:
        return " or ".join(repr(one) for one in inner)
    if origin is Annotated:
        return ", ".join([described(inner[0]), *(str(one) for one in inner[1:] if isinstance(one, Within | _Some))])
    if origin is not None and issubclass(origin, Mapping):
        return f"a mapping from {described(inner[0])} to {described(inner[1])}"
    if origin is not None and issubclass(origin, Iterable) and inner:
        return f"a list ({', '.join(described(one) for one in inner if one is not ...)})"
    if origin is Callable or getattr(origin, "__name__", "") == "Callable":
        return "a function"
    if hint is None or hint is type(None):
        return "None"
    if hasattr(hint, "dim_str"):
        kind = hint.__name__.partition("[")[0].lower()
        return f"a tensor ({kind}) of axes `{hint.dim_str.strip()}`"
    return f"a {getattr(hint, '__name__', hint)}"


def _fits_generic(value: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    if not isinstance(origin, type):
        return True
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if origin.__name__ == "Callable":
        return callable(value)
    if not issubclass(origin, Iterable):
        return isinstance(value, origin)
    if hasattr(value, "tolist") and (origin is Iterable or type(value).__module__ == "numpy"):
        value = value.tolist()
    if isinstance(value, str | Mapping) or (isinstance(value, bytes) and inner[:1] != (int,)):
        # what may hold anything is judged by whom it is given to
        return inner[0] is Any and isinstance(value, origin)
    if issubclass(origin, tuple) and inner[-1:] != (...,):
        return isinstance(value, tuple | list) and len(value) == len(inner) and all(map(fits, value, inner))
    if not isinstance(value, tuple | list if issubclass(origin, tuple) else origin):
        return False
    # what is read once, such as a generator, is left to its reader
    return not isinstance(value, list | tuple | set | frozenset) or all(_fits_entry(one, inner[0]) for one in value)


def _fits_entry(value: Any, hint: Any) -> bool:
    # a list of truths where indices are due is a mask
    return fits(value, hint) or (_is_truth(value) and int in (hint, *get_args(hint)))


def _is_whole(value: Any) -> bool:
    try:
        return not _is_truth(value) and operator.index(value) in _WHOLE
    except (TypeError, RuntimeError):
        return False


def _is_number(value: Any) -> bool:
    try:
        return not _is_truth(value) and (value in _WHOLE if isinstance(value, int) else not math.isnan(value))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def _is_truth(value: Any) -> bool:
    # of other libraries: numpy's, and tensors of one
    return isinstance(value, bool) or (
        str(getattr(value, "dtype", "")).endswith("bool") and not getattr(value, "ndim", 1)
    )


_PLAIN: Mapping[type, Callable[[Any], bool]] = {int: _is_whole, float: _is_number, bool: _is_truth}
_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", os.PathLike: "a path"}


def _name(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__").rpartition(">.")[2]


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _holds_nan(value: Any, hint: Any) -> bool:
    """Whether a tensor that an annotation describes by its axes holds what is no number."""
    return hasattr(hint, "dim_str") and value.is_floating_point() and bool(value.isnan().any())


def shown(value: Any) -> str:
    """Return what a caller gave in words: a tensor by its type and shape, anything else as it prints, cut short."""
    # a class describes the shapes of its tensors and has none
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type):
        nan = ", with NaN" if hasattr(value, "isnan") and bool(value.isnan().any()) else ""
        kind = str(value.dtype).removeprefix("torch.")
        return f"a {type(value).__name__} of {kind}, shape {tuple(value.shape)}{nan}"
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return text if value is None else f"{text} ({type(value).__name__})"


def near(value: Any, hint: Any) -> str:
    """Return the nearest of the words that may be given, for a word that may not."""
    return nearest(value, _words(hint)) if isinstance(value, str) else ""


def has_words(hint: Any) -> bool:
    """Whether an annotation lists words, by themselves or beside something else."""
    return bool(_words(hint))


def _words(hint: Any) -> list[str]:
    inner = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [one for some in inner if get_origin(some) is Literal for one in get_args(some) if isinstance(one, str)]
