"""Attention flow: how much of a position could come from each token if every layer's weights were pipes.

Nodes are positions behind each layer; an edge's capacity is what rollout gives it, half a weight or half a skip. The
flow from a position at the top to a token at the bottom is the largest that the pipes allow, each token by itself:
values are bounds, not shares, and do not sum to one. It is at least what rollout gives, since that is one way of
filling the pipes.

Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3 (maximum flow). Found by
augmenting shortest paths level by level: Dinic 1970.
"""

import dataclasses
from typing import Any, Literal

import torch

from glassformer.analysis._run import text_position
from glassformer.analysis.question import question
from glassformer.analysis.token_flow._mixing import flow_sites, has_source
from glassformer.analysis.token_flow._rolling import TokenFlow
from glassformer.analysis.token_flow._rollout import rollout
from glassformer.labelled import Labelled, Result

# what is left of a pipe when sums of the same weights cancel
NOTHING = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionFlow(Result):
    """Largest flow from one position at the top of the stack to each token, `key`.

    Args:
        flow: Between 0 and 1; does not sum to one.
        rollout: What rollout gives the same position, `key`; nowhere more than the flow.
        position: Index of the position.
        method: How layers were weighed.
    """

    HEADLINE = ("flow", "rollout")

    flow: Labelled
    rollout: Labelled
    position: int
    method: str


@question(
    "How much can flow from a position to each token?",
    reads=flow_sites,
    traits=("linear_in_value", "rows_sum_to_one"),
    holds=("patterns", "norm scales", "gates"),
)
def attention_flow(
    run: Any,
    text: Any = None,
    target: Any = None,
    *,
    position: int = -1,
    kept: float = 0.5,
    signed: Literal["refuse", "absolute"] = "refuse",
    row: int = 0,
    stack: str | None = None,
) -> AttentionFlow:
    """Find the largest flow from one position to every token: one search per token, a few seconds for a sentence.

    Args:
        position: Where at the top; negative ones count from the end.
        kept: As for `rollout`, like the other arguments and errors.
        signed: As for `rollout`.
        stack: As for `rollout`.
    """
    rolled = rollout(run, kept=kept, signed=signed, stack=stack)
    n, n_keys = rolled.final.shape
    position = text_position(position, n)
    n_source = n_keys - n
    pipes, bottom = _Pipes(), 0
    source_top = None
    if has_source(run.model, stack):
        encoder = rollout(run, kept=kept, signed=signed, stack="encoder")
        source_top = bottom = pipes.layers(encoder, 0, None)
        bottom += n_source
    top = pipes.layers(rolled, bottom, source_top)
    tokens = [*range(n_source), *range(bottom, bottom + n)]
    found = [pipes.largest(top + position, token) for token in tokens]
    coords = {"key": rolled.final.labels("key")}
    own = rolled.final.values[position]
    return AttentionFlow(
        Labelled(torch.tensor(found, dtype=torch.float64), ("key",), coords),
        Labelled(own.double(), ("key",), coords), position, rolled.method.replace("rollout", "attention flow"),
    )  # fmt: skip


class _Pipes:
    """A graph of capacities; every edge has its opposite next to it, for taking flow back."""

    def __init__(self) -> None:
        self.edges: dict[int, list[int]] = {}
        self.target, self.capacity = list[int](), list[float]()

    def layers(self, found: TokenFlow, first: int, source_top: int | None) -> int:
        """Add a stack whose bottom nodes count from `first`; return the first of its top nodes."""
        values = found.layers.values.double()
        n = values.shape[1]
        n_source = values.shape[2] - n
        for layer in values:
            for q, k in layer.nonzero().tolist():
                below = first + k - n_source if k >= n_source else (source_top or 0) + k
                self._add(first + n + q, below, float(layer[q, k]))
            first += n
        return first

    def _add(self, above: int, below: int, capacity: float) -> None:
        for start, end, size in ((above, below, capacity), (below, above, 0.0)):
            self.edges.setdefault(start, []).append(len(self.target))
            self.target.append(end)
            self.capacity.append(size)

    def largest(self, start: int, end: int) -> float:
        """Return the largest flow between two nodes."""
        left, total = list(self.capacity), 0.0
        while (depth := self._depths(start, end, left)) is not None:
            tried = dict.fromkeys(self.edges, 0)
            while (path := self._path(start, end, left, depth, tried)) is not None:
                narrowest = min(left[edge] for edge in path)
                for edge in path:
                    left[edge] -= narrowest
                    left[edge ^ 1] += narrowest
                total += narrowest
        return total

    def _depths(self, start: int, end: int, left: list[float]) -> dict[int, int] | None:
        """Return each node's distance from the start along pipes with room, or None if the end is out of reach."""
        depth, front = {start: 0}, [start]
        while front and end not in depth:
            reached = list[int]()
            for node in front:
                for edge in self.edges[node]:
                    if left[edge] > NOTHING and (target := self.target[edge]) not in depth:
                        depth[target] = depth[node] + 1
                        reached.append(target)
            front = reached
        return depth if end in depth else None

    def _path(
        self, start: int, end: int, left: list[float], depth: dict[int, int], tried: dict[int, int]
    ) -> list[int] | None:
        """Return the edges of a path that goes one level deeper with each, or None; dead ends are not tried again."""
        path, node = list[int](), start
        while node != end:
            edges = self.edges[node]
            while tried[node] < len(edges):
                edge = edges[tried[node]]
                if left[edge] > NOTHING and depth.get(self.target[edge]) == depth[node] + 1:
                    break
                tried[node] += 1
            if tried[node] < len(edges):
                path.append(edges[tried[node]])
                node = self.target[path[-1]]
            elif path:
                # a dead end: step back, and pass by this edge from now on
                node = self.target[path.pop() ^ 1]
                tried[node] += 1
            else:
                return None
        return path
