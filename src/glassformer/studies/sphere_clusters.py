"""Clusters of tokens on a sphere: when random tokens merge under attention, by dimension and temperature.

Theory has one equation for many dimensions, by which all pairs merge at once and at a time that is known; in few
dimensions and the cold tokens gather in several clusters, which stay for long.
"""

from glassformer.dynamics import ParticleFlow, clusters, merged, merging_time, on_sphere
from glassformer.study import (
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
    value,
    within,
)

LENGTH = 0.1  # of a layer's step
HOT, WARM, COOL, COLD = 1.0, 4.0, 6.0, 9.0
FLAT, MANY = 2, 128


def run(case: Case) -> Measures:
    flow, n = ParticleFlow(case["beta"]), case["tokens"]
    x = on_sphere(case["draws"], n, case["dimensions"], seed=case.seed)
    early, late = round(20 / LENGTH), round(case["until"] / LENGTH)
    # the time at which half of all pairs have merged, or the last one
    half, counts = case["until"], dict[int, float]()
    for step in range(1, late + 1):
        x = flow.layer(x, LENGTH)
        if half == case["until"] and step * LENGTH < half and float(merged(x).mean()) >= 0.5:
            half = step * LENGTH
        if step in (early, late):
            counts[step] = float(clusters(x).double().mean())
    return {
        "merged": float(merged(x).mean()),
        "half_over_theory": half / merging_time(case["beta"], n),
        "clusters_early": counts.get(early, counts[late]),
        "clusters_late": counts[late],
    }


def at(measure: str, dimensions: int, beta: float) -> Quantity:
    return value(measure, dimensions=dimensions, beta=beta)


MERGES = Condition("In many dimensions and the heat all merge", at("merged", MANY, HOT), above(0.999))

STUDY = Study(
    "sphere-clusters",
    paper='Geshkovski, Letrouit, Polyanskiy and Rigollet 2023, "A mathematical perspective on Transformers", arXiv '
    "2312.10794, sections 4 to 6",
    question="Do tokens on a sphere merge when theory says, and do clusters wait where it does not?",
    run=run,
    grid={"dimensions": (FLAT, 8, 32, MANY), "beta": (HOT, WARM, COOL, COLD)},
    scales={
        "smoke": Scale(2, {"tokens": 6, "draws": 4, "until": 2.0}, {"dimensions": (FLAT, MANY)}),
        "small": Scale(5, {"tokens": 32, "draws": 8, "until": 100.0}),
    },
    measures={
        "merged": Measure("Share of pairs of tokens that have merged at the end"),
        "half_over_theory": Measure("Time until half of them have, over that at which theory has all angles merge"),
        "clusters_early": Measure("Clusters at time 20, mean over draws"),
        "clusters_late": Measure("Clusters at the end, mean over draws"),
    },
    claims=(
        Claim("hemisphere", "More dimensions than tokens: all merge", at("merged", MANY, HOT), above(0.999)),
        *(Claim(f"time-{name}", f"In many dimensions they merge when theory says, at beta = {beta:g}",
                at("half_over_theory", MANY, beta), within(0.3, 1), (MERGES,))
          for name, beta in (("hot", HOT), ("warm", WARM), ("cool", COOL))),
        Claim("plane-late", "In the plane and the cold they merge later than that, if at all",
              at("merged", FLAT, COLD), below(0.9)),
        Claim("several", "There are several clusters there at time 20", at("clusters_early", FLAT, COLD), above(2)),
        Claim("plateau", "They stay: fewer than one is lost until time 100",
              at("clusters_early", FLAT, COLD) - at("clusters_late", FLAT, COLD), below(1)),
        Claim("one-in-the-end", "In eight dimensions nearly all pairs have merged by then", at("merged", 8, WARM),
              above(0.9)),
    ),
    differs=(
        "Steps of a tenth of a layer, as in the authors' code; laws of the library compare them with fourth order.",
        "Of 32 tokens; theory is of time without end, or of dimensions without bound.",
    ),
    mechanisms=("softmax",),
    references={"dimensions": (MANY,), "beta": (HOT,)},
)  # fmt: skip
