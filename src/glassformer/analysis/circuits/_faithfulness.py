"""Is a proposed circuit the whole story: faithfulness, completeness, minimality.

    faithful    the circuit alone does what the model does:   (m_C - m_0) / (m_M - m_0)   near 1
    complete    without any part K, circuit and model lose the same:   m(C - K) near m(M - K)
    minimal     every member is needed:   m(C) - m(C - v)   not 0

m_C is the metric with everything but the circuit cut, m_M that of the whole model, m_0 with everything cut. On cut
edges stands what the sender writes in the corrupt run, nothing, or what it writes there on average over prompts.

Source: Wang et al. 2022, "Interpretability in the Wild", section 4.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from glassformer.analysis.circuits._circuit_runs import MetricLike, Off
from glassformer.analysis.circuits._graph import CircuitGraph, Edge
from glassformer.analysis.circuits._two_runs import two_runs
from glassformer.analysis.contrasts import PromptPairs
from glassformer.analysis.question import question
from glassformer.arguments import Natural
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Labelled, Result
from glassformer.models import ModelLike

Member = str | tuple[str, str]


@dataclasses.dataclass(frozen=True, eq=False)
class Faithfulness(Result):
    """What a circuit is worth, prompt by prompt.

    Args:
        circuit: Metric of the circuit, `batch`.
        full: Metric of the whole model.
        empty: Metric with everything cut.
        without: Metric of the circuit without each of its members, `member batch`: minimality.
        knocked_circuit: Metric of the circuit without each knockout, `knockout batch`.
        knocked_full: Metric of the whole model without it: completeness is how close the two are.
        members: The circuit.
        off: What stood on cut edges: `corrupt`, `zero` or `mean`.
        metric: Name of what was measured.
    """

    HEADLINE = ("needed", "incompleteness")
    SIGNED = (
        "circuit",
        "full",
        "empty",
        "without",
        "knocked_circuit",
        "knocked_full",
        "by_prompt",
        "needed",
        "incompleteness",
    )

    circuit: Labelled
    full: Labelled
    empty: Labelled
    without: Labelled
    knocked_circuit: Labelled
    knocked_full: Labelled
    members: tuple[str, ...]
    off: Off
    metric: str

    @property
    def faithfulness(self) -> float:
        """The share of full less empty that the circuit reaches, a ratio of means."""
        return float((self.circuit.values - self.empty.values).mean() / (self.full.values - self.empty.values).mean())

    @property
    def faithfulness_spread(self) -> float:
        """Standard error of the ratio over prompts; NaN for one prompt."""
        whole = self.full.values - self.empty.values
        off = self.circuit.values - self.empty.values - self.faithfulness * whole
        return float(off.std() / len(off) ** 0.5 / whole.mean().abs())

    @property
    def by_prompt(self) -> Labelled:
        """The share for each prompt by itself; wild where full and empty hardly differ."""
        share = (self.circuit.values - self.empty.values) / (self.full.values - self.empty.values)
        return Labelled(share, ("batch",))

    @property
    def incompleteness(self) -> Labelled:
        """How far model and circuit are apart without each knockout, by `knockout`, mean absolute difference."""
        apart = (self.knocked_full.values - self.knocked_circuit.values).abs().mean(-1)
        return Labelled(apart, ("knockout",), dict(self.knocked_full.coords))

    @property
    def needed(self) -> Labelled:
        """What the circuit loses without each member, by `member`: mean over prompts; 0 for one it can do without."""
        lost = (self.circuit.values - self.without.values).mean(-1)
        return Labelled(lost, ("member",), dict(self.without.coords))


@question("Is a circuit faithful, complete and minimal?", of="pairs of prompts")
def faithfulness(
    model: ModelLike,
    pairs: PromptPairs,
    circuit: Iterable[Member],
    metric: MetricLike | None = None,
    *,
    always: Iterable[str] = (),
    off: Off = "corrupt",
    knockouts: Natural | Sequence[Iterable[Member]] | None = None,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> Faithfulness:
    """Measure how faithful, complete and minimal a circuit is.

    Args:
        pairs: The prompts the circuit is for, and those from which `corrupt` and `mean` take what stands on cut edges:
            `(clean, corrupt)`, a `Contrast`, or `Pairs`.
        circuit: Its members: labels of senders (then all edges between them are in it), or edges as pairs of labels.
        always: Kinds of senders that belong to a circuit of nodes without being listed, among `embed`, `mlp`, `source`,
            `head`.
        off: What stands on cut edges.
        knockouts: Sets of members to take out of circuit and model alike; a number draws so many at random, each member
            with even odds. By default each member by itself.

    Raises:
        AnalysisUnavailable: There is no such sender or edge, or nodes and edges are mixed.
        ShapeMismatch: The prompts differ in shape.
    """
    runs = two_runs(model, pairs, metric, "faithfulness", off=off)
    graph = runs.graph
    members = list(circuit)
    background = {sender.label for sender in graph.senders if sender.kind in set(always)}
    kept = _kept(graph, members, background)
    masks = [_mask(graph, [member]) for member in members]
    sets = _knockouts(members, knockouts, seed)
    gone = [_mask(graph, chosen) for chosen in sets]
    whole = graph.allowed.values
    worlds = [kept, whole, torch.zeros_like(kept)] + [kept & ~mask for mask in masks]
    worlds += [kept & ~mask for mask in gone] + [whole & ~mask for mask in gone]
    values = runs.evaluate(runs.cut(torch.stack(worlds)), report=report)
    alone, out = values[:3], values[3 + len(masks) :]
    names = [_name(member) for member in members]
    labels = [" + ".join(_name(member) for member in chosen) or "nothing" for chosen in sets]
    knocked = (("knockout", "batch"), {"knockout": labels})
    return Faithfulness(
        circuit=Labelled(alone[0], ("batch",)),
        full=Labelled(alone[1], ("batch",)),
        empty=Labelled(alone[2], ("batch",)),
        without=Labelled(values[3 : 3 + len(masks)], ("member", "batch"), {"member": names}),
        knocked_circuit=Labelled(out[: len(gone)], *knocked),
        knocked_full=Labelled(out[len(gone) :], *knocked),
        members=tuple(names),
        off=off,
        metric=runs.metric.name,
    )


def _kept(graph: CircuitGraph, members: Sequence[Member], background: set[str]) -> Bool[Tensor, "receiver sender"]:
    if not members and not background:
        return torch.zeros_like(graph.allowed.values)
    kinds = {isinstance(member, str) for member in members}
    if len(kinds) > 1 or (background and False in kinds):
        raise AnalysisUnavailable(
            "faithfulness: the circuit has nodes and edges; give labels of senders, or pairs of labels, and `always` "
            "with the former only."
        )
    return _mask(graph, [*members, *background])


def _mask(graph: CircuitGraph, members: Iterable[Member]) -> Bool[Tensor, "receiver sender"]:
    """Return all edges from some nodes, or some edges."""
    found = torch.zeros_like(graph.allowed.values)
    for member in members:
        if isinstance(member, str):
            u = graph.sender(member)
            found[:, u] = graph.allowed.values[:, u]
        else:
            found |= graph.mask([Edge(*member)])
    return found


def _knockouts(
    members: Sequence[Member], knockouts: int | Sequence[Iterable[Member]] | None, seed: int
) -> list[list[Member]]:
    if knockouts is None:
        return [[member] for member in members]
    if isinstance(knockouts, int):
        coins = torch.rand(knockouts, len(members), generator=torch.Generator().manual_seed(seed)) < 0.5
        return [[member for member, heads in zip(members, row) if heads] for row in coins.tolist()]
    return [list(chosen) for chosen in knockouts]


def _name(member: Member) -> str:
    return member if isinstance(member, str) else f"{member[0]} -> {member[1]}"
