"""Worlds that are graphs: a walk tells what it sees and where it turns, and what it sees where it has been is known.

    o4 east o7 south o7 west o2 north o4        the second o4 stands where the walk began

Every row has a world of its own: a symbol at each place, drawn anew, several places alike. What stays from world to
world is the structure: where each action leads. What counts are the symbols of places that were visited before, which
the row determines; at a first visit nothing does better than chance. A world decides by a hash which split it is of,
whatever the seed: none that is held out was ever walked in training.

    ring         side places in a circle, two actions
    torus        side x side places, four actions, edges joined
    square       the same with borders, which no action leads across
    hexagonal    the torus with six neighbours to each place

Source: Whittington, Warren and Behrens 2022, "Relating transformers to models and neural representations of the
hippocampal formation" (2112.04035); Whittington et al. 2020, "The Tolman-Eichenbaum Machine", for the task.
"""

import dataclasses
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from glassformer.arguments import Count, Kinds, Within
from glassformer.config import require
from glassformer.data.batch import Split, is_heldout
from glassformer.data.tasks.task import Alphabet, Rows, TaskConfig, check_shape

Graph = Literal["ring", "torus", "square", "hexagonal"]
# rows down, columns right; each action stands beside the one that undoes it
ACTIONS = {
    "east": (0, 1), "west": (0, -1), "south": (1, 0), "north": (-1, 0), "southwest": (1, -1), "northeast": (-1, 1),
}  # fmt: skip
_N_ACTIONS: dict[Graph, int] = {"ring": 2, "torus": 4, "square": 4, "hexagonal": 6}
_HELDOUT = 0.5
# worlds there must be, for either split to have some
_FEWEST = 1024


class Walks(NamedTuple):
    """Walks through worlds, one for each row.

    Args:
        worlds: The symbol at each place.
        places: Where the walk is, its start first.
        actions: What leads from each of these places to the next.
        revisited: Whether the walk had been at a place before.
        new_edge: Whether it arrived there along an edge that it had not gone before, in either direction.
    """

    worlds: Int[Tensor, "batch place"]
    places: Int[Tensor, "batch visit"]
    actions: Int[Tensor, "batch step"]
    revisited: Bool[Tensor, "batch visit"]
    new_edge: Bool[Tensor, "batch visit"]

    @property
    def observations(self) -> Int[Tensor, "batch visit"]:
        """The symbol at each place of the walk."""
        return self.worlds.gather(1, self.places)


@dataclasses.dataclass(frozen=True)
class GraphWorlds(TaskConfig, kind="graph_worlds"):
    """Walks on a graph whose places show symbols; a row is what is seen and done by turns.

    Args:
        length: Inputs of a row, an even number: half of them are actions.
        graph: How places are connected.
        side: Places of the ring; rows, and columns, of the others.
        n_symbols: Different symbols.
    """

    batch_size: Count = 64
    length: Count = 128
    seed: int = 0
    graph: Graph = "torus"
    side: Annotated[int, Within(3, 64)] = 4
    n_symbols: Kinds = 10

    def __post_init__(self) -> None:
        check_shape(self, least=8)
        require(
            self.length % 2 == 0,
            f"graph_worlds: length={self.length} ends a row between an action and what is seen then; "
            f"length={self.length + 1} does not.",
        )
        # two symbols on ten places are enough, and all of more have thousands of digits
        n_worlds = self.n_symbols ** min(self.n_places, 10)
        require(
            n_worlds >= _FEWEST,
            f"graph_worlds: n_symbols={self.n_symbols} on {self.n_places} places make {n_worlds} worlds, too few to "
            f"hold some out; {_FEWEST} would do.",
        )

    @property
    def n_places(self) -> int:
        return self.side if self.graph == "ring" else self.side**2

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the actions; each but the first of a pair undoes the one before it."""
        return tuple(ACTIONS)[: _N_ACTIONS[self.graph]]

    @property
    def moves(self) -> tuple[int, ...]:
        """Ids of the actions among `symbols`."""
        return tuple(range(self.n_symbols, self.n_symbols + len(self.actions)))

    def symbols(self) -> list[str]:
        return [*(f"o{i}" for i in range(1, self.n_symbols + 1)), *self.actions]

    def neighbours(self) -> Int[Tensor, "place action"]:
        """The place that each action leads to; -1 where a border is in the way."""
        rows, columns = 1 if self.graph == "ring" else self.side, self.side
        place = torch.arange(self.n_places)[:, None]
        down, right = torch.tensor([ACTIONS[name] for name in self.actions]).mT
        row, column = place // columns + down, place % columns + right
        found = row % rows * columns + column % columns
        inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        return found if self.graph != "square" else found.where(inside, -1)

    def walks(self, split: Split, random: torch.Generator) -> Walks:
        """Draw `batch_size` walks of `length` / 2 steps, each in a world of the split, from any place."""
        neighbours, rows = self.neighbours(), torch.arange(self.batch_size)
        allowed = (neighbours >= 0).double()
        place = torch.randint(self.n_places, (self.batch_size,), generator=random)
        visited = torch.zeros(self.batch_size, self.n_places, dtype=torch.bool)
        walked = torch.zeros(self.batch_size, *neighbours.shape, dtype=torch.bool)
        places, actions, revisited, new = [place], list[Tensor](), [visited[rows, place]], [visited[rows, place]]
        for _ in range(self.length // 2):
            visited[rows, place] = True
            action = torch.multinomial(allowed[place], 1, generator=random)[:, 0]
            new.append(~walked[rows, place, action])
            walked[rows, place, action] = True
            place = neighbours[place, action]
            # the same edge, from its other end
            walked[rows, place, action ^ 1] = True
            places.append(place)
            actions.append(action)
            revisited.append(visited[rows, place])
        found = (torch.stack(each, 1) for each in (places, actions, revisited, new))
        return Walks(self._worlds(split, random), *found)

    def _worlds(self, split: Split, random: torch.Generator) -> Int[Tensor, "batch place"]:
        """Draw worlds until all are of the split."""
        worlds = torch.zeros(self.batch_size, self.n_places, dtype=torch.long)
        wrong = torch.ones(self.batch_size, dtype=torch.bool)
        while bool(wrong.any()):
            worlds[wrong] = torch.randint(self.n_symbols, (int(wrong.sum()), self.n_places), generator=random)
            wrong = torch.tensor([is_heldout(_HELDOUT, *world) != (split == "heldout") for world in worlds.tolist()])
        return worlds

    def rows(self, alphabet: Alphabet, split: Split, random: torch.Generator) -> Rows:
        walks = self.walks(split, random)
        weight = torch.zeros(self.batch_size, self.length, dtype=torch.bool)
        weight[:, 1::2] = walks.revisited[:, 1:]
        return Rows(self.sequence(walks.observations, walks.actions), weight)

    def sequence(
        self, observations: Int[Tensor, "batch visit"], actions: Int[Tensor, "batch step"]
    ) -> Int[Tensor, "batch width"]:
        """What is seen and done by turns, as ids among `symbols`; a symbol more than there are actions."""
        pairs = torch.stack((observations[:, :-1], self.n_symbols + actions), -1)
        return torch.cat((pairs.flatten(1), observations[:, -1:]), 1)

    def best_accuracy(self, walks: Walks) -> float:
        """Share of all symbols but the first that can be foretold: those seen before, and others by chance."""
        known = walks.revisited[:, 1:].double().mean()
        return float(known + (1 - known) / self.n_symbols)
