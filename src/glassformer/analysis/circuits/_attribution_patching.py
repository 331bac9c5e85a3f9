"""Attribution patching: every patch at once, to first order.

    node    effect of u       ~  (u_corrupt - u_clean) . dm/du
    edge    effect of u -> r  ~  (u_corrupt - u_clean) . dm/dx_r      x_r: the copy of the stream that r reads

Two passes and one backward pass serve all edges: their scores are one matrix product per sub-layer, writes times
gradients. A gradient knows one point. Where attention is saturated it is nearly zero although the patch changes
everything, so gradients can be averaged along the way from the clean run to the corrupt one (`steps`), and every result
can be held against exact patching (`verified`).

Source: Nanda 2023, "Attribution Patching"; Syed et al. 2023, "Attribution Patching Outperforms Automated Circuit
Discovery" (edges); Hanna et al. 2024, "Have Faith in Faithfulness" (integrated gradients).
"""

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.circuits._circuit_runs import CircuitRuns, MetricLike
from glassformer.analysis.circuits._edge_scores import (
    GradientAt,
    Point,
    Report,
    constant,
    edge_scores,
    node_gradients,
    points_of,
    require_gradient,
)
from glassformer.analysis.circuits._graph import Edge
from glassformer.analysis.circuits._path_patching import ends, patch_edges
from glassformer.analysis.circuits._two_runs import two_runs
from glassformer.analysis.contrasts import PromptPairs
from glassformer.analysis.question import question
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike
from glassformer.models.evaluation import evaluating
from glassformer.provenance import Note, distinct
from glassformer.trace import Tape
from glassformer.words import sentence

MISSED = 0.1  # of the difference between two runs, from where on what is not explained is said


@dataclasses.dataclass(frozen=True, eq=False)
class Verified(Result):
    """First-order effects beside exact ones, for the largest and for some drawn at random.

    Args:
        estimate: Mean over prompts, by `component` (a node, or an edge `L0H1 -> L1H6.k`).
        exact: The same by patching.
        largest: How many of them, from the first, are those with the largest estimates; the others were drawn.
        error: Mean absolute difference, in units of the metric.
        worst: Largest absolute difference.
        rank_correlation: Spearman's, over all of them; NaN if one side is constant.
    """

    HEADLINE = ("estimate", "exact")
    SIGNED = ("estimate", "exact")

    estimate: Labelled
    exact: Labelled
    largest: int
    error: float
    worst: float
    rank_correlation: float


@dataclasses.dataclass(frozen=True, eq=False)
class NodeAttribution(Result):
    """First-order effect of patching each sender for everybody.

    Args:
        effect: Estimated metric less the clean metric, `sender batch`.
        clean: Metric of the clean run, `batch`.
        corrupt: Metric of the corrupt run, `batch`.
        gradient_at: Where gradients were taken.
        steps: How many gradients were averaged.
        metric: Name of what was measured.
        runs: The two runs, for `verified`; not exported.
    """

    HEADLINE = ("effect",)
    SIGNED = ("effect", "clean", "corrupt")

    effect: Labelled
    clean: Labelled
    corrupt: Labelled
    gradient_at: GradientAt
    steps: int
    metric: str
    runs: Any = dataclasses.field(default=None, repr=False)

    def verified(self, k: int = 10, sample: int = 10, *, seed: int = 0, report: Report = None) -> Verified:
        """Patch the k senders with the largest estimates and a sample of the others, and compare.

        Args:
            k: How many of the largest.
            sample: How many others, drawn at random.
            seed: Of the draw.
            report: Called with (patches done, in all).
        """
        runs, estimate = self.runs, self.effect.values.mean(-1)
        order = _chosen(estimate, k, sample, seed)
        cuts = torch.zeros(len(order), *runs.graph.allowed.values.shape, dtype=torch.bool)
        for i, u in enumerate(order):
            cuts[i, :, u] = runs.graph.allowed.values[:, u]
        exact = (runs.evaluate(cuts, report=report) - self.clean.values).mean(-1)
        labels = [str(label) for label in self.effect.labels("sender")]
        return _of(self, seed, _verified(estimate[order], exact, [labels[i] for i in order], min(k, len(labels))))

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        return _without_runs(self, packed)


@dataclasses.dataclass(frozen=True, eq=False)
class EdgeAttribution(Result):
    """First-order effect of patching each edge.

    Args:
        effect: Estimated metric less the clean metric, averaged over prompts, `receiver sender`; NaN where there is no
            edge.
        spread: Standard error over prompts; NaN for one prompt.
        clean: Metric of the clean run, `batch`.
        corrupt: Metric of the corrupt run, `batch`.
        gradient_at: Where gradients were taken.
        steps: How many gradients were averaged.
        unexplained: What is left of corrupt less clean when the effects of all edges out of the embedding are taken
            away, mean over prompts. Everything that differs enters there: gradients at points enough leave nothing.
        metric: Name of what was measured.
        runs: The two runs, for `verified`; not exported.
    """

    HEADLINE = ("effect",)
    SIGNED = ("effect", "share", "clean", "corrupt")

    effect: Labelled
    spread: Labelled
    clean: Labelled
    corrupt: Labelled
    gradient_at: GradientAt
    steps: int
    unexplained: float
    metric: str
    runs: Any = dataclasses.field(default=None, repr=False)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What must be known to read the numbers right, such as that points on the way missed a step."""
        return distinct(super().notes, self._missed())

    def _missed(self) -> tuple[Note, ...]:
        gap = float((self.corrupt.values - self.clean.values).double().mean())
        if self.gradient_at != "inputs" or abs(self.unexplained) <= MISSED * abs(gap):
            return ()
        seen = sentence(
            "Gradients at {steps} points explain {found:+.3f} of {gap:+.3f} that the {metric} changes by.",
            steps=self.steps, found=gap - self.unexplained, gap=gap, metric=sentence(self.metric),
        )  # fmt: skip
        meaning = sentence(
            "Where a part of the model is a step, points beside it see nothing: an edge whose estimate is 0 may do all "
            "of the rest."
        )
        return (Note(seen, meaning, sentence("Ask for more points, or for exact effects: edge_effects.")),)

    @property
    def share(self) -> Labelled:
        """Estimated effect in units of corrupt less clean: 1 if the edge carries all of it."""
        gap = (self.corrupt.values - self.clean.values).mean()
        return dataclasses.replace(self.effect, values=self.effect.values / gap)

    def top(self, k: int = 10) -> list[tuple[Edge, float]]:
        """The k edges with the largest effects by size, and their effects."""
        values = self.effect.values.nan_to_num(0.0)
        order = values.abs().flatten().topk(min(k, self.runs.graph.n_edges)).indices
        rows = [(int(i) // values.shape[1], int(i) % values.shape[1]) for i in order]
        graph = self.runs.graph
        return [(Edge(graph.senders[u].label, graph.receivers[r].label), float(values[r, u])) for r, u in rows]

    def verified(self, k: int = 10, sample: int = 10, *, seed: int = 0, report: Report = None) -> Verified:
        """Patch the k edges with the largest estimates and a sample of the others, and compare; as for nodes."""
        edges = self.runs.graph.edges
        estimate = self.effect.values[self.runs.graph.allowed.values.to(self.effect.values.device)]
        order = _chosen(estimate, k, sample, seed)
        chosen = [edges[i] for i in order]
        exact = (patch_edges(self.runs, chosen, report=report) - self.clean.values).mean(-1)
        labels = [f"{sender} -> {receiver}" for sender, receiver in chosen]
        return _of(self, seed, _verified(estimate[order], exact, labels, min(k, len(edges))))

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        return _without_runs(self, packed)


@question("What would patching each sender do, by one gradient?", of="pairs of prompts", holds=("gradients",))
def attribute_nodes(
    model: ModelLike,
    pairs: PromptPairs,
    metric: MetricLike | None = None,
    *,
    gradient_at: GradientAt = "clean",
    steps: int = 5,
    report: Report = None,
) -> NodeAttribution:
    """Estimate what patching each sender would do.

    Args:
        metric: A differentiable metric of the logits; by default what the answers of the pairs are for.
        gradient_at: `clean` or `corrupt`: at that run. `inputs`: averaged over `steps` points on the way between the
            two runs' inputs to the stream. `activations`: averaged over points between what the sender itself writes in
            both, all else clean; in the limit of many steps that is the exact effect, at a pass per sender and step.
        steps: How many points.

    Raises:
        AnalysisUnavailable: The metric does not depend differentiably on the logits.
        ShapeMismatch: The prompts differ in shape.
    """
    runs = two_runs(model, pairs, metric, "attribute_nodes")
    labels = [sender.label for sender in runs.graph.senders]
    effect = runs.clean.writes.new_zeros(len(labels), runs.batch)
    if gradient_at == "activations":
        _along_activations(runs, effect, steps, report)
    else:
        points = points_of(runs, gradient_at, steps)
        for done, point in enumerate(points):
            _add_effects(runs, point, effect)
            if report is not None:
                report(done + 1, len(points))
        effect /= len(points)
    clean_value, corrupt_value = ends(runs)
    return NodeAttribution(
        effect=Labelled(effect, ("sender", "batch"), {"sender": labels}),
        clean=clean_value,
        corrupt=corrupt_value,
        gradient_at=gradient_at,
        steps=1 if gradient_at in ("clean", "corrupt") else steps,
        metric=runs.metric.name,
        runs=runs,
    )


@question("What would patching each edge do, by one gradient?", of="pairs of prompts", holds=("gradients",))
def attribute_edges(
    model: ModelLike,
    pairs: PromptPairs,
    metric: MetricLike | None = None,
    *,
    gradient_at: GradientAt = "clean",
    steps: int = 5,
    split_embedding: bool = False,
    report: Report = None,
) -> EdgeAttribution:
    """Estimate what patching each edge would do: edge attribution patching.

    Args:
        metric: A differentiable metric of the logits; by default what the answers of the pairs are for.
        gradient_at: `clean` or `corrupt`: at that run, for two forward passes and a backward one. `inputs`: averaged
            over `steps` points on the way from the corrupt to the clean inputs of the stream, the clean one included.
            An edge has no `activations` of its own.
        steps: How many points.
        split_embedding: Let token and position vectors be two senders, as in `circuit_graph`.

    Raises:
        AnalysisUnavailable: The metric does not depend differentiably on the logits, or gradients are asked for that
            edges do not have.
        ShapeMismatch: The prompts differ in shape.
    """
    runs = two_runs(model, pairs, metric, "attribute_edges", split_embedding=split_embedding)
    scores = edge_scores(runs, gradient_at, steps, report)
    absent = ~runs.graph.allowed.values.to(scores.device)
    clean_value, corrupt_value = ends(runs)
    coords = runs.graph.allowed.coords

    def labelled(values: Tensor) -> Labelled:
        return Labelled(values.masked_fill(absent, torch.nan), ("receiver", "sender"), coords)

    spread = scores.std(0) / runs.batch**0.5 if runs.batch > 1 else torch.full_like(scores[0], torch.nan)
    return EdgeAttribution(
        effect=labelled(scores.mean(0)),
        spread=labelled(spread),
        clean=clean_value,
        corrupt=corrupt_value,
        gradient_at=gradient_at,
        steps=steps if gradient_at == "inputs" else 1,
        unexplained=float((corrupt_value.values - clean_value.values).mean() - _out_of_inputs(runs, scores)),
        metric=runs.metric.name,
        runs=runs,
    )


def _out_of_inputs(runs: CircuitRuns, scores: Float[Tensor, "batch receiver sender"]) -> Float[Tensor, ""]:
    """Return the effects of all edges out of what enters the stream, and out of an encoder, taken together."""
    entering = [*range(len(runs.graph.senders))[runs.columns[-1]], *runs.sources]
    return scores[..., entering].sum((1, 2)).mean()


def _add_effects(runs: CircuitRuns, point: Point, effect: Float[Tensor, "sender batch"]) -> None:
    """Add every sender's first-order effect, with gradients taken at one point."""
    found, source = node_gradients(runs, point)
    for i, gradient in found.items():
        columns = runs.columns[i]
        difference = runs.corrupt.writes[:, columns] - runs.clean.writes[:, columns]
        effect[columns] += torch.einsum("bupd,bpd->ub", difference, gradient)
    if source is not None:
        effect[runs.sources[0]] += _source_effect(runs, source)


def _source_effect(runs: CircuitRuns, gradient: Tensor) -> Float[Tensor, " batch"]:
    assert runs.corrupt.source is not None and runs.clean.source is not None, "a source has both"
    return torch.einsum("bpd,bpd->b", runs.corrupt.source - runs.clean.source, gradient)


def _along_activations(runs: CircuitRuns, effect: Tensor, steps: int, report: Report) -> None:
    """Average the gradient along each sender's own way from its clean write to its corrupt one."""
    # midpoints: the rule that errs least for so many points
    shares = (torch.arange(steps, dtype=effect.dtype) + 0.5) / steps
    for u, sender in enumerate(runs.graph.senders):
        if sender.kind == "source":
            effect[u] += _along_source(runs, shares)
        else:
            for some in shares.split(runs.at_once):
                effect[u] += _slopes(runs, u, some) / steps
        if report is not None:
            report(u + 1, len(runs.graph.senders))


def _slopes(runs: CircuitRuns, u: int, shares: Float[Tensor, " world"]) -> Float[Tensor, " batch"]:
    """Return the sum over worlds of a sender's first-order effect, each with so much of its corrupt write put in."""
    step, worlds = runs.graph.senders[u].step, len(shares)
    cut = torch.zeros(worlds, *runs.graph.allowed.values.shape, dtype=shares.dtype)
    cut[:, :, u] = shares[:, None] * runs.graph.allowed.values[:, u]
    first = runs.block_start(max(step, 0))
    site = runs.read_at(0) if step < 0 else runs.out(step)
    x = runs.clean.sites[runs.read_at(first)].repeat(worlds, 1, 1).requires_grad_()
    with evaluating(runs.model), constant(runs.model), torch.enable_grad():
        # what the sender writes is held fixed: only what others read of it moves
        edits = runs.cuts(cut, dataclasses.replace(runs.exchange(runs.clean, first), constant=True))
        tape = Tape(runs.model, [site], edits, grad=True)
        layer = runs.steps[first].block.layer
        value = runs.measure(runs.passed(layer, x, runs.clean.source, worlds, tape)).sum()
        require_gradient(runs, value)
        (gradient,) = torch.autograd.grad(value, tape.values[site])
    difference = runs.corrupt.writes[:, u] - runs.clean.writes[:, u]
    return torch.einsum("bpd,wbpd->b", difference, gradient.unflatten(0, (worlds, -1)))


def _along_source(runs: CircuitRuns, shares: Float[Tensor, " world"]) -> Float[Tensor, " batch"]:
    clean, corrupt = runs.clean, runs.corrupt
    assert clean.source is not None and corrupt.source is not None, "a source has both"
    found = torch.zeros(runs.batch, dtype=clean.source.dtype, device=clean.source.device)
    for share in shares.tolist():
        point = Point(clean.sites[runs.read_at(0)], clean.source + share * (corrupt.source - clean.source))
        gradient = node_gradients(runs, point)[1]
        assert gradient is not None, "there is a source"
        found += _source_effect(runs, gradient) / len(shares)
    return found


def _verified(estimate: Tensor, exact: Tensor, labels: list[str], largest: int) -> Verified:
    apart = (estimate - exact).abs()
    coords = {"component": labels}
    ranks = torch.stack([_ranks(values) for values in (estimate, exact)])
    constant = bool(estimate.std() == 0) or bool(exact.std() == 0) if len(labels) > 1 else True
    correlation = torch.nan if constant else float(torch.corrcoef(ranks)[0, 1])
    return Verified(
        Labelled(estimate, ("component",), coords), Labelled(exact, ("component",), coords), largest,
        float(apart.mean()), float(apart.max()), correlation,
    )  # fmt: skip


def _ranks(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return ranks from 0; equal values share the mean of theirs."""
    above = (values[:, None] > values).double()
    return above.sum(1) + ((values[:, None] == values).double().sum(1) - 1) / 2


def _of(estimates: Result, seed: int, found: Verified) -> Verified:
    """Return a check with what the estimates that it checks are of, and what must be known of them."""
    bound = estimates.binding
    return found.noted(*estimates.notes).bound(None if bound is None else bound.of("verified", seed=seed))


def _chosen(estimate: Tensor, k: int, sample: int, seed: int) -> list[int]:
    order = estimate.abs().argsort(descending=True).tolist()
    rest = order[k:]
    drawn = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))[:sample]
    return order[:k] + [rest[int(i)] for i in drawn]


def _without_runs(result: Any, packed: bool) -> dict[str, Any]:
    return Result.to_dict(result.replace(runs=None), packed)
