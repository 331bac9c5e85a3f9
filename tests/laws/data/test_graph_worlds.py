"""Walks through graph worlds: edges, what was visited before, and the answer key, each by another way."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch

from glassformer.data import GraphWorlds, Walks
from glassformer.data.batch import generator
from glassformer.data.tasks.graph_worlds import ACTIONS
from glassformer.errors import ConfigError

GRAPHS = ("ring", "torus", "square", "hexagonal")
# as many places as a short walk comes back to
SIDES = {"ring": 5, "torus": 3, "square": 4, "hexagonal": 3}


def worlds(graph: Any, **fields: Any) -> GraphWorlds:
    return GraphWorlds(batch_size=8, length=24, graph=graph, side=SIDES[graph], n_symbols=6).replace(**fields)


def walked(config: GraphWorlds, step: int = 1, split: Any = "train") -> Walks:
    return config.walks(split, generator(config.seed, split, step))


@pytest.mark.parametrize("graph", GRAPHS)
def test_an_action_undoes_the_one_beside_it_and_all_commute(graph: str) -> None:
    neighbours = worlds(graph).neighbours()
    n_places, n_actions = neighbours.shape
    for place in range(n_places):
        for action in range(n_actions):
            there = int(neighbours[place, action])
            if there >= 0:
                assert int(neighbours[there, action ^ 1]) == place != there
            for other in range(n_actions):
                ways = [int(neighbours[int(neighbours[place, a]), b]) for a, b in ((action, other), (other, action))
                        if neighbours[place, a] >= 0]  # fmt: skip
                assert len(set(ways) - {-1}) <= 1


def test_a_square_is_a_torus_with_borders() -> None:
    square, torus = (worlds("square").replace(graph=graph).neighbours() for graph in ("square", "torus"))
    inside = square >= 0
    assert torch.equal(square[inside], torus[inside])
    # four corners lack two of the four actions, the other eight places at the border one
    assert Counter(inside.sum(1).tolist()) == {4: 4, 3: 8, 2: 4}


@pytest.mark.parametrize("graph", GRAPHS)
def test_walks_follow_edges_and_know_where_they_have_been(graph: str) -> None:
    config = worlds(graph)
    walks, neighbours = walked(config), config.neighbours()
    assert torch.equal(neighbours[walks.places[:, :-1], walks.actions], walks.places[:, 1:])
    for row in range(config.batch_size):
        places = walks.places[row].tolist()
        edges = [None, *({a, b} for a, b in pairwise(places))]
        for i in range(len(places)):
            assert bool(walks.revisited[row, i]) == (places[i] in places[:i])
            # on a torus of three, places that two actions connect are connected by two edges of one
            if i and SIDES[graph] > 3:
                assert bool(walks.new_edge[row, i]) == (edges[i] not in edges[1:i])
    assert not walks.new_edge[:, 0].any() and not walks.revisited[:, 0].any()


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_row_determines_every_symbol_that_counts(graph: str) -> None:
    config = worlds(graph)
    data = config.build()
    batch, rows = data.batch(1), config.n_places // config.side
    assert config.optimal_loss() == 0 and batch.weight.any()
    for tokens, targets, weight in zip(batch.tokens, batch.targets, batch.weight):
        here, seen = (0, 0), dict[tuple[int, int], str]()
        for i, token in enumerate(data.tokenizer.tokens(tokens.tolist())):
            if token not in ACTIONS:
                assert seen.setdefault(here, token) == token and not weight[i]
                continue
            down, right = ACTIONS[token]
            # borders keep a walk from going round
            here = (here[0] + down) % rows, (here[1] + right) % config.side
            assert bool(weight[i]) == (here in seen)
            if weight[i]:
                assert seen[here] == data.tokenizer.token(int(targets[i]))


def test_no_world_is_of_both_splits_whatever_the_seed() -> None:
    # few enough worlds that every batch would share some
    config = worlds("ring", side=4, n_symbols=6, batch_size=256)
    found = {
        split: {tuple(world) for seed in range(3) for world in walked(config.replace(seed=seed), 1, split)[0].tolist()}
        for split in ("train", "heldout")
    }
    assert found["train"].isdisjoint(found["heldout"])
    assert min(map(len, found.values())) > 200


def test_the_best_accuracy_is_that_of_remembering_and_guessing() -> None:
    config = worlds("torus")
    walks = walked(config)
    known = int(walks.revisited[:, 1:].sum())
    total = walks.actions.numel()
    assert config.best_accuracy(walks) == pytest.approx((known + (total - known) / config.n_symbols) / total)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"length": 25}, "length=26 does not"),
        ({"graph": "ring", "side": 3, "n_symbols": 2}, "8 worlds, too few"),
        ({"side": 2}, "side must be"),
    ],
)
def test_worlds_that_cannot_be_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        worlds("torus").replace(**fields)
