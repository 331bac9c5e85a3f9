"""Worlds of one structure: what a transformer recalls in new ones if moves carry its position codes along.

A walk through a torus of sixteen places sees a symbol at each, drawn anew in every world, and has to say what it will
see next. Where it was before this is known, if the model knows that it is there again: from its moves alone, since
places look alike. All figures are of worlds that were never walked in training, so that nothing but structure helps.

Memory units are the keys of attention: how active each is, a query at a time, is its row of the pattern. A walk is
remembered up to its middle, and then gone on with in many ways, so that every unit is asked at every place.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import glassformer as gf
from glassformer.data import GraphWorlds, Walks
from glassformer.data.batch import generator
from glassformer.dynamics import TemDecoder, rate_maps, shuffled_information, tem_config
from glassformer.errors import AnalysisUnavailable
from glassformer.models import DecoderConfig, Learned, Mlp, Model, ModelConfig, block, repeat
from glassformer.study import (
    MAJORITY,
    Case,
    Claim,
    Condition,
    Measure,
    Measures,
    Quantity,
    Scale,
    Study,
    above,
    below,
    counted,
    value,
)
from glassformer.training import OptimConfig, TrainConfig

RECURRENT, LEARNED, NONE = "recurrent", "learned", "none"
WORLDS = GraphWorlds(batch_size=32)
WIDTH, BATCHES, SHUFFLES = 32, 8, 100


class Cells(NamedTuple):
    """Activity of units, and where the walk is."""

    activity: Float[Tensor, "time unit"]
    places: Int[Tensor, " time"]


def run(case: Case) -> Measures:
    data = WORLDS.replace(seed=case.seed)
    model = gf.load(case.train(recipe(case["positions"], data, case["steps"])))
    walks = [data.walks("heldout", generator(case.seed, "walks", i)) for i in range(BATCHES)]
    known = torch.cat([found.revisited[:, 1:] for found in walks])
    new = torch.cat([found.new_edge[:, 1:] for found in walks]) & known
    right = torch.cat([foretold(model, data, found) for found in walks])
    misled = torch.cat([foretold(model, data, with_moves_shuffled(found, case.seed)) for found in walks])
    best = sum(data.best_accuracy(found) for found in walks) / BATCHES
    guesses = [torch.cat([guess(data, found) for found in walks]) for guess in (last_seen, turned_back, most_seen)]
    return {
        "accuracy": share(right, known),
        "accuracy_new_edges": share(right, new),
        "accuracy_shuffled_moves": share(misled, known),
        "baseline": max(share(guess, known) for guess in guesses),
        "lost": best - float(right.double().mean()),
        **(cell_measures(case, model, data) if isinstance(model, TemDecoder) else _no_cells()),
    }


def cell_measures(case: Case, model: TemDecoder, data: GraphWorlds) -> dict[str, float]:
    """Return what memory units and codes say about place."""
    pool = data.replace(batch_size=case["pool"]).walks("heldout", generator(case.seed, "pool"))
    memory, codes = memory_cells(model, data, pool), code_cells(model, data, pool)
    found = rate_maps(*memory, data.n_places).information()
    shuffled = shuffled_information(*memory, data.n_places, n_shuffles=SHUFFLES, seed=case.seed)
    normed = torch.nn.functional.normalize(codes.activity, dim=-1)
    centres = rate_maps(normed, codes.places, data.n_places).rates.mT
    cosines = centres @ centres.mT
    shifted = codes.activity.roll(len(codes.places) // 2, 0)
    return {
        "place_information": float(found.mean()),
        "shuffled_information": float(shuffled.mean()),
        "place_cells": float((found > shuffled.amax(0)).double().mean()),
        "same_place": float(cosines.diagonal().mean()),
        "other_place": float(cosines[~torch.eye(len(cosines), dtype=torch.bool)].mean()),
        "waves": float(rate_maps(codes.activity, codes.places, data.n_places).wave_share(data.side).mean()),
        "shuffled_waves": float(rate_maps(shifted, codes.places, data.n_places).wave_share(data.side).mean()),
    }


def _no_cells() -> Measures:
    def undefined() -> float:
        raise AnalysisUnavailable("it has no codes that moves carry along.")

    return dict.fromkeys(CELLS, undefined)


def foretold(model: Model, data: GraphWorlds, walks: Walks) -> Bool[Tensor, "batch step"]:
    """Return whether the likeliest symbol behind each action is what is seen then."""
    sequence = data.sequence(walks.observations, walks.actions)
    with torch.no_grad():
        said = model(sequence[:, :-1]).argmax(-1)
    return (said == sequence[:, 1:])[:, 1::2]


def with_moves_shuffled(walks: Walks, seed: int) -> Walks:
    """Return walks that see what they saw, and are told their moves in another order."""
    order = torch.rand(walks.actions.shape, generator=generator(seed, "moves")).argsort(1)
    return walks._replace(actions=walks.actions.gather(1, order))


def last_seen(data: GraphWorlds, walks: Walks) -> Bool[Tensor, "batch step"]:
    """Return whether what is seen next is what is seen now."""
    return walks.observations[:, 1:] == walks.observations[:, :-1]


def turned_back(data: GraphWorlds, walks: Walks) -> Bool[Tensor, "batch step"]:
    """Return whether what is seen next is what was seen before the last action; at first, what is seen now."""
    seen = walks.observations
    return seen[:, 1:] == torch.cat((seen[:, :1], seen[:, :-2]), 1)


def most_seen(data: GraphWorlds, walks: Walks) -> Bool[Tensor, "batch step"]:
    """Return whether what is seen next is the symbol that was seen most often until now."""
    seen = walks.observations
    often = torch.nn.functional.one_hot(seen[:, :-1], data.n_symbols).cumsum(1)
    return seen[:, 1:] == often.argmax(-1)


def share(right: Bool[Tensor, "batch step"], among: Bool[Tensor, "batch step"]) -> float:
    return float(right[among].double().mean())


def memory_cells(model: Model, data: GraphWorlds, pool: Walks) -> Cells:
    """Return the activity of what the first walk of a pool remembers of its first half, as others go on from there."""
    half = pool.actions.shape[1] // 2
    joined = pool.places[:, 0] == pool.places[0, half]
    onward = pool.places[joined, 1 : half + 1]
    places = torch.cat((pool.places[:1, : half + 1].expand(len(onward), -1), onward), 1)
    actions = torch.cat((pool.actions[:1, :half].expand(len(onward), -1), pool.actions[joined, :half]), 1)
    sequence = data.sequence(pool.worlds[0][places], actions)
    pattern = gf.run(model, sequence[:, :-1], read=["blocks.0.attn.pattern"])["pattern", 0].values.mean(1)
    # queries are actions, keys are what was seen
    activity = pattern[:, 2 * half + 1 :: 2, : 2 * half + 1 : 2]
    return Cells(activity.flatten(0, 1).double(), onward.flatten())


def code_cells(model: TemDecoder, data: GraphWorlds, pool: Walks) -> Cells:
    """Return the codes of walks that begin at the first place: those of all walks are the same, from their start on."""
    begun = pool.places[:, 0] == 0
    sequence = data.sequence(pool.observations[begun], pool.actions[begun])
    with torch.no_grad():
        codes = model.codes(sequence)[:, ::2]
    return Cells(codes.flatten(0, 1).double(), pool.places[begun].flatten())


def decoder(positions: str, data: GraphWorlds) -> ModelConfig:
    """Return TEM-t, or an ordinary decoder of two blocks with MLPs."""
    if positions == RECURRENT:
        return tem_config(data, WIDTH)
    layers = repeat(block(n_heads=2, mlp=Mlp(2 * WIDTH)), 2)
    placed = Learned() if positions == LEARNED else None
    return DecoderConfig(len(data.symbols()), WIDTH, layers, max_len=data.length, positions=placed)


def recipe(positions: str, data: GraphWorlds, steps: int) -> TrainConfig:
    model, optim = decoder(positions, data), OptimConfig(lr=1e-2, warmup=50, weight_decay=0.0)
    return TrainConfig(model, data, steps=steps, optim=optim, log_every=50, evaluate_every=steps, save_every=steps)


def accuracy(positions: str) -> Quantity:
    return value("accuracy", positions=positions)


TASK = Condition("The task was learned: what was seen before is foretold in new worlds", accuracy(RECURRENT),
                 above(0.9))  # fmt: skip
CELLS = {
    "place_information": Measure("What the activity of a memory unit says about place", "bits"),
    "shuffled_information": Measure("The same of shuffled cells", "bits"),
    "place_cells": Measure("Share of memory units that say more than any of their shuffled cells"),
    "same_place": Measure("Mean cosine of two codes of one place"),
    "other_place": Measure("Mean cosine of codes of two places"),
    "waves": Measure("Share of a code unit's map in its strongest wave, which is all of a band"),
    "shuffled_waves": Measure("The same of shuffled cells"),
}

STUDY = Study(
    "graph-worlds",
    paper="Whittington, Warren and Behrens 2022, arXiv 2112.04035: TEM-t predicts in new worlds of "
    "one structure, its memory neurons are place cells, its position codes periodic",
    question="Do position codes that moves carry along let a transformer recall in worlds that it never saw?",
    run=run,
    grid={"positions": (RECURRENT, LEARNED, NONE)},
    scales={
        "smoke": Scale(1, {"steps": 4, "pool": 256}),
        "small": Scale(8, {"steps": 600, "pool": 2048}),
    },
    measures={
        "accuracy": Measure("Share of symbols foretold at places that were visited before", learned=True),
        "accuracy_new_edges": Measure("The same where the walk came along an edge never gone before", learned=True),
        "accuracy_shuffled_moves": Measure("The same if moves are told in another order"),
        "baseline": Measure("The same of the best of three guesses: last seen, seen before that, most often seen"),
        "lost": Measure("Share of all symbols that the best there is foretells, first visits by chance, less its own"),
        **CELLS,
    },
    claims=(
        Claim("learned", "The task was learned: what was seen before is foretold in new worlds",
              counted(accuracy(RECURRENT), above(0.9)), MAJORITY),
        Claim("beyond-guesses", "No guess comes near", counted(
            accuracy(RECURRENT) - value("baseline", positions=RECURRENT), above(0.3)), MAJORITY, (TASK,)),
        Claim("new-edges", "Known places are known along edges never gone before",
              counted(value("accuracy_new_edges", positions=RECURRENT), above(0.9)), MAJORITY, (TASK,)),
        Claim("by-moves", "Told its moves in another order, it foretells little",
              value("accuracy_shuffled_moves", positions=RECURRENT), below(0.35), (TASK,)),
        Claim("none-does-not", "Two blocks without positions do not learn it as fast",
              counted(accuracy(NONE), below(0.7)), MAJORITY, (TASK,)),
        Claim("learned-positions-do-not", "Nor do they with learned positions",
              counted(accuracy(LEARNED), below(0.7)), MAJORITY, (TASK,)),
        Claim("place-cells", "Memory units say a bit more about place than shuffled cells",
              value("place_information", positions=RECURRENT) - value("shuffled_information", positions=RECURRENT),
              above(1.0), (TASK,)),
        Claim("most-units", "Most of them are place cells: they say more than any of a hundred shuffled cells",
              counted(value("place_cells", positions=RECURRENT), above(0.5)), MAJORITY, (TASK,)),
    ),
    differs=(
        "One layer, orthogonal matrices and no activation on codes; a torus of sixteen places, where the paper has "
        "worlds of many sizes; some minutes of training for each model.",
        "Shuffled cells are shifted in time. Periodicity of codes is reported and nothing is claimed of it: on four "
        "rows and columns there are nine waves, and a hexagon fits none of them.",
    ),
    mechanisms=("softmax",),
    references={"positions": (RECURRENT,)},
)  # fmt: skip
