"""Gradients of a metric at what receivers read and at what senders write; times differences of writes, edge scores.

One backward pass gives gradients at queries, keys, values and MLP inputs; those at each receiver's copy of the stream
are made from them a few receivers at a time, since all of them at once would be the largest thing in memory.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis._run import evaluating
from glassformer.analysis.circuits._passes import Pass
from glassformer.analysis.circuits._receivers import normed, project
from glassformer.analysis.circuits._wires import Leaves, Wires
from glassformer.errors import AnalysisUnavailable

GradientAt = Literal["clean", "corrupt", "inputs", "activations"]
Report = Callable[[int, int], None] | None


def edge_scores(
    wires: Wires, gradient_at: GradientAt = "clean", steps: int = 5, report: Report = None
) -> Float[Tensor, "batch receiver sender"]:
    """Return the first-order effect of every edge for every prompt."""
    places = _receiver_places(wires)
    scores = wires.clean.streams[0].new_zeros(wires.batch, *wires.graph.allowed.values.shape)
    points = points_of(wires, gradient_at, steps)
    for done, point in enumerate(points):
        found, passed = gradients(wires, point, places)
        for i, slot in places:
            gradient = found[i, slot]
            rows = [r for r in wires.rows[i] if wires.graph.receivers[r].slot == slot]
            _score(wires, passed, i, rows, gradient[0] if slot in ("in", "logits") else gradient, scores)
        if report is not None:
            report(done + 1, len(points))
    return scores / len(points)


def _receiver_places(wires: Wires) -> list[tuple[int, str]]:
    return list(dict.fromkeys((receiver.step, receiver.slot) for receiver in wires.graph.receivers))


def points_of(wires: Wires, gradient_at: GradientAt, steps: int) -> list[Pass]:
    """Return passes that have only begun: what enters the stream, and an encoder's output."""
    if gradient_at in ("clean", "corrupt"):
        return [(wires.clean if gradient_at == "clean" else wires.corrupt).upto(0)]
    if gradient_at != "inputs":
        raise AnalysisUnavailable(
            f'attribute_edges: gradient_at="{gradient_at}" is for nodes; edges take clean, corrupt or inputs.'
        )
    clean, corrupt = wires.clean, wires.corrupt

    def between(share: float, a: Tensor | None, b: Tensor | None) -> Tensor | None:
        return None if a is None or b is None else b + share * (a - b)

    points: list[Pass] = []
    for step in range(1, steps + 1):
        entry = between(step / steps, clean.entry, corrupt.entry)
        stream = between(step / steps, clean.streams[0], corrupt.streams[0])
        assert entry is not None and stream is not None
        points.append(Pass(entry, between(step / steps, clean.source, corrupt.source), [stream]))
    return points


def gradients(
    wires: Wires, point: Pass, places: Sequence[tuple[int, str]]
) -> tuple[dict[tuple[int, str], Tensor], Pass]:
    """Run from a point on and return the metric's gradients at some places, and the pass."""
    with evaluating(wires.model), torch.no_grad():
        shapes = _shapes(wires, places)
    leaves = {place: torch.zeros(shape, dtype=point.streams[0].dtype, device=point.streams[0].device).requires_grad_()
              for place, shape in shapes.items()}  # fmt: skip
    source = None if point.source is None else point.source.detach().requires_grad_()
    begun = dataclasses.replace(point, source=source)
    with evaluating(wires.model), torch.enable_grad():
        found = wires.run(prefix=begun, leaves=leaves, start=0)
        value = wires.measure(found).sum()
        if not value.requires_grad:
            raise AnalysisUnavailable(
                f'attribution patching needs a metric that can be differentiated; "{wires.metric.name}" cannot.\n'
                "    Logit difference, log-probability and KL divergence can; patching needs no gradients."
            )
        wanted = list(leaves.values()) + ([] if source is None else [source])
        # a mechanism may not let the metric depend on all of them: a value that nobody reads has no gradient
        raw = torch.autograd.grad(value, wanted, allow_unused=True)
    filled = [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(wanted, raw)]
    at = dict(zip(leaves, filled))
    if source is not None:
        found.source = source.detach()
        at[-1, "source"] = filled[-1]
    found.streams = [stream.detach() for stream in found.streams]
    found.totals = [total.detach() for total in found.totals]
    return at, found


def _shapes(wires: Wires, places: Iterable[tuple[int, str]]) -> dict[tuple[int, str], tuple[int, ...]]:
    stream = tuple(wires.clean.streams[0].shape)
    found: dict[tuple[int, str], tuple[int, ...]] = {}
    for i, slot in places:
        if slot in ("in", "logits", "out"):
            found[i, slot] = stream
            continue
        part = wires.steps[i].attention
        assert part is not None, "only attention has such receivers"
        dims, batch, length, streams = part.dims, *stream[1:3], part.mixer.traits.streams
        if wires.steps[i].crosses and slot in ("k", "v"):
            assert wires.clean.source is not None
            length = wires.clean.source.shape[1]
        heads = dims.n_heads if slot in ("q", "gate") else dims.n_kv_heads
        inner = (streams,) if streams > 1 and slot in ("q", "k") else ()
        found[i, slot] = (batch, *inner, heads, length, dims.d_head if slot in ("q", "k") else dims.d_value)
    return found


def _score(wires: Wires, found: Pass, i: int, rows: list[int], gradient: Tensor, scores: Tensor) -> None:
    """Add the scores of all edges into receivers of one step and kind, some receivers at a time."""
    last = i == len(wires.steps)
    receiver = wires.graph.receivers[rows[0]]
    depth = len(wires.steps) if last else wires.steps[i].entry
    stream = found.source if receiver.source else found.streams[depth][0]
    assert stream is not None
    block = max(1, wires.at_once)
    for first in range(0, len(rows), block):
        some = rows[first : first + block]
        x = stream.detach().expand(len(some), *stream.shape).clone().requires_grad_()
        with torch.enable_grad():
            if last:
                made, upstream = normed(wires.stack.final, x)[0], gradient
            else:
                index = torch.tensor([wires.graph.receivers[r].index for r in some], device=x.device)
                made = project(wires.steps[i], receiver.slot, x, index, wires.context(1))
                axis = made.ndim - 3
                upstream = gradient if receiver.slot == "in" else gradient.index_select(axis, index)
            (read,) = torch.autograd.grad(made, x, upstream)
        if receiver.source:
            u = next(u for u, sender in enumerate(wires.graph.senders) if sender.kind == "source")
            scores[:, some, u] += torch.einsum("bpd,rbpd->br", _source_difference(wires), read)
            continue
        for j, written in _back(wires, found, depth, read):
            difference = (wires.corrupt.of(j) - wires.clean.of(j))[0]
            where = torch.tensor(wires.columns[j])
            part = torch.einsum("ubpd,rbpd->bru", difference, written)
            scores[:, torch.tensor(some)[:, None], where[None]] += part


def _back(wires: Wires, found: Pass, depth: int, gradient: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield, from the last step down, the gradient at what each step writes as the receiver above sees it."""
    for j in range(depth - 1, -1, -1):
        step = wires.steps[j]
        after = step.after
        if after is None:
            yield j, gradient
            continue
        before = found.totals[j][0] if step.write_norm else (found.streams[j] + found.totals[j])[0]
        x = before.expand(len(gradient), *before.shape).clone().requires_grad_()
        with torch.enable_grad():
            (through,) = torch.autograd.grad(normed(after, x), x, gradient)
        yield j, through
        gradient = through if step.stream_norm else gradient
    yield -1, gradient


def source_effect(wires: Wires, effect: Tensor, found: Leaves, weight: float = 1.0) -> None:
    """Add the first-order effect of an encoder's output, if there is one."""
    for u, sender in enumerate(wires.graph.senders):
        if sender.kind == "source":
            effect[u] += weight * torch.einsum("bpd,bpd->b", _source_difference(wires), found[-1, "source"])


def _source_difference(wires: Wires) -> Tensor:
    assert wires.corrupt.source is not None and wires.clean.source is not None, "a source has both"
    return wires.corrupt.source - wires.clean.source
