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

from glassformer.analysis._run import evaluating
from glassformer.analysis.circuits._edge_scores import (
    GradientAt,
    Report,
    edge_scores,
    gradients,
    points_of,
    source_effect,
)
from glassformer.analysis.circuits._graph import Edge
from glassformer.analysis.circuits._passes import Pass
from glassformer.analysis.circuits._path_patching import ends, patch_edges
from glassformer.analysis.circuits._two_runs import two_runs
from glassformer.analysis.circuits._wires import MetricLike, Wires
from glassformer.analysis.contrasts import PromptPairs
from glassformer.analysis.question import question
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike


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
        wires: The two runs, for `verified`; not exported.
    """

    effect: Labelled
    clean: Labelled
    corrupt: Labelled
    gradient_at: GradientAt
    steps: int
    metric: str
    wires: Any = dataclasses.field(default=None, repr=False)

    def verified(self, k: int = 10, sample: int = 10, *, seed: int = 0, report: Report = None) -> Verified:
        """Patch the k senders with the largest estimates and a sample of the others, and compare.

        Args:
            k: How many of the largest.
            sample: How many others, drawn at random.
            seed: Of the draw.
            report: Called with (patches done, in all).
        """
        wires, estimate = self.wires, self.effect.values.mean(-1)
        order = _chosen(estimate, k, sample, seed)
        cuts = torch.zeros(len(order), *wires.graph.allowed.values.shape, dtype=torch.bool)
        for i, u in enumerate(order):
            cuts[i, :, u] = wires.graph.allowed.values[:, u]
        exact = (wires.evaluate(cuts, report=report) - self.clean.values).mean(-1)
        labels = [str(label) for label in self.effect.labels("sender")]
        return _verified(estimate[order], exact, [labels[i] for i in order], min(k, len(labels)))

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        return _without_wires(self, packed)


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
        metric: Name of what was measured.
        wires: The two runs, for `verified`; not exported.
    """

    effect: Labelled
    spread: Labelled
    clean: Labelled
    corrupt: Labelled
    gradient_at: GradientAt
    steps: int
    metric: str
    wires: Any = dataclasses.field(default=None, repr=False)

    @property
    def share(self) -> Labelled:
        """Estimated effect in units of corrupt less clean: 1 if the edge carries all of it."""
        gap = (self.corrupt.values - self.clean.values).mean()
        return dataclasses.replace(self.effect, values=self.effect.values / gap)

    def top(self, k: int = 10) -> list[tuple[Edge, float]]:
        """Return the k edges with the largest effects by size, and their effects."""
        values = self.effect.values.nan_to_num(0.0)
        order = values.abs().flatten().topk(min(k, self.wires.graph.n_edges)).indices
        rows = [(int(i) // values.shape[1], int(i) % values.shape[1]) for i in order]
        graph = self.wires.graph
        return [(Edge(graph.senders[u].label, graph.receivers[r].label), float(values[r, u])) for r, u in rows]

    def verified(self, k: int = 10, sample: int = 10, *, seed: int = 0, report: Report = None) -> Verified:
        """Patch the k edges with the largest estimates and a sample of the others, and compare; as for nodes."""
        edges = self.wires.graph.edges
        estimate = self.effect.values[self.wires.graph.allowed.values.to(self.effect.values.device)]
        order = _chosen(estimate, k, sample, seed)
        chosen = [edges[i] for i in order]
        exact = (patch_edges(self.wires, chosen, report=report) - self.clean.values).mean(-1)
        labels = [f"{sender} -> {receiver}" for sender, receiver in chosen]
        return _verified(estimate[order], exact, labels, min(k, len(edges)))

    def to_dict(self, packed: bool = False) -> dict[str, Any]:
        return _without_wires(self, packed)


@question("What would patching each sender do, by one gradient?", of="pairs of prompts")
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
        model: A decoder or an encoder-decoder.
        pairs: The base and where senders' writes come from: `(clean, corrupt)`, a `Contrast`, or `Pairs`.
        metric: A differentiable metric of the logits; by default what the answers of the pairs are for.
        gradient_at: `clean` or `corrupt`: at that run. `inputs`: averaged over `steps` points on the way between the
            two runs' inputs to the stream. `activations`: averaged over points between what the sender itself writes in
            both, all else clean; in the limit of many steps that is the exact effect, at a pass per sender and step.
        steps: How many points.
        report: Called with (passes done, in all).

    Raises:
        AnalysisUnavailable: The metric does not depend differentiably on the logits.
        ShapeMismatch: The prompts differ in shape.
    """
    wires = two_runs(model, pairs, metric, "attribute_nodes")
    places = [(i, "out") for i in range(-1, len(wires.steps))]
    labels = [sender.label for sender in wires.graph.senders]
    effect = wires.clean.streams[0].new_zeros(len(labels), wires.batch)
    if gradient_at == "activations":
        _along_activations(wires, effect, steps, report)
    else:
        points = points_of(wires, gradient_at, steps)
        for done, point in enumerate(points):
            found, _ = gradients(wires, point, places)
            for i in range(-1, len(wires.steps)):
                difference = (wires.corrupt.of(i) - wires.clean.of(i))[0]
                effect[wires.columns[i]] += torch.einsum("ubpd,bpd->ub", difference, found[i, "out"][0])
            source_effect(wires, effect, found)
            if report is not None:
                report(done + 1, len(points))
        effect /= len(points)
    clean_value, corrupt_value = ends(wires)
    return NodeAttribution(
        Labelled(effect, ("sender", "batch"), {"sender": labels}), clean_value, corrupt_value, gradient_at,
        1 if gradient_at in ("clean", "corrupt") else steps, wires.metric.name, wires,
    )  # fmt: skip


@question("What would patching each edge do, by one gradient?", of="pairs of prompts")
def attribute_edges(
    model: ModelLike,
    pairs: PromptPairs,
    metric: MetricLike | None = None,
    *,
    gradient_at: GradientAt = "clean",
    steps: int = 5,
    report: Report = None,
) -> EdgeAttribution:
    """Estimate what patching each edge would do: edge attribution patching.

    Args:
        model: A decoder or an encoder-decoder.
        pairs: The base and where senders' writes come from: `(clean, corrupt)`, a `Contrast`, or `Pairs`.
        metric: A differentiable metric of the logits; by default what the answers of the pairs are for.
        gradient_at: `clean` or `corrupt`: at that run, for two forward passes and a backward one. `inputs`: averaged
            over `steps` points on the way from the corrupt to the clean inputs of the stream, the clean one included.
            An edge has no `activations` of its own.
        steps: How many points.
        report: Called with (gradients done, in all).

    Raises:
        AnalysisUnavailable: The metric does not depend differentiably on the logits, or gradients are asked for that
            edges do not have.
        ShapeMismatch: The prompts differ in shape.
    """
    wires = two_runs(model, pairs, metric, "attribute_edges")
    scores = edge_scores(wires, gradient_at, steps, report)
    absent = ~wires.graph.allowed.values.to(scores.device)
    clean_value, corrupt_value = ends(wires)
    coords = wires.graph.allowed.coords

    def labelled(values: Tensor) -> Labelled:
        return Labelled(values.masked_fill(absent, torch.nan), ("receiver", "sender"), coords)

    spread = scores.std(0) / wires.batch**0.5 if wires.batch > 1 else torch.full_like(scores[0], torch.nan)
    return EdgeAttribution(
        labelled(scores.mean(0)), labelled(spread), clean_value, corrupt_value, gradient_at,
        steps if gradient_at == "inputs" else 1, wires.metric.name, wires,
    )  # fmt: skip


def _along_activations(wires: Wires, effect: Tensor, steps: int, report: Report) -> None:
    """Average the gradient along each sender's own way from its clean write to its corrupt one."""
    # midpoints: the rule that errs least for so many points
    shares = (torch.arange(steps, dtype=effect.dtype) + 0.5) / steps
    for u, sender in enumerate(wires.graph.senders):
        if sender.kind == "source":
            _along_source(wires, effect, shares)
        else:
            for some in shares.split(wires.at_once):
                effect[u] += _slopes(wires, u, some) / steps
        if report is not None:
            report(u + 1, len(wires.graph.senders))


def _slopes(wires: Wires, u: int, shares: Float[Tensor, " world"]) -> Float[Tensor, " batch"]:
    """Return the sum over worlds of a sender's first-order effect, each with so much of its corrupt write put in."""
    sender = wires.graph.senders[u]
    cut = torch.zeros(len(shares), *wires.graph.allowed.values.shape, dtype=shares.dtype)
    cut[:, :, u] = shares[:, None] * wires.graph.allowed.values[:, u]
    leaf = wires.clean.streams[0].new_zeros(len(shares), *wires.clean.streams[0].shape[1:]).requires_grad_()
    with evaluating(wires.model), torch.enable_grad():
        found = wires.run(cut, leaves={(sender.step, "out"): leaf}, start=max(sender.step, 0))
        (gradient,) = torch.autograd.grad(wires.measure(found).sum(), leaf)
    difference = (wires.corrupt.of(sender.step) - wires.clean.of(sender.step))[0, sender.index]
    return torch.einsum("bpd,wbpd->b", difference, gradient)


def _along_source(wires: Wires, effect: Tensor, shares: Float[Tensor, " world"]) -> None:
    clean, corrupt = wires.clean, wires.corrupt
    assert clean.source is not None and corrupt.source is not None
    for share in shares.tolist():
        source = clean.source + share * (corrupt.source - clean.source)
        found, _ = gradients(wires, Pass(clean.entry, source, clean.streams[:1]), [(-1, "out")])
        source_effect(wires, effect, found, 1 / len(shares))


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


def _chosen(estimate: Tensor, k: int, sample: int, seed: int) -> list[int]:
    order = estimate.abs().argsort(descending=True).tolist()
    rest = order[k:]
    drawn = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))[:sample]
    return order[:k] + [rest[int(i)] for i in drawn]


def _without_wires(result: Any, packed: bool) -> dict[str, Any]:
    return Result.to_dict(dataclasses.replace(result, wires=None), packed)
