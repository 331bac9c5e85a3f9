"""Information-flow routes: the few edges along which a prediction's content arrived, found from the top.

    share(part) = max(eps, |w| - |w - part|) / sum over parts,        |.| the L1 norm

w is the stream behind a sub-layer; its parts are the stream before, every vector that a head brings from a key, what
an MLP writes, and the biases. Edges below a threshold are dropped and the others of a node brought to one again. Only
nodes that are reached are expanded. What is kept of a position and what a head brings from it stay two edges.

Source: Ferrando and Voita 2024, "Information Flow Routes: Automatically Interpreting Language Models at Scale". Two
things differ: biases are a part of their own, and an edge belongs to one head.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.places import position_labels, text_positions
from glassformer.analysis.question import question
from glassformer.analysis.token_flow._mixing import (
    NUMBERS_AT_ONCE,
    Moves,
    Unit,
    flow_sites,
    has_source,
    token_row,
    units,
)
from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Coordinate, Labelled, Result

CONSTANT = "constant"


@dataclasses.dataclass(frozen=True)
class FlowNode:
    """The stream at one position behind one step.

    Args:
        label: `L1 mlp | 5:cat`; at the bottom `embed | 5:cat`.
        place: `embed`, `L1`, `L1 mlp`, ….
        position: Index of the position.
        importance: Product of the shares along all routes from the top to here, summed.
    """

    label: str
    place: str
    position: int
    importance: float


@dataclasses.dataclass(frozen=True)
class FlowEdge:
    """One part of a node.

    Args:
        above: Label of the node it is a part of.
        below: Label of the node it comes from; `constant` for biases.
        via: `stream`, a head's label, `L1 mlp`, or `bias`.
        share: Of the node above, dropped edges not counted: those of a node sum to one.
        whole_share: The same before anything was dropped; what the threshold is compared with.
    """

    above: str
    below: str
    via: str
    share: float
    whole_share: float


@dataclasses.dataclass(frozen=True, eq=False)
class FlowRoutes(Result):
    """The part of the graph that leads to some positions at the top of the stack; norms frozen.

    Args:
        inputs: Importance that arrives at each token at the bottom, `key`. With what ends in constants and in nodes
            all of whose edges were dropped it sums to the number of starting positions.
        heads: Importance that passes each head, `head`.
        nodes: What was reached, from the top.
        edges: What was kept.
        threshold: Smallest share kept.
        constants: Importance that ends in biases.
        dropped: Importance that ends in nodes without an edge above the threshold.
    """

    HEADLINE = ("inputs", "heads")

    inputs: Labelled
    heads: Labelled
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    threshold: float
    constants: float
    dropped: float


@question(
    "Along which edges does information reach a position?",
    reads=flow_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates"),
)
@torch.no_grad()
def information_flow_routes(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    positions: Sequence[int] | Tensor = (-1,),
    threshold: float = 0.04,
    eps: float = 1e-5,
    row: int = 0,
    stack: str | None = None,
) -> FlowRoutes:
    """Trace where the stream at some positions came from, edge by edge.

    Args:
        positions: Where to start, at the top of the stack; negative ones count from the end.
        threshold: Edges of a smaller share are dropped; 0 keeps the whole graph.
        eps: Least nearness of a part, in units of the stream.
        stack: `encoder` of a model that has two, to trace there; the decoder's routes lead into the encoder.

    Raises:
        SiteNotRead: The run lacks a site.
        NoPattern: A mechanism has no pattern that multiplies values.
        AnalysisUnavailable: The threshold leaves no room for an edge.
    """
    if not 0 <= threshold < 1:
        raise AnalysisUnavailable(f"information_flow_routes: threshold={threshold}; a share lies between 0 and 1.")
    run.require(flow_sites(run.model, stack), "information_flow_routes")
    side = "encoder" if stack == "encoder" else "decoder" if has_source(run.model, stack) else ""
    own, encoder = list(units(run, "information_flow_routes", stack=side or None)), list[Unit]()
    tokens, source = token_row(run, side), list[str]()
    if has_source(run.model, stack):
        encoder = list(units(run, "information_flow_routes", stack="encoder"))
        source = token_row(run, "encoder")
    tracer = _Tracer(threshold, eps, encoder[-1].label if encoder else "enc embed", position_labels(source))
    top = torch.zeros(len(tokens), dtype=torch.float64)
    for position in text_positions(positions, len(tokens)):
        top[position] += 1
    labels = position_labels(tokens)
    inputs = tracer.down(own, labels, top, "enc embed" if side == "encoder" else "embed")
    if source:
        from_source = tracer.down(encoder, position_labels(source), tracer.encoded, "enc embed")
        inputs, labels = torch.cat((from_source, inputs)), position_labels(source, "source ") + labels
    heads = list(tracer.heads)
    return FlowRoutes(
        inputs=Labelled(inputs, ("key",), {"key": labels}),
        heads=Labelled(torch.tensor([tracer.heads[h] for h in heads], dtype=torch.float64), ("head",), {"head": heads}),
        nodes=tuple(tracer.nodes),
        edges=tuple(tracer.edges),
        threshold=threshold,
        constants=tracer.constants,
        dropped=tracer.dropped,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class AverageRoutes(Result):
    """What passes each head on the way to the last token, over several prompts.

    Args:
        heads: Mean importance, `head`; the whole is 1.
        spread: Its standard error over prompts; NaN for one prompt.
        threshold: Smallest share an edge was kept with.
        prompts: How many were averaged over.
    """

    HEADLINE = ("heads",)

    heads: Labelled
    spread: Labelled
    threshold: float
    prompts: int


@question(
    "Which heads do routes pass, over many texts?",
    reads=flow_sites,
    traits=("linear_in_value",),
    holds=("patterns", "norm scales", "gates"),
)
def average_routes(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    threshold: float = 0.04,
    stack: str | None = None,
    report: Callable[[int, int], None] | None = None,
) -> AverageRoutes:
    """Trace the routes to the last token of every row, and average what passes each head.

    Errors are as in `information_flow_routes`.

    Args:
        threshold: Edges of a smaller share are dropped; 0 keeps the whole graph.
        stack: `encoder` of a model that has two, to trace there; the decoder's routes lead into the encoder.
        report: Called with rows done and rows in all.
    """
    found: list[FlowRoutes] = []
    for row in range(len(run.token_rows)):
        found.append(information_flow_routes(run, threshold=threshold, row=row, stack=stack))
        if report is not None:
            report(row + 1, len(run.token_rows))
    passed = [{str(label): value for (label,), value in routes.heads.top(10**9)} for routes in found]
    labels = list(dict.fromkeys(label for one in passed for label in one))
    values = torch.tensor([[one.get(label, 0.0) for label in labels] for one in passed], dtype=torch.float64)
    over, n, mean = (("head",), {"head": labels}), len(found), values.mean(0)
    spread = ((values - mean).square().sum(0) / (n * (n - 1))).sqrt() if n > 1 else mean * torch.nan
    return AverageRoutes(Labelled(mean, *over), Labelled(spread, *over), threshold, n)


class _Tracer:
    """Carries importance down a stack and keeps what it meets."""

    def __init__(self, threshold: float, eps: float, encoder_top: str, source: Sequence[Coordinate]) -> None:
        self.threshold, self.eps, self.encoder_top, self.source = threshold, eps, encoder_top, source
        self.nodes, self.edges = list[FlowNode](), list[FlowEdge]()
        self.heads: dict[str, float] = {}
        self.constants = self.dropped = 0.0
        self.encoded = torch.zeros(len(source), dtype=torch.float64)

    def down(
        self, found: Sequence[Unit], labels: Sequence[Coordinate], arriving: Float[Tensor, " pos"], bottom: str
    ) -> Float[Tensor, " pos"]:
        """Return what arrives at the bottom of a stack of what starts at its top."""
        places = [bottom, *[unit.label for unit in found]]
        for i in reversed(range(len(found))):
            unit, below = found[i], torch.zeros_like(arriving)
            reached = arriving.nonzero()[:, 0]
            sizes = [moves.pattern.shape[1] * moves.pattern.shape[3] for moves in unit.moves]
            at_once = max(1, NUMBERS_AT_ONCE // (3 * max([1, *sizes]) * unit.kept.shape[1]))
            for queries in reached.split(at_once):
                for q, parts in zip(queries.tolist(), self._parts(unit, queries)):
                    self._node(places[i + 1], places[i], labels, q, float(arriving[q]), parts, below)
            arriving = below
        for q in arriving.nonzero()[:, 0].tolist():
            self.nodes.append(FlowNode(f"{bottom} | {labels[q]}", bottom, q, float(arriving[q])))
        return arriving

    def _node(
        self,
        place: str,
        lower: str,
        labels: Sequence[Coordinate],
        q: int,
        importance: float,
        parts: "_NodeParts",
        below: Float[Tensor, " pos"],
    ) -> None:
        above = f"{place} | {labels[q]}"
        self.nodes.append(FlowNode(above, place, q, importance))
        kept = parts.shares >= self.threshold
        total = float(parts.shares[kept].sum())
        if total == 0:
            self.dropped += importance
            return
        for j in kept.nonzero()[:, 0].tolist():
            (via, key, crosses), whole = parts.names(j), float(parts.shares[j])
            share = whole / total
            if key is None:
                key, target = q, CONSTANT if via == "bias" else f"{lower} | {labels[q]}"
            else:
                self.heads[via] = self.heads.get(via, 0.0) + importance * share
                target = f"{self.encoder_top} | {self.source[key]}" if crosses else f"{lower} | {labels[key]}"
            self.edges.append(FlowEdge(above, target, via, share, whole))
            if via == "bias":
                self.constants += importance * share
            elif crosses:
                self.encoded[key] += importance * share
            else:
                below[key] += importance * share

    def _parts(self, unit: Unit, queries: Tensor) -> list["_NodeParts"]:
        """Return the parts of some nodes, absent ones (masked keys, no biases) left out."""
        w = unit.result[queries]
        size = w.abs().sum(-1)
        single = [("stream", unit.kept), *unit.writes] + ([("bias", unit.bias)] if bool(unit.bias.any()) else [])
        near = [torch.stack([size - (w - x[queries]).abs().sum(-1) for _, x in single], 1)]
        present = [torch.ones_like(near[0], dtype=torch.bool)]
        for moves in unit.moves:
            vectors = moves.per_head(queries)
            near.append((size[:, None, None] - (w[:, None, None] - vectors).abs().sum(-1)).flatten(1))
            present.append((moves.weight[:, :, queries] != 0).any(0).transpose(0, 1).flatten(1))
        nearness = torch.cat(near, 1).double().clamp_min(self.eps) * torch.cat(present, 1)
        shares = (nearness / nearness.sum(-1, keepdim=True)).masked_fill(~torch.cat(present, 1), -1.0)
        return [_NodeParts([name for name, _ in single], unit.moves, row) for row in shares.cpu()]


@dataclasses.dataclass(frozen=True, eq=False)
class _NodeParts:
    """The parts of one node in a row: single ones, then every head's keys; shares of absent ones are negative."""

    single: list[str]
    moves: tuple[Moves, ...]
    shares: Float[Tensor, " part"]

    def names(self, j: int) -> tuple[str, int | None, bool]:
        """Return what a part comes by, its key if it is a head's, and whether that is a key of the encoder."""
        if j < len(self.single):
            return self.single[j], None, False
        j -= len(self.single)
        for moves in self.moves:
            keys = moves.pattern.shape[-1]
            if j < len(moves.labels) * keys:
                return moves.labels[j // keys], j % keys, moves.crosses
            j -= len(moves.labels) * keys
        raise AssertionError("a part has a name")
