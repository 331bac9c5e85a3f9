"""Path patching: what a sender does through one direct path, measured exactly.

    path_patching(model, pairs, receivers="L1H6.k")     every sender, through that key alone
    sender_effects(model, pairs)                        total = direct + indirect
    edge_effects(model, pairs)                          every edge

The base is the clean run; along the path stands what the sender writes in the corrupt run. Up to the receiver nothing
is run: what it reads changes by the difference of the two writes. From the receiver on everything is live. An effect is
the metric with the path patched less the clean metric.

Source: Wang et al. 2022, "Interpretability in the Wild", section 3.1; Goldowsky-Dill et al. 2023, "Localizing Model
Behavior with Path Patching".
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glassformer.analysis.circuits._circuit_runs import CircuitRuns, MetricLike
from glassformer.analysis.circuits._direct_paths import received, run_given, through_mlps
from glassformer.analysis.circuits._graph import CircuitGraph, Edge
from glassformer.analysis.circuits._two_runs import two_runs
from glassformer.analysis.contrasts import PromptPairs
from glassformer.analysis.question import question
from glassformer.analysis.uncertainty import mean, standard_error
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike
from glassformer.models.evaluation import evaluating

Mlps = Literal["frozen", "recomputed"]
Norm = Literal["live", "frozen"]
Report = Callable[[int, int], None] | None


class _Effects(Result):
    """What is common to effects that have an axis `batch` and the metrics of both runs."""

    HEADLINE = ("share",)
    SIGNED = ("effect", "share", "clean", "corrupt")

    effect: Labelled
    clean: Labelled
    corrupt: Labelled

    @property
    def share(self) -> Labelled:
        """Mean effect in units of corrupt less clean: 1 if it is all of the difference."""
        found = mean(self.effect)
        return dataclasses.replace(found, values=found.values / (self.corrupt.values - self.clean.values).mean())

    @property
    def spread(self) -> Labelled:
        """Standard error of the mean effect over prompts; NaN for one prompt."""
        return standard_error(self.effect)


@dataclasses.dataclass(frozen=True, eq=False)
class PathPatching(_Effects):
    """What senders do through paths that end in some receivers.

    Args:
        effect: Metric with a sender's paths patched less the clean metric, `sender batch`.
        clean: Metric of the clean run, `batch`.
        corrupt: Metric of the corrupt run, `batch`.
        receivers: Where the paths end; all of them are patched together.
        mlps: Whether MLPs between sender and receiver keep what they wrote, or pass on what reaches them.
        norm: Whether the norms that a receiver reads through keep their scales.
        metric: Name of what was measured.
    """

    effect: Labelled
    clean: Labelled
    corrupt: Labelled
    receivers: tuple[str, ...]
    mlps: Mlps
    norm: Norm
    metric: str


@dataclasses.dataclass(frozen=True, eq=False)
class SenderEffects(Result):
    """What every sender does to the metric, split by path.

    Args:
        total: Patched for everybody, everything behind it live: `sender batch`.
        direct: Patched for the logits alone.
        indirect: The rest, through other heads and MLPs.
        clean: Metric of the clean run, `batch`.
        corrupt: Metric of the corrupt run, `batch`.
        norm: Whether the final norm keeps its scale in the direct effect. With `frozen` and a metric linear in the
            logits, the direct effect is the difference of direct logit attributions.
        metric: Name of what was measured.
    """

    HEADLINE = ("total", "direct", "indirect")
    SIGNED = ("total", "direct", "indirect", "clean", "corrupt")

    total: Labelled
    direct: Labelled
    indirect: Labelled
    clean: Labelled
    corrupt: Labelled
    norm: Norm
    metric: str


@dataclasses.dataclass(frozen=True, eq=False)
class EdgeEffects(_Effects):
    """What single edges do.

    Args:
        effect: Metric with the edge patched less the clean metric, `edge batch`.
        edges: What they are, in order.
        clean: Metric of the clean run, `batch`.
        corrupt: Metric of the corrupt run, `batch`.
        norm: Whether the norms that a receiver reads through keep their scales.
        metric: Name of what was measured.
    """

    effect: Labelled
    edges: tuple[Edge, ...]
    clean: Labelled
    corrupt: Labelled
    norm: Norm
    metric: str


@question("Which paths from senders to receivers carry the answer?", of="pairs of prompts")
def path_patching(
    model: ModelLike,
    pairs: PromptPairs,
    metric: MetricLike | None = None,
    *,
    senders: Sequence[str | Sequence[str]] | None = None,
    receivers: str | Sequence[str] = "logits",
    mlps: Mlps = "frozen",
    norm: Norm = "live",
    report: Report = None,
) -> PathPatching:
    """Patch the paths from each sender to some receivers.

    Heads between sender and receiver keep what they wrote in the clean run. With `mlps="frozen"` MLPs do too, and what
    is patched is the direct path alone.

    Args:
        senders: Labels (`L0H1`, `L0 mlp`, `embed`), or groups of labels patched together; by default each sender that
            comes before a receiver.
        receivers: `logits`, `L1H6.q`, `L1H6.k`, `L1H6.v`, `L1H6.gate`, `L1 mlp.in`; several are patched together.
        mlps: Whether MLPs between sender and receiver are frozen, or recomputed from what reaches them.
        norm: Whether the norms a receiver reads through are live, or keep the scales of the clean run.

    Raises:
        AnalysisUnavailable: There is no such sender or receiver.
        ShapeMismatch: The prompts differ in shape.
    """
    runs = two_runs(model, pairs, metric, "path_patching")
    graph = runs.graph
    names = (receivers,) if isinstance(receivers, str) else tuple(receivers)
    rows = [graph.receiver(name) for name in names]
    groups = _groups(graph, senders, rows)
    patched = torch.zeros(len(groups), len(graph.senders), dtype=torch.bool)
    for i, members in enumerate(groups.values()):
        patched[i, members] = True
    values: list[Tensor] = []
    with evaluating(model), torch.no_grad():
        for piece in runs.pieces(len(groups)):
            values.append(_patched(runs, patched[piece], rows, mlps, norm == "frozen"))
            if report is not None:
                report(piece.stop, len(groups))
    clean_value, corrupt_value = ends(runs)
    effect = torch.cat(values) - clean_value.values if values else clean_value.values.new_zeros(0, runs.batch)
    labelled = Labelled(effect, ("sender", "batch"), {"sender": list(groups)})
    receivers_found = tuple(graph.receivers[r].label for r in rows)
    return PathPatching(
        effect=labelled,
        clean=clean_value,
        corrupt=corrupt_value,
        receivers=receivers_found,
        mlps=mlps,
        norm=norm,
        metric=runs.metric.name,
    )


@question("How much of a sender's effect is direct?", of="pairs of prompts")
def sender_effects(
    model: ModelLike,
    pairs: PromptPairs,
    metric: MetricLike | None = None,
    *,
    senders: Sequence[str] | None = None,
    norm: Norm = "live",
    report: Report = None,
) -> SenderEffects:
    """Split what each sender does into its direct effect on the logits and what goes through others.

    Args:
        senders: Labels; all by default.
        norm: Whether the final norm is live or frozen in the direct effect; in the total effect norms are live.

    Raises:
        AnalysisUnavailable: There is no such sender.
        ShapeMismatch: The prompts differ in shape.
    """
    runs = two_runs(model, pairs, metric, "sender_effects")
    graph = runs.graph
    labels = [sender.label for sender in graph.senders] if senders is None else list(senders)
    chosen = [graph.sender(label) for label in labels]
    cuts = torch.zeros(len(chosen), *graph.allowed.values.shape, dtype=torch.bool)
    for i, u in enumerate(chosen):
        cuts[i, :, u] = graph.allowed.values[:, u]
    direct = cuts.clone()
    direct[:, :-1] = False
    clean_value, corrupt_value = ends(runs)
    total_effect = runs.evaluate(cuts, report=report) - clean_value.values
    direct_effect = runs.evaluate(direct, frozen=norm == "frozen") - clean_value.values

    def over_senders(values: Tensor) -> Labelled:
        return Labelled(values, ("sender", "batch"), {"sender": labels})

    return SenderEffects(
        total=over_senders(total_effect),
        direct=over_senders(direct_effect),
        indirect=over_senders(total_effect - direct_effect),
        clean=clean_value,
        corrupt=corrupt_value,
        norm=norm,
        metric=runs.metric.name,
    )


@question("What does each edge do by itself?", of="pairs of prompts")
def edge_effects(
    model: ModelLike,
    pairs: PromptPairs,
    metric: MetricLike | None = None,
    *,
    edges: Iterable[Edge | tuple[str, str]] | None = None,
    norm: Norm = "live",
    report: Report = None,
) -> EdgeEffects:
    """Patch single edges, each by itself.

    Args:
        edges: Pairs of labels; all edges by default.
        norm: Whether the norms a receiver reads through are live, or keep the scales of the clean run.

    Raises:
        AnalysisUnavailable: There is no such edge.
        ShapeMismatch: The prompts differ in shape.
    """
    runs = two_runs(model, pairs, metric, "edge_effects")
    chosen = runs.graph.edges if edges is None else [Edge(*edge) for edge in edges]
    values = patch_edges(runs, chosen, frozen=norm == "frozen", report=report)
    clean_value, corrupt_value = ends(runs)
    coords = {"edge": [f"{sender} -> {receiver}" for sender, receiver in chosen]}
    effect = Labelled(values - clean_value.values, ("edge", "batch"), coords)
    return EdgeEffects(effect, tuple(chosen), clean_value, corrupt_value, norm, runs.metric.name)


def patch_edges(
    runs: CircuitRuns, edges: Sequence[Edge], *, frozen: bool = False, report: Report = None
) -> Float[Tensor, "edge batch"]:
    """Return the metric with each edge cut by itself."""
    graph = runs.graph
    places = [(graph.receiver(edge.receiver), graph.sender(edge.sender)) for edge in edges]
    # a mask of all edges says, with its message, which of them the model lacks
    graph.mask(edges)
    # those that share a first layer share a pass; all masks at once would be as many numbers as edges squared
    order = sorted(range(len(edges)), key=lambda i: places[i][0])
    found = runs.clean.writes.new_zeros(len(edges), runs.batch)
    for piece in runs.pieces(len(order)):
        some = order[piece]
        cuts = torch.zeros(len(some), *graph.allowed.values.shape, dtype=torch.bool)
        for world, i in enumerate(some):
            cuts[world, places[i][0], places[i][1]] = True
        found[some] = runs.evaluate(cuts, frozen=frozen)
        if report is not None:
            report(piece.stop, len(order))
    return found


def ends(runs: CircuitRuns) -> tuple[Labelled, Labelled]:
    """Return the metric of the clean and of the corrupt run."""
    with torch.no_grad():
        clean, corrupt = (runs.measure(runs.logits(found))[0] for found in (runs.clean, runs.corrupt))
    return Labelled(clean, ("batch",)), Labelled(corrupt, ("batch",))


def _patched(
    runs: CircuitRuns, patched: Bool[Tensor, "world sender"], rows: Sequence[int], mlps: Mlps, frozen: bool
) -> Float[Tensor, "world batch"]:
    cut = torch.zeros(len(patched), *runs.graph.allowed.values.shape, dtype=torch.bool)
    cut[:, rows] = patched[:, None] & runs.graph.allowed.values[rows]
    # every receiver reads its direct paths alone, whatever another receiver has made of its own
    given = received(runs, cut, rows, frozen=frozen)
    if mlps == "recomputed":
        of_source = [each for each in given if runs.graph.receivers[each.rows[0]].source]
        of_stream = [each for each in given if not runs.graph.receivers[each.rows[0]].source]
        given = of_source + (through_mlps(runs, patched, of_stream, frozen=frozen) if of_stream else [])
    return runs.measure(run_given(runs, given, frozen=frozen))


def _groups(
    graph: CircuitGraph, senders: Sequence[str | Sequence[str]] | None, rows: Sequence[int]
) -> dict[str, list[int]]:
    if senders is not None:
        members = [(group,) if isinstance(group, str) else tuple(group) for group in senders]
        return {" + ".join(group): [graph.sender(label) for label in group] for group in members}
    read = graph.allowed.values[list(rows)].any(0).nonzero().flatten().tolist()
    return {graph.senders[u].label: [u] for u in read}
