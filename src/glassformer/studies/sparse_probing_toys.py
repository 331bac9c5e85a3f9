"""Sparse probing where it is known what neurons hold: toys with a neuron for each feature, and with a third as many.

    h = relu(W x),   x' = relu(W' h + b)        x of 24 features, h of 24 neurons or of 8

Each feature is there two times of five. A relu in the middle makes neurons what features can lie along. With as many
neurons as features each has one of its own; with a third as many several share each neuron, and each feature lies in
several of them. Directions of features are columns of W, so that how much they share is known from the weights.
"""

from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.analysis.dictionaries import superposition
from glassformer.analysis.probes import SparseProbes, sparse_probe
from glassformer.studies.sparse_probing import few_tell
from glassformer.studies.superposition import features_of
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

FEATURES, DENSITY = 24, 0.4
ALIKE, THIRD = FEATURES, FEATURES // 3
TRAINED, UNTRAINED = "trained", "untrained"
ONE, FEW = 1, 4
THERE = 0.5  # squared length of a direction from which on a feature counts as represented
ROWS, DOCUMENTS = 2000, 40
# F1 of a probe of the feature itself, which is nothing or even from 0 to 1, half of the time each: least squares says
# it is there above its mean, 1 / 4, so that a quarter of what is there is missed
ITSELF = 2 * 0.75 / (2 * 0.75 + 0.25)


class Toy(NamedTuple):
    """Weights of a toy.

    Args:
        directions: Of each feature, by neuron: W.
        bias: Of the features that are made again.
    """

    directions: Tensor  # feature neuron
    bias: Tensor  # feature

    def neurons(self, x: Tensor) -> Tensor:
        return (x @ self.directions).relu()

    def made(self, x: Tensor) -> Tensor:
        return (self.neurons(x) @ self.directions.mT + self.bias).relu()


def run(case: Case) -> Measures:
    random = case.generator()
    toy = trained(case["neurons"], case["steps"] if case["weights"] == TRAINED else 0, random)
    shares = superposition(toy.directions)
    there = [i for i, norm in enumerate(shares.norm.values.tolist()) if norm**2 > THERE]
    # of one that was not trained no feature is meant to be there
    asked = (there if case["weights"] == TRAINED else list(range(FEATURES)))[: case["features"]]
    found, shuffled = probed(toy, asked, random, case.seed)
    return {
        "represented": float(len(there)),
        "dimensionality": float(shares.dimensionality.values[asked].mean()),
        "one": fmean(float(one.f1.select(select="grown").values[0]) for one in found),
        "few": fmean(float(one.f1.select(select="grown").values[1]) for one in found),
        "all": fmean(one.dense for one in found),
        "by chance": fmean(one.dense for one in shuffled),
        "dropped": fmean(float(one.pruned.values[0] - one.pruned.values[1]) for one in found),
    }


def trained(neurons: int, steps: int, random: torch.Generator) -> Toy:
    """Return a toy that has learned to make features again; as it begins, of no steps."""
    w = torch.randn(FEATURES, neurons, generator=random).mul_(neurons**-0.5).requires_grad_()
    b = torch.zeros(FEATURES, requires_grad=True)
    optimiser = torch.optim.Adam((w, b), 1e-2)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 1e-2 * (1 - step / steps)
        x = features_of((1024, FEATURES), DENSITY, random)
        loss = (Toy(w, b).made(x) - x).square().sum(-1).mean() / DENSITY
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Toy(w.detach(), b.detach())


def probed(
    toy: Toy, features: list[int], random: torch.Generator, seed: int
) -> tuple[list[SparseProbes], list[SparseProbes]]:
    """Return what neurons tell of whether each feature is there, and of the same labels shuffled."""
    x = features_of((ROWS, FEATURES), DENSITY, random)
    neurons, found = toy.neurons(x), list[tuple[SparseProbes, SparseProbes]]()
    for feature in features:
        rows = even(x[:, feature] > 0, random)
        has, documents = (x[rows, feature] > 0).long(), rows // (ROWS // DOCUMENTS)
        by_chance = has[torch.randperm(len(has), generator=random)]
        of_feature, of_chance = (
            few_tell(neurons[rows], documents, labels, (ONE, FEW), ("grown",), seed) for labels in (has, by_chance)
        )
        found.append((of_feature, of_chance))
    return [one for one, _ in found], [other for _, other in found]


def even(has: Tensor, random: torch.Generator) -> Tensor:
    """Return rows in which a feature is there, and as many in which it is not, in order."""
    there, not_there = has.nonzero()[:, 0], (~has).nonzero()[:, 0]
    some = not_there[torch.randperm(len(not_there), generator=random)[: len(there)]]
    return torch.cat((there, some)).sort().values


def of(measure: str, neurons: int, weights: str = TRAINED) -> Quantity:
    return value(measure, neurons=neurons, weights=weights)


APART = Condition("With a neuron for each, features have a dimension each", of("dimensionality", ALIKE), above(0.9))
SHARED = Condition("With a third as many neurons, more features have a direction than there are neurons",
                   of("represented", THIRD), above(THIRD + 0.5))  # fmt: skip

STUDY = Study(
    "sparse-probing-toys",
    paper='Gurnee et al. 2023, "Finding Neurons in a Haystack: Case Studies with Sparse Probing", arXiv 2305.01610; '
    'the toys: Elhage et al. 2022, "Toy Models of Superposition", arXiv 2209.10652, section on a privileged basis',
    question="Do sparse probes find features that neurons share, and tell them from features with a neuron each?",
    run=run,
    grid={"neurons": (ALIKE, THIRD), "weights": (TRAINED, UNTRAINED)},
    scales={
        "smoke": Scale(1, {"steps": 20, "features": 1}, {"neurons": (THIRD,), "weights": (UNTRAINED,)}),
        "small": Scale(8, {"steps": 2000, "features": FEATURES}),
    },
    measures={
        "represented": Measure("How many of 24 features have a direction"),
        "dimensionality": Measure("Share of a dimension that a feature has to itself, by the weights"),
        "one": Measure("F1 of the best neuron for a feature", analysis=sparse_probe),
        "few": Measure(f"F1 of {FEW} neurons", analysis=sparse_probe),
        "all": Measure("F1 of all neurons"),
        "by chance": Measure("F1 of all neurons for shuffled labels"),
        "dropped": Measure("What the best neuron tells more than the next best, F1"),
    },
    claims=(
        Claim("told", "What features are there can be told, though neurons are a third as many",
              counted(of("all", THIRD) - of("by chance", THIRD), above(0.1)), MAJORITY, (SHARED,)),
        Claim("one-each", "Where each has a neuron, one neuron tells it nearly as well as itself",
              counted(of("one", ALIKE), above(0.95 * ITSELF)), MAJORITY, (APART,)),
        Claim("one-each-alone", "and the next best tells much less",
              counted(of("dropped", ALIKE), above(0.2)), MAJORITY, (APART,)),
        Claim("shared-not-one", "Where neurons are shared one is not enough",
              counted(of("one", THIRD) / of("all", THIRD), below(0.95)), MAJORITY, (SHARED,)),
        Claim("shared-few", "but few do nearly what all do",
              counted(of("few", THIRD) / of("all", THIRD), above(0.95)), MAJORITY, (SHARED,)),
        Claim("shared-dropped", "Without the best neuron less is lost than where it is the only one",
              counted(of("dropped", ALIKE) - of("dropped", THIRD), above(0.05)), MAJORITY, (APART, SHARED)),
        Claim("learned", "A neuron for each is learned: at random weights the best neuron tells less",
              counted(of("one", ALIKE) - of("one", ALIKE, UNTRAINED), above(0.1)), MAJORITY, (APART,)),
    ),
    differs=(
        "The paper's toys show what weights of shared neurons look like; here probes have to find them.",
        "Steps, and how often a feature is there, were set on one seed, so that by the weights each feature has a "
        "neuron where there are as many: at one time of twenty, which was tried first, features shared them anyway.",
    ),
    references={"neurons": (ALIKE, THIRD), "weights": (TRAINED,)},
)  # fmt: skip
