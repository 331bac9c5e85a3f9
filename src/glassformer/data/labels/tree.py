"""Trees over a text: which part stands within which; depths, distances and phrases follow.

    x = f(1)        Module > Assign > (Name x, Call > (Name f, Constant 1))

Distances are numbers of edges between two nodes, as structural probes are trained on.
Source: Hewitt and Manning 2019, "A Structural Probe for Finding Syntax in Word Representations", section 2.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

Span = tuple[int, int]


class Node(NamedTuple):
    """A part of a text: what it is, its first character, the one behind its last, and the node it stands in.

    `parent` is the place of that node in the tree, -1 for the root.
    """

    kind: str
    first: int
    end: int
    parent: int


class Phrase(NamedTuple):
    """A node as tokens: the first, the one behind the last, and what it is."""

    first: int
    end: int
    kind: str


@dataclass(frozen=True, eq=False)
class Tree:
    """Nodes over one text, parents before their children; the first is the root and holds all of it."""

    nodes: tuple[Node, ...]

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How many nodes each node stands in; 0 for the root."""
        found: list[int] = []
        for node in self.nodes:
            found.append(0 if node.parent < 0 else found[node.parent] + 1)
        return tuple(found)

    @cached_property
    def deepest(self) -> tuple[int, ...]:
        """The deepest node over each character, as its place in the tree."""
        found = [0] * self.nodes[0].end
        for place, node in enumerate(self.nodes):
            found[node.first : node.end] = [place] * (node.end - node.first)
        return tuple(found)

    def path(self, place: int) -> list[int]:
        """Places of the nodes from the root to one."""
        found: list[int] = []
        while place >= 0:
            found.append(place)
            place = self.nodes[place].parent
        return found[::-1]

    def distances(self, places: Sequence[int]) -> Int[Tensor, "pos pos"]:
        """Distances between nodes, in edges: up to what holds both, and down again.

        Args:
            places: Of the nodes, in the tree.
        """
        paths = [self.path(place) for place in places]
        longest = max(map(len, paths), default=0)
        # what fills short paths up is equal to nothing, itself in another row included
        rows = torch.tensor([[*path, *[-1] * (longest - len(path))] for path in paths]).view(len(paths), longest)
        alike = (rows[:, None] == rows[None]) & (rows >= 0)[:, None]
        shared = alike.long().cumprod(-1).sum(-1)
        lengths = torch.tensor([len(path) for path in paths], dtype=torch.long)
        return lengths[:, None] + lengths[None] - 2 * shared

    def phrases(self, words: Iterable[Span], until: int | None = None) -> list[Phrase]:
        """Nodes that begin and end where tokens do, in the tree's order; those that end within a token are left out.

        Args:
            words: Span of each token in the text, white space around it left out; empty if it is nothing else.
            until: The character before which nodes end, if tokens are of the text's beginning; all by default.
        """
        return [phrase for _, phrase in self._as_tokens(words, until)]

    def constituents(self, words: Iterable[Span], until: int | None = None) -> list[Phrase]:
        """Phrases that have parts, the root left out; of several over the same tokens the innermost.

        Args:
            words: As for `phrases`.
            until: The same.
        """
        parted = {node.parent for node in self.nodes} - {0}
        kept = [phrase for place, phrase in self._as_tokens(words, until) if place in parted]
        # what stands within another comes behind it
        return [*{(phrase.first, phrase.end): phrase for phrase in kept}.values()]

    def _as_tokens(self, words: Iterable[Span], until: int | None) -> Iterator[tuple[int, Phrase]]:
        """Yield the nodes that begin and end where tokens do, with their places."""
        there = [(i, first, end) for i, (first, end) in enumerate(words) if first < end]
        firsts, ends = [first for _, first, _ in there], [end for _, _, end in there]
        for place, node in enumerate(self.nodes):
            # tokens stand in order: those within a node, and those that have any of its characters
            within = bisect_left(firsts, node.first), bisect_right(ends, node.end)
            meeting = bisect_right(ends, node.first), bisect_left(firsts, node.end)
            is_whole = until is None or node.end <= until
            if within == meeting and within[0] < within[1] and is_whole:
                yield place, Phrase(there[within[0]][0], there[within[1] - 1][0] + 1, node.kind)
