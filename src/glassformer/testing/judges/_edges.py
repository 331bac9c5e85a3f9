"""The judge of pruned circuits: every decision of the search made again, a pass for each, receivers worked out apart.

    x_r = what enters the stream and what each sub-layer writes, added up from the bottom for this receiver alone,
          with what the other run wrote where an edge is cut

Each query, key and value comes from a pass of the whole layer on the stream of its own receiver.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from glassformer.models import Model, SubLayer
from glassformer.testing.judges._direct_paths import labels_of_heads
from glassformer.testing.judges._hooks import Change, hooked
from glassformer.testing.judges.judge import Asked, Judge, Pair

SLOTS = ("q", "k", "v")


@dataclass
class _Graph:
    """A model as edges: who writes at which step, and who reads there, as the names of a circuit have them."""

    model: Model
    senders: list[tuple[str, int, int]] = field(default_factory=list)
    receivers: list[tuple[str, int, str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.steps = self.model.sub_layers()
        self.senders.append(("embed", -1, 0))
        if self.model.source is not None:
            self.senders.append(("source", -2, 0))
        for i, step in enumerate(self.steps):
            part = step.attention
            if part is None:
                self.senders.append((step.label, i, 0))
                self.receivers.append((f"{step.label}.in", i, "in", 0))
                continue
            labels = labels_of_heads(step)
            self.senders += [(label, i, h) for h, label in enumerate(labels)]
            slots = {"q": part.dims.n_heads, "k": part.dims.n_kv_heads, "v": part.dims.n_kv_heads}
            slots |= {} if part.merge.gate is None else {"gate": part.dims.n_heads}
            slots |= {"mix": 1} if part.traits.reads_input else {}
            self.receivers += [(step.path, i, slot, h) for slot, n in slots.items() for h in range(n)]
        self.receivers.append(("logits", len(self.steps), "logits", 0))

    def reads(self, receiver: int, sender: int) -> bool:
        _, step, slot, _ = self.receivers[receiver]
        _, written, _ = self.senders[sender]
        of_source = slot in ("k", "v") and self.steps[step].crosses
        if of_source or written == -2:
            return of_source and written == -2
        return written < (self.steps[step].entry if step < len(self.steps) else len(self.steps))

    def edges(self) -> list[tuple[int, int]]:
        """Return every edge, receivers and senders from last to first."""
        n, m = len(self.receivers), len(self.senders)
        return [(r, u) for r in reversed(range(n)) for u in reversed(range(m)) if self.reads(r, u)]


class _Runs:
    """Two texts, and passes of the first in which edges are cut."""

    def __init__(self, model: Model, clean: Sequence[Tensor], corrupt: Sequence[Tensor]) -> None:
        self.model, self.graph = model, _Graph(model)
        self.clean, self.corrupt = self._recorded(clean), self._recorded(corrupt)

    def logits(self, cut: set[tuple[int, int]]) -> Tensor:
        """Return the logits of the pass with these edges cut."""
        writes = dict(self.clean.writes)
        for i, step in enumerate(self.graph.steps):
            writes |= self._written(i, step, cut, writes)
        last = len(self.graph.receivers) - 1
        x = self._stream(last, len(self.graph.steps), cut, writes)
        return self.model.unembed(self.model.output_stack.final(x, None), None)

    def _recorded(self, inputs: Sequence[Tensor]) -> "_Recorded":
        kept: dict[str, Any] = {}
        keep = kept.__setitem__
        blocks, source = self.model.output_stack.blocks, self.model.source
        changes = [Change(blocks[0], "in", functools.partial(keep, "entry"))]
        changes += [Change(block, "in", functools.partial(keep, f"context {block.layer}"), 1) for block in blocks]
        if source is not None:
            changes.append(Change(self.model.stacks[source].final, "out", functools.partial(keep, "source")))
        for i, step in enumerate(self.graph.steps):
            if step.attention is None:
                changes.append(Change(step.part, "out", functools.partial(keep, f"write {i}")))
            else:
                changes.append(Change(step.attention.merge.output, "in", functools.partial(keep, f"write {i}")))
        with hooked(changes):
            self.model(*inputs)
        writes = {(-1, 0): kept["entry"]} | ({} if source is None else {(-2, 0): kept["source"]})
        for i, step in enumerate(self.graph.steps):
            writes |= _by_sender(i, step, kept[f"write {i}"])
        return _Recorded(writes, {block.layer: kept[f"context {block.layer}"] for block in blocks})

    def _stream(self, receiver: int, depth: int, cut: set[tuple[int, int]], writes: Mapping[Any, Tensor]) -> Tensor:
        """Return what a receiver reads: everything that was written before, added up for it."""

        def write(sender: int) -> Tensor:
            found = self.corrupt.writes if (receiver, sender) in cut else writes
            _, step, index = self.graph.senders[sender]
            return found[step, index]

        by_step: dict[int, list[int]] = {}
        for u, (_, step, _) in enumerate(self.graph.senders):
            by_step.setdefault(step, []).append(u)
        x = write(by_step[-1][0])
        for i, step in enumerate(self.graph.steps[:depth]):
            total = torch.stack([write(u) for u in by_step[i]]).sum(0)
            bias = None if step.attention is None else step.attention.merge.output.bias
            total = total if bias is None else total + bias
            kept = x if step.rate is None else x * (1 - step.rate)
            x = kept + (total if step.write_norm is None else step.write_norm(total))
            x = x if step.stream_norm is None else step.stream_norm(x)
        return x

    def _written(
        self, i: int, step: SubLayer, cut: set[tuple[int, int]], writes: Mapping[Any, Tensor]
    ) -> dict[tuple[int, int], Tensor]:
        """Return what the senders of a step write in this pass."""
        own = [r for r, (_, at, _, _) in enumerate(self.graph.receivers) if at == i]
        context = self.clean.contexts[step.layer]
        source = None if self.model.source is None else writes[-2, 0]

        def run(x: Tensor, source: Tensor | None, changes: Sequence[Change]) -> Tensor:
            with hooked(changes):
                return step.part(x if step.before is None else step.before(x), context, source=source)[0]

        def read(receiver: int) -> Tensor:
            return self._stream(receiver, step.entry, cut, writes)

        if step.attention is None:
            return _by_sender(i, step, run(read(own[0]), source, []))
        mixer, merge = step.attention.mixer, step.attention.merge
        done: dict[frozenset[int], tuple[list[Any], Tensor | None]] = {}

        def projected(receiver: int) -> tuple[list[Any], Tensor | None]:
            """Return what the mechanism is given and what opens the gate, if all heads read as one receiver does."""
            cuts = frozenset(u for r, u in cut if r == receiver)
            if cuts not in done:
                crossed = any(self.graph.senders[u][1] == -2 for u in cuts)
                seen, opened = list[Any](), list[Tensor]()
                changes = [Change(mixer, "in", seen.append, None)]
                changes += [] if merge.gate is None else [Change(merge.gate, "out", opened.append)]
                run(read(receiver), self.corrupt.writes[-2, 0] if crossed else source, changes)
                done[cuts] = list(seen[0]), opened[0] if opened else None
            return done[cuts]

        n = step.attention.dims.n_heads
        first, gate = projected(own[0])
        given = [value.clone() if isinstance(value, Tensor) else value for value in first]
        gate = None if gate is None else gate.clone()
        for receiver in own:
            _, _, slot, index = self.graph.receivers[receiver]
            seen, opened = projected(receiver)
            if slot in SLOTS:
                at = SLOTS.index(slot)
                given[at][..., index, :, :] = seen[at][..., index, :, :]
            elif slot == "mix":
                given[3] = seen[3]
            elif gate is not None and opened is not None:
                gate.unflatten(-1, (n, -1))[..., index, :] = opened.unflatten(-1, (n, -1))[..., index, :]
        flat: list[Tensor] = []
        changes = [Change(mixer, "in", lambda _: tuple(given), None), Change(merge.output, "in", flat.append)]
        changes += [] if merge.gate is None else [Change(merge.gate, "out", lambda _: gate)]
        run(read(own[0]), source, changes)
        return _by_sender(i, step, flat[0])


@dataclass(frozen=True)
class _Recorded:
    writes: Mapping[tuple[int, int], Tensor]
    contexts: Mapping[int, Any]


def _by_sender(i: int, step: SubLayer, x: Tensor) -> dict[tuple[int, int], Tensor]:
    """Return what each sender of a step writes, from what the step writes, or from what its output matrix reads."""
    if step.attention is None:
        return {(i, 0): x}
    n, matrix = step.attention.dims.n_heads, step.attention.merge.output.weight
    found: dict[tuple[int, int], Tensor] = {}
    for head in range(n):
        alone = torch.zeros_like(x).unflatten(-1, (n, -1))
        alone[..., head, :] = x.unflatten(-1, (n, -1))[..., head, :]
        found[i, head] = alone.flatten(-2) @ matrix.T
    return found


@torch.no_grad()
def _acdc(asked: Asked) -> Iterator[Pair]:
    found, pairs = asked.found, asked.given["pairs"]
    sides = [(pairs.clean,), (pairs.corrupt,)]
    if pairs.target is not None:
        sides = [(pairs.clean, pairs.target), (pairs.corrupt, pairs.corrupt_target)]
    runs = _Runs(asked.model, *sides)
    edges, whole = runs.graph.edges(), asked.model(*sides[0])[:, -1].log_softmax(-1)

    def cost(cut: set[tuple[int, int]]) -> Tensor:
        logs = runs.logits(cut)[:, -1].log_softmax(-1)
        return (whole.exp() * (whole - logs)).sum(-1).mean()

    full, empty = cost(set()), cost(set(edges))
    other = asked.model(*sides[1])[:, -1].log_softmax(-1)
    yield Pair("nothing cut", found.cost_full, 0.0)
    yield Pair("nothing cut, receiver by receiver", full, 0.0)
    # divergences of much alike distributions: differences of nearly equal numbers
    yield Pair("everything cut", found.cost_empty, empty, 1e-6)
    yield Pair("the other text", empty, (whole.exp() * (whole - other)).sum(-1).mean(), 1e-6)
    yield Pair("edges that were tried", len(found.log), len(edges))
    senders = [str(label) for label in found.in_circuit.labels("sender")]
    receivers = [str(label) for label in found.in_circuit.labels("receiver")]
    tried = [(receivers.index(one.edge.receiver), senders.index(one.edge.sender)) for one in found.log]
    yield Pair("their order", tried, edges)
    cut, now = set[tuple[int, int]](), full
    changes, removed = list[Tensor](), list[bool]()
    for edge in edges:
        change = cost(cut | {edge}) - now
        changes.append(change)
        removed.append(bool(change < found.threshold))
        if removed[-1]:
            cut, now = cut | {edge}, now + change
    yield Pair("what each costs", [one.change for one in found.log], torch.stack(changes), 1e-6)
    yield Pair("whether it goes", [one.removed for one in found.log], removed)
    left = torch.zeros(len(receivers), len(senders), dtype=torch.bool)
    for r, u in set(edges) - cut:
        left[r, u] = True
    yield Pair("the circuit", found.in_circuit.values, left)
    yield Pair("its cost", found.cost, now, 1e-6)


JUDGES = {"acdc": Judge(_acdc, ("in_circuit", "log.change", "log.removed", "cost", "cost_full", "cost_empty"))}
