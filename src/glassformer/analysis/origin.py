"""What a result is of, found among the arguments of the analysis that returned it."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from glassformer.labelled import Result
from glassformer.provenance import Binding, Bound, Note, of_runs

# parameters by which analyses take what the model reads
INPUTS = frozenset(
    ("text", "target", "inputs", "ids", "base", "batch", "batches", "clean", "corrupt", "pairs", "prompts", "texts")
)

# by which they take the folders of training runs
RUNS = ("folder", "folders")


def bound(
    result: Result, analysis: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], told: Iterable[Note]
) -> Result:
    """Return a result that says what it is of, and what must be known of what it was computed from.

    Args:
        result: What the analysis returned.
        analysis: The function.
        args: What it was given,
        kwargs: and by name.
        told: Notes on what it read on the way.
    """
    asked = _signature(analysis).bind(*args, **kwargs)
    asked.apply_defaults()
    inputs = [value for name, value in asked.arguments.items() if name in INPUTS and value is not None]
    seed = asked.arguments.get("seed")
    values = list(_within(asked.arguments.values()))
    subject = next((value for value in values if _is_subject(value)), None)
    earlier = [note for value in values if _carries(value) for note in value.notes]
    found = result.noted(*earlier, *told)
    if subject is not None:
        return found.bound(_binding(analysis.__name__, subject, inputs, seed))
    runs = [_run_name(value) for name in RUNS for value in _within([asked.arguments.get(name)]) if _is_run(value)]
    return found.bound(of_runs(analysis.__name__, runs, inputs, seed)) if runs else found


@functools.cache
def _signature(analysis: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(analysis)


def _within(values: Iterable[Any]) -> Iterator[Any]:
    """Yield arguments, and what stands in those that are lists."""
    for value in values:
        yield value
        if isinstance(value, list | tuple):
            yield from value


def _carries(value: Any) -> bool:
    """Whether something is a run or a result, which knows what it is of."""
    return isinstance(value, Result) or hasattr(value, "token_rows")


def _is_subject(value: Any) -> bool:
    if _carries(value):
        return _bound_of(value) is not None
    return isinstance(value, nn.Module) or isinstance(getattr(value, "model", None), nn.Module)


def _is_run(value: Any) -> bool:
    return isinstance(getattr(value, "folder", value), str | Path)


def _run_name(value: Any) -> str:
    return Path(getattr(value, "folder", value)).name


def _bound_of(value: Any) -> Bound | None:
    return value.binding if isinstance(value, Result) else value.bound


def _binding(name: str, subject: Any, inputs: Sequence[Any], seed: Any) -> Bound:
    drawn = seed if isinstance(seed, int) else None
    if _carries(subject):
        known = _bound_of(subject)
        assert known is not None, "what has none is no subject"
        return known.of(name, inputs, drawn)
    return Binding(name, subject if isinstance(subject, nn.Module) else subject.model, inputs, drawn)
