"""Gradients of a metric at what receivers read and at what senders write; times differences of writes, edge scores.

One pass reads the sites of what every receiver reads, and one backward pass comes by them from last to first. The
gradient at a site is multiplied by the differences of writes and let go as soon as it is there: all of them at once
would be the largest thing in memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from glassformer.analysis.circuits._circuit_runs import CircuitRuns
from glassformer.analysis.circuits._cut_edges import normed
from glassformer.errors import AnalysisUnavailable
from glassformer.models.evaluation import evaluating, require_gradients
from glassformer.trace import Tape

GradientAt = Literal["clean", "corrupt", "inputs", "activations"]
Report = Callable[[int, int], None] | None


class Point(NamedTuple):
    """Where gradients are taken: what enters the stream, and an encoder's output."""

    stream: Float[Tensor, "batch pos d_model"]
    source: Float[Tensor, "batch key d_model"] | None


def edge_scores(
    runs: CircuitRuns, gradient_at: GradientAt = "clean", steps: int = 5, report: Report = None
) -> Float[Tensor, "batch receiver sender"]:
    """Return the first-order effect of every edge for every prompt."""
    scores = runs.clean.writes.new_zeros(runs.batch, *runs.graph.allowed.values.shape)
    points = points_of(runs, gradient_at, steps)
    for done, point in enumerate(points):
        _add_scores(runs, point, scores)
        if report is not None:
            report(done + 1, len(points))
    return scores / len(points)


def points_of(runs: CircuitRuns, gradient_at: GradientAt, steps: int) -> list[Point]:
    """Return where gradients are taken; several points are on the way from the corrupt to the clean inputs."""
    clean, corrupt = (Point(found.sites[runs.read_at(0)], found.source) for found in (runs.clean, runs.corrupt))
    if gradient_at in ("clean", "corrupt"):
        return [clean if gradient_at == "clean" else corrupt]
    if gradient_at != "inputs":
        raise AnalysisUnavailable(
            f'attribute_edges: gradient_at="{gradient_at}" is for nodes; edges take clean, corrupt or inputs.'
        )

    def between(share: float) -> Point:
        stream = corrupt.stream + share * (clean.stream - corrupt.stream)
        if clean.source is None or corrupt.source is None:
            return Point(stream, None)
        return Point(stream, corrupt.source + share * (clean.source - corrupt.source))

    return [between(step / steps) for step in range(1, steps + 1)]


def node_gradients(runs: CircuitRuns, point: Point) -> tuple[dict[int, Tensor], Tensor | None]:
    """Return the metric's gradients at what each sub-layer writes, -1 for what enters the stream, and at a source."""
    names = {i: runs.out(i) for i in range(len(runs.steps))}
    with _differentiable(runs, point, list(names.values())) as (tape, begun, value):
        wanted = [begun.stream, *(tape.values[name] for name in names.values())]
        wanted += [] if begun.source is None else [begun.source]
        # a mechanism may not let the metric depend on all of them
        raw = torch.autograd.grad(value, wanted, allow_unused=True)
    filled = [torch.zeros_like(at) if found is None else found for at, found in zip(wanted, raw)]
    return dict(enumerate(filled[: len(names) + 1], -1)), None if begun.source is None else filled[-1]


def require_gradient(runs: CircuitRuns, value: Tensor) -> None:
    """Raise `AnalysisUnavailable` if a metric cannot be differentiated."""
    if not value.requires_grad:
        raise AnalysisUnavailable(
            f'attribution patching needs a metric that can be differentiated; "{runs.metric.name}" cannot.\n'
            "    Logit difference, log-probability and KL divergence can; patching needs no gradients."
        )


@contextmanager
def constant(model: nn.Module) -> Iterator[None]:
    """Take no gradients by parameters, whose products with what is read would all be kept.

    That is a property of this thread's pass: the parameters stay as they are, for whoever trains them meanwhile.
    """
    require_gradients(model, "attribution patching")
    with _ConstantParameters():
        yield


class _ConstantParameters(TorchFunctionMode):
    """Hands every operation the values of parameters, detached, in their place."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*map(_detached, args), **{name: _detached(value) for name, value in (kwargs or {}).items()})


def _detached(value: Any) -> Any:
    if isinstance(value, nn.Parameter):
        return value.detach()
    # what is concatenated or multiplied comes in lists
    return type(value)(map(_detached, value)) if type(value) in (list, tuple) else value


@contextmanager
def _differentiable(runs: CircuitRuns, point: Point, read: Sequence[str]) -> Iterator[tuple[Tape, Point, Tensor]]:
    """Run from a point on; yield the tape, the point's tensors, and the metric, summed over prompts."""
    begun = Point(*(None if value is None else value.detach().clone().requires_grad_() for value in point))  # type: ignore[arg-type]
    with evaluating(runs.model), constant(runs.model), torch.enable_grad():
        tape = Tape(runs.model, read, grad=True)
        value = runs.measure(runs.passed(0, begun.stream, begun.source, 1, tape)).sum()
        require_gradient(runs, value)
        yield tape, begun, value


def _add_scores(runs: CircuitRuns, point: Point, scores: Float[Tensor, "batch receiver sender"]) -> None:
    """Add the first-order effects of all edges, with gradients taken at one point."""
    sites = {runs.site_of(rows[0]): rows for rows in runs.groups.values()}
    behind = [name for name in runs.clean.sites if name not in sites]
    with _differentiable(runs, point, [*sites, *behind]) as (tape, _, value):
        norms = _Behind(runs, {name: found.detach() for name, found in tape.values.items() if name not in sites})
        for name, rows in sites.items():
            at = tape.values.pop(name)
            if at.requires_grad:
                at.register_hook(_scorer(runs, rows, norms, scores))
        # not the gradients of what was read, but only the way past them
        value.backward()


def _scorer(
    runs: CircuitRuns, rows: Sequence[int], norms: "_Behind", scores: Float[Tensor, "batch receiver sender"]
) -> Callable[[Tensor], None]:
    """Return what is done with the gradient at the site of some receivers."""
    first, last = rows[0], rows[-1] + 1
    assert list(rows) == list(range(first, last)), "receivers of one kind follow each other"

    def score(gradient: Tensor) -> None:
        gradient = gradient if gradient.ndim == 4 else gradient[:, None]
        receiver = runs.graph.receivers[first]
        if receiver.source:
            assert runs.corrupt.source is not None and runs.clean.source is not None
            difference = (runs.corrupt.source - runs.clean.source)[:, None]
            scores[:, first:last, runs.sources[0], None] += _products(gradient, difference)
            return
        for begun, stop, written in norms.back(runs.depth(first), gradient):
            columns = slice(runs.columns[begun].start, runs.columns[stop].stop)
            for sign, found in ((1, runs.corrupt), (-1, runs.clean)):
                scores[:, first:last, columns] += sign * _products(written, found.writes[:, columns])

    return score


def _products(
    gradient: Float[Tensor, "batch receiver pos d_model"], writes: Float[Tensor, "batch sender pos d_model"]
) -> Float[Tensor, "batch receiver sender"]:
    return gradient.flatten(2) @ writes.flatten(2).mT


class _Behind:
    """The way back from a receiver to senders, through the norms behind sub-layers, in one pass."""

    def __init__(self, runs: CircuitRuns, values: dict[str, Tensor]) -> None:
        self.runs, self.values = runs, values

    def back(self, depth: int, gradient: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Yield, from the last on, runs of steps and the gradient at what they write as the receiver sees it."""
        steps, stop = self.runs.steps, depth - 1
        for j in range(depth - 1, -1, -1):
            step = steps[j]
            if not step.behind:
                continue
            if j < stop:
                yield j + 1, stop, gradient
            total = self.values[self.runs.out(j)]
            if step.stream_norm is not None:
                remainder = step.remainder(self.values[self.runs.read_at(j)])
                gradient = _pulled_back(step.stream_norm, remainder + normed(step.write_norm, total), gradient)
            yield j, j, gradient if step.write_norm is None else _pulled_back(step.write_norm, total, gradient)
            gradient, stop = step.remainder(gradient), j - 1
        yield -1, stop, gradient


def _pulled_back(norm: nn.Module, before: Tensor, gradient: Tensor) -> Tensor:
    with torch.enable_grad():
        x = before[:, None].expand_as(gradient).clone().requires_grad_()
        (through,) = torch.autograd.grad(normed(norm, x), x, gradient)  # type: ignore[arg-type]
    return through
