"""Running circuits: passes of the model in which every receiver reads a mixture of its own of what senders write.

    x_r = biases + sum over senders u of  (what u writes in this pass   if the edge u -> r is there
                                           what u wrote in another run  if it is cut)

With all edges there it is the model's own pass; with all cut, every receiver reads what it would in the other run. A
pass is the model's forward pass with `CutEdges` at the sites of what receivers read; it begins at the block of the
first cut. Many sets of edges are worlds side by side in one batch.

Source: Conmy et al. 2023, "Towards Automated Circuit Discovery", section 3; Goldowsky-Dill et al. 2023, "Localizing
Model Behavior with Path Patching", section 2.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis.circuits._cut_edges import CutEdges, Exchange, Mask, Recording
from glassformer.analysis.circuits._graph import circuit_graph
from glassformer.analysis.prepare import prepare
from glassformer.analysis.sweep.metrics import Metric, MetricLike as MetricLike, apply_metric, named_metrics
from glassformer.analysis.sweep.shared_rows import SharedRows, require_same, sharing
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import ModelLike, SubLayer, require_model
from glassformer.models.evaluation import evaluating
from glassformer.models.norms import Norm
from glassformer.models.reading import Inputs
from glassformer.models.row_ranks import row_ranks
from glassformer.numerics.placement import work_memory
from glassformer.trace import Apply, Edit, Tape

Off = Literal["corrupt", "zero", "mean"]

MEMORY = 2**29  # bytes of streams and writes that worlds side by side may take on a CPU
_QUANTITY = {"q": "query_in", "k": "key_in", "v": "value_in", "gate": "gate_in", "mix": "mix_in", "in": "in"}


class CircuitRuns:
    """A model and two prompts, ready to run circuits.

    Args:
        model: A decoder or an encoder-decoder.
        clean: What the model reads, as in `run`.
        corrupt: The other prompt, of the same shape; what senders write there takes the place of cut edges.
        metric: What is measured, from the logits.
        target: Text or ids of an encoder-decoder's decoder.
        corrupt_target: The same of the other run; that of the clean one by default.
        off: What stands on cut edges instead: what senders write in the corrupt run, nothing, or what they write there
            on average over prompts, position by position.
        split_embedding: As in `circuit_graph`.

    Raises:
        AnalysisUnavailable: The model is not one of ours, a mechanism has no values, or the metric is not of logits.
        ShapeMismatch: The prompts differ in shape.
    """

    def __init__(
        self,
        model: ModelLike,
        clean: Any,
        corrupt: Any,
        metric: MetricLike,
        *,
        target: Any = None,
        corrupt_target: Any = None,
        off: Off = "corrupt",
        split_embedding: bool = False,
    ) -> None:
        self.model = require_model(model, "circuits")
        self.stack, self.embed = self.model.output_stack, self.model.output_embed
        self.graph = circuit_graph(model, split_embedding=split_embedding)
        self.steps: tuple[SubLayer, ...] = self.model.sub_layers()
        self.split_embedding = split_embedding
        self.metric = _of_logits(metric)
        with evaluating(model), torch.no_grad():
            self.given = prepare(model, clean, target)
            other = prepare(model, corrupt, target if corrupt_target is None else corrupt_target)
            _require_alike(self.given, other)
            self.ids = self.metric.ids(model, self.batch, self.given.device)
            self.clean = self._recorded(self.given)
            self.corrupt = self.clean if corrupt is clean else self._recorded(other)
            self.instead, self.source = _instead(self.corrupt, off)

    # ---- where everything is

    @property
    def batch(self) -> int:
        return len(self.given.token_rows)

    @cached_property
    def columns(self) -> dict[int, slice]:
        """Which senders each sub-layer has; -1 for what enters the stream."""
        found: dict[int, slice] = {}
        for u, sender in enumerate(self.graph.senders):
            if sender.kind != "source":
                begun = found.get(sender.step, slice(u, u))
                found[sender.step] = slice(begun.start, u + 1)
        return found

    @cached_property
    def sources(self) -> list[int]:
        """Column of an encoder's output, if there is one."""
        return [u for u, sender in enumerate(self.graph.senders) if sender.kind == "source"]

    @cached_property
    def groups(self) -> dict[tuple[int, str], list[int]]:
        """Receivers by sub-layer and kind, in the order of their heads."""
        found: dict[tuple[int, str], list[int]] = {}
        for r, receiver in enumerate(self.graph.receivers):
            found.setdefault((receiver.step, receiver.slot), []).append(r)
        return found

    @cached_property
    def names(self) -> dict[int, tuple[str, ...]]:
        """Sites of what the senders of each sub-layer write."""
        split = self.split_embedding and self.embed.positions is not None
        entry = (self.embed.at_token, self.embed.at_position) if split else (self.steps[0].block.at_resid[0],)
        found = {-1: entry}
        for i, step in enumerate(self.steps):
            found[i] = (step.at_out if step.attention is None else step.attention.at.head_out,)
        return found

    @property
    def end(self) -> str:
        """Site of the stream that the logits are made from."""
        return self.steps[-1].block.at_resid[-1]

    def read_at(self, step: int) -> str:
        """Return the site of the stream that a sub-layer reads, or the end of it."""
        return self.end if step == len(self.steps) else self.steps[step].at_stream

    def site_of(self, receiver: int) -> str:
        """Return the site of what a receiver reads."""
        found = self.graph.receivers[receiver]
        if found.slot == "logits":
            return self.read_at(found.step)
        return f"{self.steps[found.step].path}.{_QUANTITY[found.slot]}"

    def out(self, step: int) -> str:
        """Return the site of what a sub-layer writes in all."""
        return self.steps[step].at_out

    def depth(self, receiver: int) -> int:
        """Return how many sub-layers have written to what a receiver reads."""
        step = self.graph.receivers[receiver].step
        return self.steps[step].entry if step < len(self.steps) else len(self.steps)

    def cut(self, kept: Bool[Tensor, "*n receiver sender"]) -> Bool[Tensor, "*n receiver sender"]:
        """Return which edges are cut if those are kept."""
        return self.graph.allowed.values & ~kept

    def measuring(self, metric: MetricLike) -> "CircuitRuns":
        """Return the same runs with another metric."""
        other = copy.copy(self)
        other.metric = _of_logits(metric)
        other.ids = other.metric.ids(self.model, self.batch, self.given.device)
        return other

    # ---- passes

    def evaluate(
        self,
        cuts: Mask,
        *,
        known: Recording | None = None,
        start: int | None = None,
        frozen: bool = False,
        report: Callable[[int, int], None] | None = None,
    ) -> Float[Tensor, "world batch"]:
        """Measure many worlds, as many at once as fit the memory; ranks that share rows share them.

        Args:
            cuts: Which edges are cut, or how much of them; masks stay on the CPU, wherever the model is.
            known: A run that all worlds agree with up to the first cut; the clean one by default.
            start: The first sub-layer in which they differ from that run; that of the first cut by default.
            frozen: Norms that a cut reaches on its way into a receiver divide by the scales of the clean run. The cuts
                of a world are then all of receivers of one sub-layer.
            report: Called with (worlds done, in all).
        """
        total, ranks = len(cuts), sharing(self.model, grad=False)
        require_same(ranks, lambda: cuts.detach().cpu().numpy().tobytes(), "other edges to cut")
        shares = SharedRows(ranks, [[world] for world in range(total)], [1] * total)
        own, found = cuts.narrow(0, shares.start, len(shares.own)), list[Tensor]()
        with evaluating(self.model), torch.no_grad():
            for piece in _pieces(len(own), lambda: self._room):
                some = own[piece]
                found.append(
                    self.measure(self.run(some, known=known, start=start, frozen=frozen)).expand(len(some), -1)
                )
                if report is not None and ranks.rank == 0:
                    report(shares.reached(piece.stop), total)
        values = torch.cat(found) if found else self.clean.writes.new_zeros(0, self.batch)
        return shares.gathered(values[None])[0]

    def run(
        self, cut: Mask, *, known: Recording | None = None, start: int | None = None, frozen: bool = False
    ) -> Float[Tensor, "world batch *pos vocab"]:
        """Return the logits of worlds of cut edges, of one world where nothing is cut; arguments as for `evaluate`."""
        known = known or self.clean
        touched = cut.any(0).any(-1).tolist()
        first = min([r.step for r, here in zip(self.graph.receivers, touched) if here], default=None)
        first = first if start is None else start
        if first is None:
            return self.logits(known)
        exchange = self.exchange(known, self.block_start(first), frozen)
        edits = self.cuts(cut, exchange)
        if frozen:
            edits += self._frozen_scales(cut)
        return self.resumed(known, first, len(cut), edits)

    def exchange(self, known: Recording, first: int, frozen: bool = False) -> Exchange:
        """Return what stands on cut edges of passes that begin with a sub-layer."""
        known = self._with_scales(known) if frozen else known
        return Exchange(
            steps=self.steps,
            columns=self.columns,
            names=self.names,
            instead=self.instead,
            source=self.source,
            known=known,
            first=first,
            frozen=frozen,
        )

    def cuts(self, cut: Mask, exchange: Exchange) -> list[Edit]:
        """Return the edits that cut edges, from where the pass begins."""
        found: list[Edit] = []
        for (step, _), rows in self.groups.items():
            own = cut[:, rows]
            if step >= exchange.first and own.any():
                found.append(self.cut_edges(rows, own, exchange))
        return found

    def cut_edges(self, rows: Sequence[int], cut: Mask, exchange: Exchange) -> CutEdges:
        """Return the edit that cuts edges into receivers of one site."""
        source = self.sources[0] if self.graph.receivers[rows[0]].source else None
        return CutEdges(self.site_of(rows[0]), cut, exchange, self.depth(rows[0]), source)

    def resumed(
        self, known: Recording, first: int, worlds: int, edits: Sequence[Edit], read: Iterable[str] = ()
    ) -> Float[Tensor, "world batch *pos vocab"]:
        """Run worlds from a sub-layer's block on and return the logits where the metric looks."""
        at_end = first == len(self.steps)
        site = self.read_at(first) if at_end else self.steps[first].block.at_resid[0]
        x = known.sites[site].repeat(worlds, 1, 1)
        if at_end:
            # nothing but the final norm is left to run: what it reads is changed before
            for edit in edits:
                x = edit(x, self.model.sites()[site]) if edit.site == site else x
            edits = [edit for edit in edits if edit.site != site]
        layer = len(self.stack.blocks) if at_end else self.steps[first].block.layer
        return self.passed(layer, x, known.source, worlds, Tape(self.model, read, edits))

    def logits(self, found: Recording) -> Float[Tensor, "one batch *pos vocab"]:
        """Return the logits of a run where the metric looks."""
        return self.resumed(found, len(self.steps), 1, ())

    def measure(self, logits: Float[Tensor, "world batch *pos vocab"]) -> Float[Tensor, "world batch"]:
        """Return the metric in every world."""
        return apply_metric(self.metric, logits, self.ids)

    @property
    def at_once(self) -> int:
        """How many worlds share a pass; ranks that share rows ask together, and it is as many on each."""
        return min(int(room) for room in row_ranks().gather(torch.tensor([self._room])))

    @property
    def _room(self) -> int:
        """How many worlds this process has room for in a pass."""
        widest = max([len([r for r in self.graph.receivers if r.step == i]) for i in range(len(self.steps))], default=1)
        held = len(self.graph.senders) + 2 * len(self.steps) + 2 * widest
        stream = self.clean.writes[:, 0]
        memory = work_memory(stream.device, MEMORY)
        return int(min(max(memory // (held * stream.numel() * stream.element_size()), 1), 256))

    def pieces(self, n: int) -> Iterator[slice]:
        """Yield which of so many worlds share a pass, by the memory that is free when each begins."""
        return _pieces(n, lambda: self.at_once)

    def recorded(self, cut: Bool[Tensor, "receiver sender"]) -> Recording:
        """Return what senders write with some edges cut, and the streams they make.

        Edges into the logits are none of it: they change what the last norm reads, and nothing that is written.
        """
        edits = [edit for edit in self.cuts(cut[None], self.exchange(self.clean, 0)) if edit.site != self.end]
        if not edits:
            return self.clean
        tape = Tape(self.model, self._recorded_sites(), edits)
        with evaluating(self.model), torch.no_grad():
            self.passed(0, self.clean.sites[self.read_at(0)], self.clean.source, 1, tape)
        return self._recording(tape, self.clean.source)

    def _recorded(self, given: Inputs) -> Recording:
        reads = self._recorded_sites()
        reads += list(self.names[-1]) if self.split_embedding else []
        encoded = self.model.stacks[self.model.source].final.at_out if self.model.source is not None else None
        reads += [] if encoded is None else [encoded]
        tape = Tape(self.model, reads, logits=False)
        self.model(*given.args, **given.kwargs, tape=tape)
        source = None if encoded is None else tape.values[encoded]
        return self._recording(tape, source)

    def _recorded_sites(self) -> list[str]:
        found = list(self._streams)
        found += [name for i, names in self.names.items() if i >= 0 for name in names]
        return found + [self.out(i) for i in range(len(self.steps))]

    @cached_property
    def _streams(self) -> tuple[str, ...]:
        """Sites of the stream, in order."""
        return tuple(dict.fromkeys(name for step in self.steps for name in step.block.at_resid))

    def _recording(self, tape: Tape, source: Tensor | None) -> Recording:
        streams = {name: tape.values[name] for name in self._streams}
        entry = next(iter(streams.values()))
        writes = entry.new_zeros(len(entry), len(self.graph.senders), *entry.shape[1:])
        kept = dict(streams)
        for i, columns in self.columns.items():
            for j, name in enumerate(self.names[i]):
                value = self.clean.writes[:, j] if i < 0 and name not in tape.values else tape.values[name]
                if value.ndim == 4:
                    writes[:, columns] = value
                    # the largest of what was read: not kept twice
                    del tape.values[name]
                else:
                    writes[:, columns.start + j] = value
        kept |= {self.out(i): tape.values[self.out(i)] for i in range(len(self.steps))}
        return Recording(writes, kept, source)

    def passed(
        self, layer: int, x: Float[Tensor, "row pos d_model"], source: Tensor | None, worlds: int, tape: Tape
    ) -> Float[Tensor, "world batch *pos vocab"]:
        """Run worlds from the stream that enters a block on; return the logits where the metric looks."""

        def repeated(value: Tensor) -> Tensor:
            return value.repeat(worlds, *[1] * (value.ndim - 1))

        given = {name: repeated(value) for name, value in self.given.kwargs.items() if value is not None}
        if source is not None:
            given["encoded"] = repeated(source)
        if self.metric.pos is None or not tape.logits:
            found = self.model.resume(layer, x, **given, tape=tape)
        else:
            found = self.model.resume(layer, x, **given, at=repeated(self._places), tape=tape)[:, 0]
        return found.unflatten(0, (worlds, self.batch))

    @property
    def _places(self) -> Tensor:
        pos = self.metric.pos
        assert pos is not None, "asked for where a metric looks at one position"
        places: list[int] = []
        for row, tokens in enumerate(self.given.token_rows):
            if not -len(tokens) <= pos < len(tokens):
                raise ShapeMismatch(f"{self.metric.name}: position {pos}, but row {row} has {len(tokens)} tokens.")
            places.append(pos % len(tokens))
        return torch.tensor(places, device=self.clean.writes.device)[:, None]

    def block_start(self, step: int) -> int:
        """Return the first sub-layer of a sub-layer's block."""
        if step == len(self.steps):
            return step
        return next(i for i, found in enumerate(self.steps) if found.block is self.steps[step].block)

    # ---- norms that keep the scales of the clean run

    @cached_property
    def scales(self) -> dict[str, Tensor]:
        """Scales of every norm of the stack in the clean run."""
        norms = [n for n in self.stack.modules() if isinstance(n, Norm) and not n.identity]
        tape = Tape(self.model, [norm.at_scale for norm in norms], logits=False)
        with evaluating(self.model), torch.no_grad():
            self.model(*self.given.args, **self.given.kwargs, tape=tape)
        return tape.values

    def _with_scales(self, known: Recording) -> Recording:
        return dataclasses.replace(known, sites={**known.sites, **self.scales})

    def read_norm(self, step: int) -> Norm | None:
        """Return the norm through which a sub-layer reads the stream, or the final one."""
        return self.stack.final if step == len(self.steps) else self.steps[step].before

    def _frozen_scales(self, cut: Mask) -> list[Edit]:
        """Return edits that hold scales in the worlds in which a sub-layer has a receiver with a cut."""
        found: list[Edit] = []
        for i in sorted({step for step, _ in self.groups}):
            norm = self.read_norm(i)
            rows = [r for r, receiver in enumerate(self.graph.receivers) if receiver.step == i and not receiver.source]
            worlds = cut[:, rows].any(-1).any(-1)
            if norm is None or norm.identity or not worlds.any():
                continue
            held = worlds.repeat_interleave(self.batch)[:, None].to(self.clean.writes.device)
            scale = self.scales[norm.at_scale].repeat(len(cut), 1)
            found.append(Apply(norm.at_scale, _where(held, scale)))
        return found


def _pieces(n: int, at_once: Callable[[], int]) -> Iterator[slice]:
    """Yield which of so many worlds share a pass."""
    first = 0
    while first < n:
        # free memory may change between passes: asked twice, worlds would be left out or measured again
        last = min(first + at_once(), n)
        yield slice(first, last)
        first = last


def _where(held: Tensor, value: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what puts a value in place of what is found, in some rows."""
    return lambda found: torch.where(held, value, found)


def _of_logits(metric: MetricLike) -> Metric:
    (metric,) = named_metrics(metric).values()
    found = metric if isinstance(metric, Metric) else Metric("metric", metric, pos=None)
    if found.site != "logits":
        raise AnalysisUnavailable(
            f'a circuit ends in the logits, and "{found.name}" is read at "{found.site}".\n'
            "    Give a metric of the logits, or patch sites with sweep(…)."
        )
    return found


def _instead(corrupt: Recording, off: Off) -> tuple[Tensor, Tensor | None]:
    """Return what stands on cut edges: in place of what senders write, and of an encoder's output."""
    if off == "corrupt":
        return corrupt.writes, corrupt.source

    def replaced(value: Tensor) -> Tensor:
        return torch.zeros_like(value) if off == "zero" else value.mean(0, keepdim=True).expand_as(value)

    return replaced(corrupt.writes), None if corrupt.source is None else replaced(corrupt.source)


def _require_alike(clean: Inputs, corrupt: Inputs) -> None:
    for name, a, b in (("tokens", clean.ids, corrupt.ids), ("source tokens", clean.source_ids, corrupt.source_ids)):
        if a is not None and b is not None and a.shape != b.shape:
            raise ShapeMismatch(
                f"the clean prompt has {name} batch={a.shape[0]} pos={a.shape[1]}, the corrupt one batch={b.shape[0]} "
                f"pos={b.shape[1]}; what senders write is exchanged position by position: give prompts of one shape."
            )
    for name in ("lengths", "source_lengths", "documents"):
        a, b = clean.kwargs.get(name), corrupt.kwargs.get(name)
        if (a is None) != (b is None) or (a is not None and b is not None and not torch.equal(a, b)):
            raise ShapeMismatch(f"the clean and the corrupt prompts differ in {name}; give prompts that are aligned.")
