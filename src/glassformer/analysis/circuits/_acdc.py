"""ACDC: prune a model's edges one by one, from the logits down, as long as it costs little.

    for each receiver, the last one first; for each sender it reads, the last one first:
        cut the edge;  if the cost rises by less than the threshold, leave it cut

The cost is KL(whole model || circuit) of next-token distributions, or minus a metric. On a cut edge stands what the
sender writes in the corrupt run. What comes out is a circuit, not the smallest one, and not the only one: it depends on
the order, which is recorded.

The result is that of the loop above, but few edges are run alone. Where nearly all edges go, the next ones are cut on
trust, each world with one more than the world before, and the pass is read up to the first edge that must stay. Edges
into something that nobody reads any more cost nothing and are not run.

Source: Conmy et al. 2023, "Towards Automated Circuit Discovery for Mechanistic Interpretability", algorithm 1.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glassformer.analysis.circuits._circuit_runs import CircuitRuns, MetricLike
from glassformer.analysis.circuits._edge_scores import edge_scores
from glassformer.analysis.circuits._graph import Edge
from glassformer.analysis.circuits._two_runs import two_runs
from glassformer.analysis.contrasts import PromptPairs, contrast
from glassformer.analysis.drawn_anew import drawn_anew
from glassformer.analysis.question import question
from glassformer.analysis.saved import SavedWork
from glassformer.analysis.sweep.metrics import kl_divergence, logit
from glassformer.errors import AnalysisUnavailable
from glassformer.files import json_text
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike
from glassformer.models.evaluation import evaluating
from glassformer.provenance import Binding, Note, distinct
from glassformer.words import sentence

Report = Callable[[int, int], None] | None

ORDER = sentence("receivers and senders from last to first")


@dataclasses.dataclass(frozen=True)
class Pruned:
    """One decision.

    Args:
        edge: The edge.
        change: What cutting it added to the cost at that moment.
        removed: Whether it was left cut.
    """

    edge: Edge
    change: float
    removed: bool


@dataclasses.dataclass(frozen=True)
class Compared:
    """What stands beside a circuit, to say how far it can be trusted.

    Args:
        overlap: Of the circuits of two halves of the prompts: edges in both over edges in either; NaN where both are
            empty.
        halves: How many edges each has.
        drawn_edges: How many edges are left in the model with weights drawn anew, at the same share of the difference.
        drawn_faithfulness: How far those go.
        passes: How many forward passes all of this took.
    """

    overlap: float
    halves: tuple[int, int]
    drawn_edges: int
    drawn_faithfulness: float
    passes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Acdc(Result):
    """The circuit that is left.

    Args:
        in_circuit: Whether an edge is in the circuit, `receiver sender`.
        edges: The same as pairs of labels.
        log: Every decision, in order; edges that a prefilter took away are not in it.
        cost: Of the circuit, mean over prompts: KL divergence in nats, or minus the metric.
        cost_full: Of the whole model.
        cost_empty: With every edge cut: of the corrupt run.
        threshold: By how much cutting an edge may raise the cost.
        absolute: Whether falling costs count like rising ones.
        prefiltered: How many edges a prefilter took away beforehand.
        order: In what order edges were tried.
        metric: Name of what was measured.
        passes: How many forward passes it took.
        compared: Size and overlap of circuits found otherwise, where `acdc` was asked to compare.
    """

    HEADLINE = ("in_circuit",)

    in_circuit: Labelled
    edges: tuple[Edge, ...]
    log: tuple[Pruned, ...]
    cost: float
    cost_full: float
    cost_empty: float
    threshold: float
    absolute: bool
    prefiltered: int
    order: str
    metric: str
    passes: int
    compared: Compared | None = None

    @property
    def gap(self) -> float:
        """What cutting every edge adds to the cost."""
        return self.cost_empty - self.cost_full

    @property
    def notes(self) -> tuple[Note, ...]:
        """What must be known to read the numbers right, such as that no edge could have been found to matter."""
        return distinct(super().notes, self._no_gap())

    def _no_gap(self) -> tuple[Note, ...]:
        gap, size = self.gap, max(abs(self.cost_full), abs(self.cost_empty), 1.0)
        said = {"metric": sentence(self.metric), "gap": f"{gap:.3g}", "threshold": f"{self.threshold:.3g}"}
        if abs(gap) <= 1e-6 * size:
            seen = sentence(
                "Cutting every edge changes the cost ({metric}) by {gap}: there is nothing to lose.", **said
            )
            advice = sentence("Measure what differs between the two runs, where it differs.")
        elif self.threshold >= abs(gap):
            seen = sentence(
                "The threshold of {threshold} is no less than what cutting every edge costs ({metric}), {gap}.", **said
            )
            advice = sentence("Give a threshold well below that.")
        else:
            return ()
        meaning = sentence("What is left says nothing of which edges matter.")
        return (Note(seen, meaning, advice, denies=True),)

    @property
    def faithfulness(self) -> float:
        """How far the circuit goes from the corrupt run (0) to the whole model (1); NaN where the two cost the same."""
        whole = self.cost_full - self.cost_empty
        return (self.cost - self.cost_empty) / whole if whole else math.nan

    @property
    def nodes(self) -> list[str]:
        """Labels of the senders that the circuit's edges start from, in the order of the forward pass."""
        used = self.in_circuit.values.any(0).tolist()
        return [str(label) for label, here in zip(self.in_circuit.labels("sender"), used) if here]


@dataclasses.dataclass(frozen=True, eq=False)
class AcdcCurve(Result):
    """Circuits over a range of thresholds.

    Args:
        n_edges: How many edges are left, by `threshold`.
        faithfulness: Of what is left, by `threshold`.
        circuits: The circuits, in order.
    """

    HEADLINE = ("n_edges", "faithfulness")
    SIGNED = ("faithfulness",)

    n_edges: Labelled
    faithfulness: Labelled
    circuits: tuple[Acdc, ...]


@question(
    "Which edges can go without changing the answer?",
    of="pairs of prompts",
    judge="the greedy loop, a pass for each edge, what each receiver reads added up for it alone",
)
def acdc(
    model: ModelLike,
    pairs: PromptPairs,
    metric: MetricLike | None = None,
    *,
    threshold: float,
    absolute: bool = False,
    candidates: int | None = None,
    split_embedding: bool = False,
    compare: bool = False,
    report: Report = None,
    save_to: str | Path | None = None,
) -> Acdc:
    """Find a circuit by greedy pruning.

    Args:
        pairs: The prompts the circuit is for, and those where the writes on cut edges come from: `(clean, corrupt)`, a
            `Contrast`, or `Pairs`.
        metric: What the circuit must not lose, larger being better (`logit_difference`); by default KL divergence from
            the whole model at the position that the pairs ask about.
        threshold: By how much the cost may rise per edge: nats, or units of the metric. Minus infinity keeps all edges,
            infinity none.
        absolute: Count a falling cost like a rising one. KL divergence can fall when an edge is cut, and heads that
            push the answer down vanish from the circuit otherwise.
        candidates: Keep only so many edges to begin with, those with the largest attribution patching scores of the
            metric (of the likeliest next token's logit where the cost is a KL divergence, whose gradient is zero at the
            clean run).
        split_embedding: Let token and position vectors be two senders, as in `circuit_graph`.
        compare: Say how far the circuit can be trusted: prune for each half of the prompts, and in the model with
            weights drawn anew (entries of each tensor shuffled), at the same share of its own difference. That is three
            further searches; in weights at random the third may take as many passes as there are edges.
        save_to: File for what is decided. A search that was interrupted goes on from it, to the same circuit; the file
            of another search is refused.

    Raises:
        CheckpointError: `save_to` holds another search, or is damaged.
        AnalysisUnavailable: The model is not one of ours, or a mechanism has no values. Or there is one prompt to
            compare halves of.
        ShapeMismatch: The prompts differ in shape.
    """
    runs = _prepared(model, pairs, metric, split_embedding)
    divergence = metric is None
    _require_halves(runs, compare, "acdc")
    told = {"threshold": threshold, "absolute": absolute, "candidates": candidates}
    saved = _Decisions(None if save_to is None else Path(save_to), runs, pairs, told)
    found = _prune(runs, divergence, threshold, absolute, candidates, report, saved.of("whole"))
    if not compare:
        return found
    other = _prepared(drawn_anew(model), pairs, metric, split_embedding)
    return found.replace(compared=_compared(found, runs, other, divergence, candidates, saved))


@question("How does a pruned circuit grow with its threshold?", of="pairs of prompts")
def acdc_curve(
    model: ModelLike,
    pairs: PromptPairs,
    metric: MetricLike | None = None,
    *,
    thresholds: Sequence[float],
    absolute: bool = False,
    candidates: int | None = None,
    split_embedding: bool = False,
    compare: bool = False,
    report: Report = None,
) -> AcdcCurve:
    """Find a circuit for each of several thresholds; errors as in `acdc`.

    Args:
        pairs: As in `acdc`.
        metric: What a circuit must not lose, as in `acdc`.
        thresholds: By how much the cost may rise per edge, a circuit for each.
        absolute: Count a falling cost like a rising one, as in `acdc`.
        candidates: Keep only so many edges to begin with, as in `acdc`.
        split_embedding: Let token and position vectors be two senders, as in `circuit_graph`.
        compare: Say of each circuit how far it can be trusted, as in `acdc`: three further searches per threshold.
    """
    runs, divergence = _prepared(model, pairs, metric, split_embedding), metric is None
    _require_halves(runs, compare, "acdc_curve")
    # one model of weights drawn anew for all thresholds
    other = _prepared(drawn_anew(model), pairs, metric, split_embedding) if compare else None
    found: list[Acdc] = []
    # candidates are the same at every threshold
    unsaved = _Decisions(None, runs, pairs, {})
    for done, threshold in enumerate(thresholds):
        circuit = _prune(runs, divergence, threshold, absolute, candidates, None, unsaved.of("whole"))
        if other is not None:
            circuit = circuit.replace(compared=_compared(circuit, runs, other, divergence, candidates, unsaved))
        found.append(circuit)
        if report is not None:
            report(done + 1, len(thresholds))
    over = (("threshold",), {"threshold": [float(threshold) for threshold in thresholds]})
    return AcdcCurve(
        Labelled(torch.tensor([len(circuit.edges) for circuit in found]), *over),
        Labelled(torch.tensor([circuit.faithfulness for circuit in found], dtype=torch.float64), *over),
        tuple(found),
    )


def _require_halves(runs: CircuitRuns, compare: bool, name: str) -> None:
    """Raise `AnalysisUnavailable` if halves of one prompt are asked for."""
    if compare and runs.batch < 2:
        raise AnalysisUnavailable(f"{name}: compare=True prunes for each half of the prompts, and there is one prompt.")


def _compared(
    found: Acdc,
    runs: CircuitRuns,
    drawn_runs: CircuitRuns,
    divergence: bool,
    candidates: int | None,
    saved: "_Decisions",
) -> Compared:
    """Return what stands beside a circuit.

    Args:
        found: The circuit.
        runs: What it was found in.
        drawn_runs: The same of the model with weights drawn anew.
        divergence: Whether the cost is a KL divergence.
        candidates: Edges kept to begin with.
        saved: Where decisions of the further searches go.
    """
    rows = torch.arange(runs.batch)
    halves = [
        _prune(runs, divergence, found.threshold, found.absolute, candidates, None, saved.of(f"half {i}"), half)
        for i, half in enumerate((rows[::2], rows[1::2]))
    ]
    full, empty = _ends(drawn_runs, divergence)
    share = found.threshold * abs((empty - full) / found.gap) if found.gap else found.threshold
    drawn = _prune(drawn_runs, divergence, share, found.absolute, candidates, None, saved.of("drawn anew"))
    return Compared(
        overlap=_overlap(*(half.in_circuit.values for half in halves)),
        halves=(len(halves[0].edges), len(halves[1].edges)),
        drawn_edges=len(drawn.edges),
        drawn_faithfulness=drawn.faithfulness,
        passes=sum(one.passes for one in (*halves, drawn)),
    )


def _overlap(first: Tensor, second: Tensor) -> float:
    """Return the share of the edges of either circuit that are in both."""
    either = int((first | second).sum())
    return int((first & second).sum()) / either if either else math.nan


def _prepared(
    model: ModelLike, pairs: PromptPairs, metric: MetricLike | None, split_embedding: bool = False
) -> CircuitRuns:
    if metric is not None:
        return two_runs(model, pairs, metric, "acdc", split_embedding=split_embedding)
    asked = contrast(model, pairs, "acdc")
    # the reference is what the model itself predicts, which has to be run first
    runs = two_runs(model, asked, logit(0, pos=asked.pos), "acdc", split_embedding=split_embedding)
    with torch.no_grad():
        reference = runs.logits(runs.clean)[0]
    return runs.measuring(kl_divergence(reference, pos=asked.pos))


def _ends(runs: CircuitRuns, divergence: bool, rows: Int[Tensor, " row"] | slice = slice(None)) -> tuple[float, float]:
    """Return the cost of the whole model, and that with every edge cut."""
    with evaluating(runs.model), torch.no_grad():
        passes = runs.logits(runs.clean), runs.run(runs.graph.allowed.values[None])
        full, empty = (_costs(runs.measure(found), divergence, rows)[0] for found in passes)
    return full, empty


def _costs(values: Float[Tensor, "world batch"], divergence: bool, rows: Int[Tensor, " row"] | slice) -> list[float]:
    """Return the mean cost over some prompts, world by world."""
    return [value if divergence else -value for value in values[:, rows].mean(-1).tolist()]


def _prune(
    runs: CircuitRuns,
    divergence: bool,
    threshold: float,
    absolute: bool,
    candidates: int | None,
    report: Report,
    saved: "_SavedSearch",
    rows: Int[Tensor, " row"] | slice = slice(None),
) -> Acdc:
    allowed = runs.graph.allowed.values
    cut = torch.zeros_like(allowed)
    if candidates is not None:
        cut = saved.prefiltered(lambda: allowed & ~_largest(runs, divergence, candidates))

    def cost(values: Float[Tensor, "world batch"]) -> list[float]:
        return _costs(values, divergence, rows)

    full, empty = _ends(runs, divergence, rows)
    with evaluating(runs.model), torch.no_grad():
        known = runs.recorded(cut)
        current = cost(runs.measure(runs.run(cut[None], known=known, start=len(runs.steps))))[0]
    search = _Search(runs, cut, current, threshold, absolute)
    waiting = [(r, u) for r, u in (allowed & ~cut).flip(0, 1).nonzero().tolist()]
    waiting = [(len(allowed) - 1 - r, allowed.shape[1] - 1 - u) for r, u in waiting]
    at_once = saved.go_on(search) or 4
    waiting = waiting[len(search.log) :]
    while waiting:
        dead = [not search.matters(r) for r, _ in waiting[: runs.at_once]]
        if dead[0]:
            count = dead.index(False) if False in dead else len(dead)
            count = search.decide(waiting[:count], [search.cost] * count)
        else:
            some = waiting[: dead.index(True) if True in dead else len(dead)][:at_once]
            start = min(runs.graph.receivers[r].step for r, _ in some)
            values = cost(runs.evaluate(search.chain(some), known=known, start=start))
            search.passes += 1
            count = search.decide(some, values)
            # as many on trust next time as went well this time, and some more
            at_once = min(runs.at_once, 2 * count)
        waiting = waiting[count:]
        saved.add(search, at_once, last=not waiting)
        if report is not None:
            report(len(search.log), len(search.log) + len(waiting))
    left = allowed & ~search.cut
    return Acdc(
        in_circuit=dataclasses.replace(runs.graph.allowed, values=left),
        edges=tuple(runs.graph.named(left)),
        log=tuple(search.log),
        cost=search.cost,
        cost_full=full,
        cost_empty=empty,
        threshold=threshold,
        absolute=absolute,
        prefiltered=int((allowed & cut).sum()),
        order=ORDER,
        metric=runs.metric.name,
        passes=search.passes,
    )


class _Search:
    """The state of the loop: what is cut, what it costs, what was decided."""

    def __init__(
        self, runs: CircuitRuns, cut: Bool[Tensor, "receiver sender"], cost: float, threshold: float, absolute: bool
    ) -> None:
        self.runs, self.cut, self.cost = runs, cut.clone(), cost
        self.threshold, self.absolute = threshold, absolute
        self.log: list[Pruned] = []
        self.passes = 0
        graph = runs.graph
        self.feeds = []
        for receiver in graph.receivers:
            fed = [graph.sender(label) for label in receiver.feeds]
            step = runs.steps[receiver.step] if receiver.step < len(runs.steps) else None
            if step is not None and step.attention is not None and step.attention.merge.config.norm == "all":
                # heads that are normed together all change when one does
                columns = runs.columns[receiver.step]
                fed = list(range(columns.start, columns.stop))
            self.feeds.append(fed)

    def matters(self, receiver: int) -> bool:
        """Return whether anything of what a receiver makes is still read."""
        if receiver == len(self.feeds) - 1:
            return True
        open_edges = self.runs.graph.allowed.values & ~self.cut
        return bool(open_edges[:, self.feeds[receiver]].any())

    def chain(self, edges: Sequence[tuple[int, int]]) -> Bool[Tensor, "world receiver sender"]:
        """Return worlds with one edge more cut each."""
        cuts = self.cut.repeat(len(edges), 1, 1)
        for i, (r, u) in enumerate(edges):
            cuts[i:, r, u] = True
        return cuts

    def decide(self, edges: Sequence[tuple[int, int]], costs: Sequence[float]) -> int:
        """Take edges out until one has to stay; return how many were decided."""
        graph = self.runs.graph
        for i, ((r, u), cost) in enumerate(zip(edges, costs)):
            change = cost - self.cost
            removed = (abs(change) if self.absolute else change) < self.threshold
            self.log.append(Pruned(Edge(graph.senders[u].label, graph.receivers[r].label), change, removed))
            if not removed:
                # the worlds behind this one go without the edge
                return i + 1
            self.cut[r, u], self.cost = True, cost
        return len(edges)


class _Decisions:
    """What several searches decided, in one file; nothing without a path.

    Args:
        path: The file.
        runs: What is searched: of another model or other prompts its values differ.
        pairs: The prompts, to be written beside.
        told: By what rules.
    """

    def __init__(self, path: Path | None, runs: CircuitRuns, pairs: PromptPairs, told: Mapping[str, Any]) -> None:
        identity = b""
        if path is not None:
            with evaluating(runs.model), torch.no_grad():
                passes = runs.logits(runs.clean), runs.run(runs.graph.allowed.values[None])
                ends = torch.cat([runs.measure(found) for found in passes]).double().cpu()
            edges = [(edge.sender, edge.receiver) for edge in runs.graph.edges]
            rules = {name: repr(value) for name, value in told.items()} | {"metric": runs.metric.name}
            identity = json_text([edges, rules]).encode() + ends.numpy().tobytes()
        other = "decisions of another search: another model, prompts, metric, threshold or candidates"
        self.work = SavedWork(path, "search", identity, other, Binding("acdc", runs.model, (pairs,)))
        self.tensors = dict(self.work.tensors)

    def of(self, name: str) -> "_SavedSearch":
        return _SavedSearch(self, name)


class _SavedSearch:
    """What one of the searches of a file decided."""

    def __init__(self, decisions: _Decisions, name: str) -> None:
        self.decisions, self.name = decisions, name

    def prefiltered(self, cut: Callable[[], Bool[Tensor, "receiver sender"]]) -> Bool[Tensor, "receiver sender"]:
        """Return which edges are cut to begin with, from the file if it says so."""
        known = self._known("cut")
        if known is None:
            known = cut()
            self._keep(cut=known)
            self.decisions.work.save(self.decisions.tensors)
        return known

    def go_on(self, search: "_Search") -> int:
        """Bring a search to where it was; return how many edges it tried at once by then, 0 for one not begun."""
        edges, numbers = self._known("edges"), self._known("numbers")
        if edges is None or numbers is None:
            return 0
        graph, (at_once, search.passes) = search.runs.graph, numbers.tolist()
        changes, costs = self._known("changes"), self._known("cost")
        assert changes is not None and costs is not None, "written together"
        for (r, u, removed), change in zip(edges.tolist(), changes.tolist()):
            edge = Edge(graph.senders[u].label, graph.receivers[r].label)
            search.log.append(Pruned(edge, change, bool(removed)))
            search.cut[r, u] |= bool(removed)
        search.cost = float(costs)
        return at_once

    def add(self, search: "_Search", at_once: int, *, last: bool) -> None:
        """Keep what was decided so far, on disk if that is due or it was the last."""
        work = self.decisions.work
        if not (work.is_due() or (last and work.path is not None)):
            return
        graph = search.runs.graph
        receivers, senders = ({end.label: i for i, end in enumerate(ends)} for ends in (graph.receivers, graph.senders))
        edges = [[receivers[p.edge.receiver], senders[p.edge.sender], int(p.removed)] for p in search.log]
        self._keep(
            edges=torch.tensor(edges).reshape(-1, 3),
            changes=torch.tensor([p.change for p in search.log], dtype=torch.float64),
            cost=torch.tensor(search.cost, dtype=torch.float64),
            numbers=torch.tensor([at_once, search.passes]),
        )
        work.save(self.decisions.tensors)

    def _known(self, what: str) -> Tensor | None:
        return self.decisions.tensors.get(f"{self.name}: {what}")

    def _keep(self, **found: Tensor) -> None:
        self.decisions.tensors |= {f"{self.name}: {what}": value for what, value in found.items()}


def _largest(runs: CircuitRuns, divergence: bool, candidates: int) -> Bool[Tensor, "receiver sender"]:
    allowed = runs.graph.allowed.values
    if candidates < 1:
        raise AnalysisUnavailable(f"acdc: candidates={candidates}; keep one edge at least, or None for all.")
    if divergence:
        pos = runs.metric.pos
        assert pos is not None, "the default cost looks at one position"
        with torch.no_grad():
            answers = runs.logits(runs.clean)[0].argmax(-1)
        runs = runs.measuring(logit(answers, pos=pos))
    size = edge_scores(runs, "inputs").mean(0).abs().cpu().masked_fill(~allowed, -1.0)
    chosen = size.flatten().topk(min(candidates, int(allowed.sum()))).indices
    return torch.zeros_like(allowed).flatten().index_fill(0, chosen, True).unflatten(0, tuple(allowed.shape))
