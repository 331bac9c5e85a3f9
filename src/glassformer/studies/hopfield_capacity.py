"""Capacity of associative memories: how many patterns drawn at random one update gives back, by the number of neurons.

Theory has it linear for Hopfield's network, a power where more neurons interact, and exponential with e^s and with real
states, where an update is attention. Binary memories are full where one neuron in a hundred is wrong; real ones where
half of the patterns are moved by a tenth of their length.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from glassformer.dynamics import capacity, expected_capacity
from glassformer.errors import AnalysisUnavailable
from glassformer.study import Case, Claim, Measure, Measures, Scale, Study, above, growth, slope, value, within

PAIRS, TRIPLES, FOURS, EXPONENTIAL, ATTENTION = "pairs", "triples", "fours", "exponential", "attention"
DEGREES = {PAIRS: 2, TRIPLES: 3, FOURS: 4}
# exponential memories are full of all there are beyond few neurons
FEW, LARGEST = 20, 96


def run(case: Case) -> Measures:
    memory, n, tested = case["memory"], case["neurons"], case["tested"]
    if memory == ATTENTION:
        found = held_by_attention(n, round(4 * math.exp(0.63 * n)), tested, case.seed)
    elif memory == EXPONENTIAL:
        found = capacity("exponential", n, 2**n, n_tested=tested, seed=case.seed)
    else:
        most = 4 * math.ceil(expected_capacity(DEGREES[memory], n))
        found = capacity(DEGREES[memory], n, most, n_tested=tested, seed=case.seed)

    def over_theory() -> float:
        if memory not in DEGREES:
            raise AnalysisUnavailable("theory has a rate for this memory, and no number.")
        return found / expected_capacity(DEGREES[memory], n)

    return {"capacity": float(found), "log2_capacity": math.log2(max(found, 1)), "over_theory": over_theory}


def held_by_attention(n: int, most: int, tested: int, seed: int) -> int:
    """Return how many patterns as long as the root of their width are stored, until half are moved by a tenth of it."""
    generator, moved = torch.Generator().manual_seed(seed), []

    def drawn(rows: int) -> torch.Tensor:
        made = torch.randn(rows, n, generator=generator, dtype=torch.float64)
        return made * math.sqrt(n) / made.norm(dim=-1, keepdim=True)

    others = drawn(most - 1)
    for own in drawn(tested):
        patterns = torch.cat((own[None], others))
        weights = (patterns @ own - n).exp()[:, None]
        # updates of memories of one pattern more each
        updated = (weights * patterns).cumsum(0) / weights.cumsum(0)
        moved.append(((updated - own).norm(dim=-1) > 0.1 * math.sqrt(n)).double())
    over = (torch.stack(moved).mean(0) > 0.5).nonzero()
    return int(over[0]) if len(over) else most


def skipped(at: Mapping[str, Any]) -> bool:
    """Return whether a memory is of too few neurons for a power, or of too many for what grows exponentially."""
    return (int(at["neurons"]) < FEW) is (at["memory"] in DEGREES)


STUDY = Study(
    "hopfield-capacity",
    paper="Krotov and Hopfield 2016, arXiv 1606.01164; Demircigil et al. 2017, arXiv 1702.01929, theorem 3; Ramsauer "
    "et al. 2020, arXiv 2008.02217, theorem 3",
    question="Does the capacity of associative memories grow with neurons as theory says, up to attention?",
    run=run,
    grid={"memory": (*DEGREES, EXPONENTIAL, ATTENTION), "neurons": (10, 14, 18, 24, 48, LARGEST)},
    scales={
        "smoke": Scale(2, {"tested": 8}, {"neurons": (6, 10, 24, 32)}),
        "small": Scale(5, {"tested": 64}),
    },
    measures={
        "capacity": Measure("Patterns that the memory holds"),
        "log2_capacity": Measure("Its logarithm", "bits"),
        "over_theory": Measure("It over what theory says for many neurons"),
    },
    claims=(
        Claim("linear", "Where pairs interact it grows with neurons", growth("capacity", "neurons", memory=PAIRS),
              within(0.15, 1)),
        Claim("square", "Where three do, with their square", growth("capacity", "neurons", memory=TRIPLES),
              within(0.15, 2)),
        Claim("cube", "Where four do, with their cube", growth("capacity", "neurons", memory=FOURS), within(0.15, 3)),
        Claim("number", "Of three it is what the tail of a normal distribution says",
              value("over_theory", memory=TRIPLES, neurons=LARGEST), within(0.15, 1)),
        Claim("exponential", "With e^s it grows by half a bit with each neuron, at least",
              slope("log2_capacity", "neurons", memory=EXPONENTIAL), above(0.5)),
        Claim("attention", "That of attention is exponential, at the proven rate at least",
              slope("log2_capacity", "neurons", memory=ATTENTION), above(math.log2(1.3718) / 4)),
    ),
    differs=(
        "Patterns are held if one update from themselves leaves them, all of them but one neuron in a hundred; the "
        "proofs ask for a ball of starts around each.",
        "The rate proven for attention is that of Ramsauer et al. for beta = 1 and patterns as long as here.",
    ),
    mechanisms=("softmax",),
    skip=skipped,
)  # fmt: skip
