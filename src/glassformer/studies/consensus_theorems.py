"""Consensus of tokens under attention: four theorems on systems drawn at random, their hypotheses looked at first.

Beside them, systems that lack one hypothesis. A seed is a system and ten tokens.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from glassformer.dynamics import EllipsoidAttention, EllipsoidHead, TheoremCheck, check_theorem, on_sphere
from glassformer.dynamics.consensus import TheoremName
from glassformer.errors import AnalysisUnavailable
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

POTENTIAL, HALF, CAUSAL, AXIS = "3.2", "4.1", "5.1", "6.1"
OTHER_METRIC, ANYWHERE, OPEN_MASK, NEGATIVE = (
    "3.2, W not P",
    "4.1, start anywhere",
    "5.1, full mask",
    "6.1, U below zero",
)
# each theorem, and what lacks one of its hypotheses
THEOREMS: dict[str, TheoremName] = {
    POTENTIAL: "3.2", HALF: "4.1", CAUSAL: "5.1", AXIS: "6.1",
    OTHER_METRIC: "3.2", ANYWHERE: "4.1", OPEN_MASK: "5.1", NEGATIVE: "6.1",
}  # fmt: skip
TOKENS, WIDTH, LENGTH = 10, 3, 0.1
SIZES = (1.5, 0.8, 0.3)  # eigenvalues of U


def run(case: Case) -> Measures:
    found = checked_case(case["case"], case.seed, case["until"])

    def risen() -> float:
        if found.potential is None:
            raise AnalysisUnavailable("this theorem has no potential.")
        return float(found.potential.diff().max())

    return {"asked": float(found.applies), "distance": float(found.distance[-1]), "risen": risen}


def checked_case(name: str, seed: int, until: float) -> TheoremCheck:
    """Return what is seen of a theorem, or of one without a hypothesis, in a system drawn at random."""
    generator, theorem = torch.Generator().manual_seed(seed), THEOREMS[name]

    def drawn() -> Tensor:
        return torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)

    def positive() -> Tensor:
        made = drawn()
        return made @ made.mT / WIDTH + 0.2 * torch.eye(WIDTH, dtype=torch.float64)

    def moving() -> Callable[[float], Tensor]:
        still, swinging = drawn(), drawn()
        return lambda time: still + math.sin(time) * swinging

    x = on_sphere(TOKENS, WIDTH, seed=seed)
    if theorem == POTENTIAL:
        scores = positive()
        system = EllipsoidAttention((EllipsoidHead(scores),), positive() if name == OTHER_METRIC else scores)
    elif theorem == HALF:
        system = EllipsoidAttention((EllipsoidHead(moving()), EllipsoidHead(moving())))
        x = x if name == ANYWHERE else above_plane(x, x[0])
    elif theorem == CAUSAL:
        system = EllipsoidAttention((EllipsoidHead(moving()),), causal=name != OPEN_MASK)
    else:
        skew = drawn()
        turn = torch.matrix_exp(skew - skew.mT)
        sizes = torch.tensor(SIZES, dtype=torch.float64) * (-1 if name == NEGATIVE else 1)
        system = EllipsoidAttention((EllipsoidHead(moving(), turn * sizes @ turn.mT),), causal=True)
        x = above_plane(x, turn[:, 0])
    return check_theorem(theorem, system, x, until=until, length=LENGTH)


def above_plane(x: Tensor, normal: Tensor) -> Tensor:
    """Return tokens with those below a plane through the middle mirrored onto its other side."""
    sides = (x @ normal).sign()
    return x * torch.where(sides == 0, 1.0, sides)[:, None]


def near(case: str) -> Quantity:
    return counted(value("distance", case=case), below(1e-3))


def asked(case: str) -> Condition:
    return Condition("All is so that the theorem asks", value("asked", case=case), above(0.5))


STUDY = Study(
    "consensus-theorems",
    paper='Rodriguez Abella, Silvestre and Tabuada 2024, "The Asymptotic Behavior of Attention in Transformers", arXiv '
    "2412.02682, theorems 3.2, 4.1, 5.1 and 6.1",
    question="Do all tokens come to consensus where theorems say so, and what if one hypothesis is dropped?",
    run=run,
    grid={"case": tuple(THEOREMS)},
    scales={"smoke": Scale(1, {"until": 1.0}), "small": Scale(12, {"until": 150.0})},
    measures={
        "asked": Measure("1 if all is so that the theorem asks, else 0"),
        "distance": Measure("Distance of the furthest token from where the theorem has all end"),
        "risen": Measure("Largest rise of the potential in a step; below zero it falls"),
    },
    claims=(
        Claim("potential", "3.2: tokens come to consensus", near(POTENTIAL), MAJORITY, (asked(POTENTIAL),)),
        Claim("potential-falls", "3.2: the potential never rises",
              counted(value("risen", case=POTENTIAL), below(1e-9)), MAJORITY, (asked(POTENTIAL),)),
        Claim("half", "4.1: from one half tokens come to consensus", near(HALF), MAJORITY, (asked(HALF),)),
        Claim("causal", "5.1: under a causal mask all come to the first", near(CAUSAL), MAJORITY, (asked(CAUSAL),)),
        Claim("axis", "6.1: all come to the eigenvector of U", near(AXIS), MAJORITY, (asked(AXIS),)),
        Claim("half-sufficient", "4.1 asks for more than it takes: from anywhere most come to consensus, too",
              near(ANYWHERE), MAJORITY),
        Claim("mask-needed", "5.1 without its mask: tokens do not end at the first",
              counted(value("distance", case=OPEN_MASK), above(0.1)), MAJORITY),
        Claim("sign-needed", "6.1 with eigenvalues below zero: tokens do not end at an eigenvector",
              counted(value("distance", case=NEGATIVE), above(0.1)), MAJORITY),
    ),
    differs=(
        "Ten tokens in three dimensions up to a time of 150; the theorems are of time without end.",
        "What 6.1 asks of U beyond symmetry is as it was found to be needed: a largest eigenvalue above zero.",
    ),
    mechanisms=("softmax",),
    references={"case": (POTENTIAL, HALF, CAUSAL, AXIS)},
)  # fmt: skip
