"""Running a circuit: one pass in which every receiver reads a mixture of its own of what senders write.

    x_r = biases + sum over senders u of  (what u writes in this pass   if the edge u -> r is there
                                           what u wrote in another run  if it is cut)

With all edges there it is the model's own pass; with all cut, every receiver reads what it would in the other run.
Norms on the way to a receiver, and its own, work on what it reads. Many sets of edges are worlds side by side in one
batch. What comes before the first cut is taken from an earlier pass, and receivers without cuts share one stream.

Source: Conmy et al. 2023, "Towards Automated Circuit Discovery", section 3; Goldowsky-Dill et al. 2023, "Localizing
Model Behavior with Path Patching", section 2.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from glassformer.analysis._run import evaluating
from glassformer.analysis.circuits._graph import circuit_graph
from glassformer.analysis.circuits._passes import Off, Pass, context_of, require_alike, substitute
from glassformer.analysis.circuits._receivers import attend, head_axis, normed, project, read_norm, together
from glassformer.analysis.prepare import Inputs, prepare
from glassformer.analysis.sweep._metrics import Metric
from glassformer.attention import Context
from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.models import EncoderDecoder, ModelLike, SubLayer, require_model
from glassformer.trace import Tape

# booleans, or how much of an edge is cut
Cut = Shaped[Tensor, "world receiver sender"]
MetricLike = Metric | Callable[[Tensor], Tensor]
Leaves = Mapping[tuple[int, str], Tensor]

MEMORY = 2**29  # bytes of streams and writes that worlds side by side may take


class Wires:
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
        self.model = model
        self.stack, self.embed = require_model(model).output_stack, model.output_embed
        self.graph = circuit_graph(model, split_embedding=split_embedding)
        self.steps = model.sub_layers()
        self.split_embedding = split_embedding
        senders, receivers = self.graph.senders, self.graph.receivers
        places = range(-1, len(self.steps) + 1)
        self.columns = {i: [u for u, s in enumerate(senders) if s.step == i and s.kind != "source"] for i in places}
        self.rows = {i: [r for r, s in enumerate(receivers) if s.step == i] for i in places}
        self.metric = _of_logits(metric)
        with evaluating(model), torch.no_grad():
            self.given = prepare(model, clean, target)
            other = prepare(model, corrupt, target if corrupt_target is None else corrupt_target)
            require_alike(self.given, other)
            assert self.given.ids is not None
            self.ids = self.metric.ids(model, len(self.given.ids), self.given.ids.device)
            self._contexts: dict[int, Context] = {}
            self.clean = self._recorded(self.given)
            self.corrupt = self.clean if corrupt is clean else self._recorded(other)
            self.off = substitute(self.corrupt, off)
            self._contexts.clear()

    @property
    def batch(self) -> int:
        return len(self.given.token_rows)

    def cut(self, kept: Bool[Tensor, "*n receiver sender"]) -> Bool[Tensor, "*n receiver sender"]:
        """Return which edges are cut if those are kept."""
        return self.graph.allowed.values & ~kept

    def measuring(self, metric: MetricLike) -> "Wires":
        """Return the same runs with another metric."""
        other = copy.copy(self)
        other.metric = _of_logits(metric)
        assert self.given.ids is not None
        other.ids = other.metric.ids(self.model, self.batch, self.given.ids.device)
        return other

    def run(
        self,
        cut: Cut | None = None,
        *,
        prefix: Pass | None = None,
        inputs: Mapping[int, Tensor] | None = None,
        leaves: Leaves | None = None,
        frozen: bool = False,
        keep: bool = False,
        start: int | None = None,
    ) -> Pass:
        """Run worlds of cut edges.

        Args:
            cut: Which edges are cut; masks stay on the CPU, wherever the model is.
            prefix: A pass that all worlds agree with up to the first cut; the clean one by default.
            inputs: What some receivers read instead of their mixture, `world batch pos d_model` by index.
            leaves: Zeros added on the way, to take gradients at: by step and kind of receiver to what they project, by
                step and `out` to what sub-layers write, by -1 and `out` to what enters the stream.
            frozen: Norms that a cut reaches on its way into a receiver divide by the scales of the clean pass.
            keep: Keep what every sender writes.
            start: The first sub-layer to run; that of the first cut by default.
        """
        graph, inputs, leaves = self.graph, inputs or {}, leaves or {}
        if cut is None:
            worlds = max([len(value) for value in inputs.values()], default=1)
            cut = torch.zeros(worlds, *graph.allowed.values.shape, dtype=torch.bool)
        touched = (cut.any(0).any(-1)).tolist()
        if start is None:
            reached = [receiver.step for r, receiver in enumerate(graph.receivers) if touched[r] or r in inputs]
            start = 0 if leaves or keep else min(reached, default=len(self.steps))
        found = (prefix or self.clean).upto(start)
        if (-1, "out") in leaves:
            found.streams[0] = found.streams[0] + leaves[-1, "out"]
        for i in range(start, len(self.steps)):
            mixed = [r for r in self.rows[i] if touched[r] or r in inputs]
            later = [r for r, receiver in enumerate(graph.receivers) if receiver.step > i]
            split = keep or bool(cut[:, later][:, :, self.columns[i]].any())
            writes, total = self._written(found, i, mixed, cut, inputs, leaves, frozen, split)
            if (i, "out") in leaves:
                total = total + leaves[i, "out"]
            found.writes.append(writes)
            found.totals.append(total)
            found.streams.append(self._combined(i, found.streams[i], total))
        last, at_end = self.rows[len(self.steps)][0], found.streams[-1]
        like = None
        if touched[last] or last in inputs:
            at_end = self._read(found, [last], cut, inputs, frozen)[:, 0]
            like = self.clean.streams[-1] if frozen else None
        found.final = normed(self.stack.final, at_end, like)
        if (len(self.steps), "logits") in leaves:
            found.final = found.final + leaves[len(self.steps), "logits"]
        return found

    def logits(self, found: Pass, pos: int | None) -> Float[Tensor, "world batch *pos vocab"]:
        """Return the logits at one position of every row, or at all."""
        final = found.final
        assert final is not None, "a whole pass ends in what the unembedding reads"
        if pos is not None:
            places = torch.tensor([self._place(pos, row) for row in range(self.batch)], device=final.device)
            final = final[:, torch.arange(self.batch, device=final.device), places]
        return self.model.unembed.logits(final)

    def measure(self, found: Pass) -> Float[Tensor, "world batch"]:
        """Return the metric in every world."""
        return self.metric.function(self.logits(found, self.metric.pos), *self.ids)

    def evaluate(
        self,
        cuts: Cut,
        *,
        prefix: Pass | None = None,
        start: int | None = None,
        frozen: bool = False,
        report: Callable[[int, int], None] | None = None,
    ) -> Float[Tensor, "world batch"]:
        """Measure many worlds, as many at once as fit the memory; arguments as for `run`."""
        found: list[Tensor] = []
        total = len(cuts)
        with evaluating(self.model), torch.no_grad():
            for first in range(0, total, self.at_once):
                some = cuts[first : first + self.at_once]
                values = self.measure(self.run(some, prefix=prefix, start=start, frozen=frozen))
                # worlds without any cut are one
                found.append(values.expand(len(some), -1))
                if report is not None:
                    report(min(first + self.at_once, total), total)
        return torch.cat(found) if found else self.clean.streams[0].new_zeros(0, self.batch)

    @property
    def at_once(self) -> int:
        """How many worlds share a pass."""
        widest = max([len(rows) for rows in self.rows.values()], default=1)
        held = len(self.graph.senders) + 2 * len(self.steps) + 2 * widest
        stream = self.clean.streams[0]
        return int(min(max(MEMORY // (held * stream.numel() * stream.element_size()), 1), 256))

    def through_mlps(self, cut: Bool[Tensor, "world sender"], last: int, *, frozen: bool = False) -> list[Tensor]:
        """Return the stream before each sub-layer if some senders are cut off from everybody but heads.

        Heads write what they write in the clean pass, MLPs what they make of what they now read.

        Args:
            cut: Which senders write what they write on cut edges.
            last: How many sub-layers to go through.
            frozen: Norms on the stream itself divide by the scales of the clean pass; those that MLPs read through are
                theirs, and live.
        """
        edges = cut[:, None].to(self.clean.streams[0])
        x = (self.clean.streams[0][:, None] + self._swapped(self.clean, -1, edges))[:, 0]
        streams = [x]
        for i in range(last):
            step, total = self.steps[i], self.clean.totals[i]
            if step.attention is None:
                read = streams[step.entry]
                total = self._applied(step, normed(read_norm(step, "in"), read))
                gone = cut[:, self.columns[i]].any(-1).to(total.device)[:, None, None, None]
                total = torch.where(gone, self.clean.totals[i], total)
            total = (total[:, None] + self._swapped(self.clean, i, edges))[:, 0]
            x = self._combined(i, x, total, frozen)
            streams.append(x)
        return streams

    def stream(self, found: Pass, receiver: int, cut: Cut, *, frozen: bool = False) -> Tensor:
        """Return what a receiver reads, before its norm: `world batch pos d_model`."""
        return self._read(found, [receiver], cut, {}, frozen)[:, 0]

    def context(self, worlds: int) -> Context:
        """Return the facts of a pass with so many worlds side by side."""
        if worlds not in self._contexts:
            self._contexts[worlds] = context_of(self.given, worlds, self.model)
        return self._contexts[worlds]

    def _place(self, pos: int, row: int) -> int:
        length = len(self.given.token_rows[row])
        if not -length <= pos < length:
            raise ShapeMismatch(f"{self.metric.name}: position {pos}, but row {row} has {length} tokens.")
        return pos % length

    def _recorded(self, given: Inputs) -> Pass:
        self._contexts = {1: (context := context_of(given, 1, self.model))}
        source = None
        if isinstance(self.model, EncoderDecoder):
            source = self.model.encode(given.source_ids, given.kwargs.get("source_lengths"))
        names = [self.embed.at_token] + ([self.embed.at_position] if self.embed.positions is not None else [])
        tape = Tape(self.model, names, logits=False)
        stream = self.embed(given.ids, context.positions, tape)
        parts = [tape.values[name] for name in names] if self.split_embedding else [stream]
        start = Pass(torch.stack(parts)[None], source, [stream[None]])
        return self.run(prefix=start, keep=True, start=0)

    def _written(
        self,
        found: Pass,
        i: int,
        mixed: Sequence[int],
        cut: Cut,
        inputs: Mapping[int, Tensor],
        leaves: Leaves,
        frozen: bool,
        split: bool,
    ) -> tuple[Tensor | None, Tensor]:
        """Return what the senders of a step write, and what it writes in all."""
        step, receivers = self.steps[i], self.graph.receivers
        x = found.streams[step.entry]
        like = self.clean.streams[step.entry] if frozen else None
        if step.attention is None:
            if mixed:
                x = self._read(found, mixed, cut, inputs, frozen)[:, 0]
            y = normed(read_norm(step, "in"), x, like if mixed else None)
            y = y + leaves[i, "in"] if (i, "in") in leaves else y
            out = self._applied(step, y)
            return out[:, None], out
        worlds = len(cut) if mixed else len(x)
        context, rows = self.context(worlds), worlds * self.batch
        source = None if found.source is None else found.source.repeat(worlds, 1, 1)
        made = together(step, x.expand(worlds, -1, -1, -1).reshape(rows, *x.shape[2:]), source, context)
        for slot in made:
            some = [r for r in mixed if receivers[r].slot == slot]
            if some:
                own = self._read(found, some, cut, inputs, frozen).transpose(0, 1).flatten(1, 2)
                index = torch.tensor([receivers[r].index for r in some], device=own.device)
                norm_like = None if like is None else like[0].repeat(worlds, 1, 1)
                new = project(step, slot, own, index, context, norm_like)
                made[slot] = made[slot].index_copy(head_axis(slot, step.attention), index, new)
            if (i, slot) in leaves:
                made[slot] = made[slot] + leaves[i, slot]
        flat, merge = attend(step, made, context), step.attention.merge
        if not split:
            return None, merge.output(flat).unflatten(0, (worlds, -1))
        writes = merge.split(flat).unflatten(0, (worlds, -1)).transpose(1, 2)
        total = writes.sum(1)
        return writes, total if merge.output.bias is None else total + merge.output.bias

    def _read(
        self, found: Pass, rows: Sequence[int], cut: Cut, inputs: Mapping[int, Tensor], frozen: bool
    ) -> Float[Tensor, "#world some batch pos d_model"]:
        """Return what receivers of one step and kind read, before their norm."""
        receiver = self.graph.receivers[rows[0]]
        edges = cut[:, rows].to(found.streams[0])
        if receiver.source:
            u = [u for u, sender in enumerate(self.graph.senders) if sender.kind == "source"]
            assert found.source is not None and self.off.source is not None
            x = found.source + edges[:, :, u[0], None, None, None] * (self.off.source - found.source)
        else:
            depth = self.steps[receiver.step].entry if receiver.step < len(self.steps) else len(self.steps)
            x = self._carried(found, depth, edges, frozen)
        given = [r for r in rows if r in inputs]
        if given:
            x = x.expand(-1, len(rows), -1, -1, -1)
            x = torch.stack([inputs[r] if r in inputs else x[:, j] for j, r in enumerate(rows)], 1)
        return x

    def _carried(self, found: Pass, depth: int, edges: Tensor, frozen: bool) -> Tensor:
        if all(step.after is None for step in self.steps[:depth]):
            x = found.streams[depth][:, None]
            return x + sum(self._swapped(found, i, edges) for i in range(-1, depth))
        x = found.streams[0][:, None] + self._swapped(found, -1, edges)
        for i in range(depth):
            x = self._combined(i, x, found.totals[i][:, None] + self._swapped(found, i, edges), frozen)
        return x

    def _swapped(self, found: Pass, i: int, edges: Float[Tensor, "world receiver sender"]) -> Tensor:
        """Return what changes in what receivers read by their cut edges from the senders of a step."""
        weight = edges[:, :, self.columns[i]]
        if not weight.any():
            return weight.new_zeros(())
        difference = self.off.of(i) - found.of(i)
        if len(difference) == 1:
            return torch.einsum("wru,ubpd->wrbpd", weight, difference[0].expand(-1, self.batch, -1, -1))
        return torch.einsum("wru,wubpd->wrbpd", weight, difference)

    def _combined(self, i: int, x: Tensor, total: Tensor, frozen: bool = False) -> Tensor:
        """Return the stream behind a sub-layer."""
        step = self.steps[i]
        if step.stream_norm:
            return normed(step.stream_norm, x + total, self.clean.streams[i] + self.clean.totals[i] if frozen else None)
        return x + normed(step.write_norm, total, self.clean.totals[i] if frozen and step.write_norm else None)

    def _applied(self, step: SubLayer, x: Float[Tensor, "world batch pos d_model"]) -> Tensor:
        return step.part(x.flatten(0, 1), self.context(len(x)))[0].unflatten(0, (len(x), -1))


def _of_logits(metric: MetricLike) -> Metric:
    found = metric if isinstance(metric, Metric) else Metric("metric", metric, pos=None)
    if found.site != "logits":
        raise AnalysisUnavailable(
            f'a circuit ends in the logits, and "{found.name}" is read at "{found.site}".\n'
            "    Give a metric of the logits, or patch sites with sweep(…)."
        )
    return found
