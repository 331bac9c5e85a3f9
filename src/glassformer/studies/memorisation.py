"""Which layers does recited text need, and which new text?

Six layers are shown some sequences a known number of times, cut from text or drawn by frequency. Then the attention of
chosen layers is short-circuited, so that each token attends to itself alone: what is still recited, and what does new
text cost?
"""

import statistics
from collections.abc import Sequence

import glassformer as gf
from glassformer.analysis.behaviour import ShortCircuit, short_circuit
from glassformer.data import Planted, PlantedData
from glassformer.study import (
    MAJORITY,
    Case,
    Claim,
    Condition,
    Measure,
    Measures,
    Scale,
    Study,
    above,
    below,
    counted,
    value,
)
from glassformer.training.recipes import memorisation

EARLY, LATE = ("layer 0", "layer 1"), ("layer 4", "layer 5")
BATCHES = 16


def run(case: Case) -> Measures:
    steps = case["steps"]
    recipe = memorisation(case["made_of"])
    assert isinstance(recipe.data, Planted)
    data = recipe.data.replace(seed=case.seed, over=steps, counts=(0, case["seldom"], case["often"]))
    model = gf.load(case.train(recipe.replace(data=data, steps=steps, evaluate_every=steps, save_every=steps)))
    built = data.build(model.tokenizer)
    assert isinstance(built, PlantedData)
    novel = [built.batch(i, "heldout") for i in range(BATCHES)]
    found = short_circuit(model, built.planted, *novel, report=case.report)
    often, seldom = case["often"], case["seldom"]
    return {
        "recited": recited(found, "none", often),
        "recited_seldom": recited(found, "none", seldom),
        "recited_new": recited(found, "none", 0),
        "recited_without_early": statistics.fmean(recited(found, layer, often) for layer in EARLY),
        "recited_without_late": statistics.fmean(recited(found, layer, often) for layer in LATE),
        "recited_without_last_two": recited(found, "last 2", often),
        "cost_of_early": cost(found, EARLY),
        "cost_of_late": cost(found, LATE),
    }


def recited(found: ShortCircuit, layers: str, count: int) -> float:
    """Return the share of the sequences shown so often that are recited."""
    counts = [int(each) for each in found.exact_match.labels("count")]
    return float(found.exact_match.select(layers=layers).values[counts.index(count)])


def cost(found: ShortCircuit, layers: Sequence[str]) -> float:
    """Return what new text loses without attention in one of these layers, their mean, in nats."""
    return statistics.fmean(float(found.novel_loss_change.select(layers=each).values) for each in layers)


RECITES = {
    kind: Condition(f"What is shown often is recited ({kind})", value("recited", made_of=kind), above(0.9))
    for kind in ("text", "tokens")
}
USES = {
    kind: Condition(
        f"An early layer's attention is worth a tenth of a nat to new text ({kind})",
        value("cost_of_early", made_of=kind), above(0.1),
    )
    for kind in RECITES
}  # fmt: skip

STUDY = Study(
    "memorisation",
    paper='Menta, Agrawal and Agarwal 2025, "Analyzing Memorization in Large Language Models through the Lens of Model '
    'Attribution", arXiv 2501.05078',
    question="Can attention in deep layers be short-circuited at little cost to anything but memory?",
    run=run,
    grid={"made_of": ("text", "tokens")},
    scales={
        "smoke": Scale(1, {"steps": 4, "seldom": 1, "often": 2}, {"made_of": ("tokens",)}),
        "small": Scale(seeds=3, settings={"steps": 750, "seldom": 16, "often": 256}),
        "full": Scale(seeds=5, settings={"steps": 3000, "seldom": 16, "often": 256}),
    },
    measures={
        "recited": Measure("Share of the sequences shown often that are gone on with without a mistake",
                           analysis=short_circuit, learned=True),
        "recited_seldom": Measure("The same of those shown seldom", learned=True),
        "recited_new": Measure("The same of those never shown", learned=True),
        "recited_without_early": Measure("Recited of those shown often, without attention in layer 0 or 1; their mean"),
        "recited_without_late": Measure("The same of layers 4 and 5"),
        "recited_without_last_two": Measure("The same without attention in both of the last layers"),
        "cost_of_early": Measure("What new text loses without attention in layer 0 or in layer 1, their mean", "nats"),
        "cost_of_late": Measure("The same of layers 4 and 5", "nats"),
    },
    claims=(
        *(
            claim
            for kind in RECITES
            for claim in (
                Claim(
                    f"{kind}-recited",
                    f"What is shown often is recited ({kind})",
                    counted(value("recited", made_of=kind), above(0.9)),
                    MAJORITY,
                ),
                Claim(
                    f"{kind}-needs-last-two",
                    f"Without attention in the last two layers it is not ({kind})",
                    value("recited_without_last_two", made_of=kind),
                    below(0.5),
                    (RECITES[kind],),
                ),
                Claim(
                    f"{kind}-new-needs-early",
                    f"New text loses less without a late layer than without an early one ({kind})",
                    value("cost_of_late", made_of=kind) / value("cost_of_early", made_of=kind),
                    below(0.5),
                    (USES[kind],),
                ),
                Claim(
                    f"{kind}-memory-needs-late",
                    f"Memory loses no less without a late layer than without an early one ({kind})",
                    value("recited_without_late", made_of=kind) - value("recited_without_early", made_of=kind),
                    below(0.05),
                    (RECITES[kind],),
                ),
            )
        ),
        Claim("seldom", "What is shown seldom is not recited", counted(value("recited_seldom"), below(0.1)), MAJORITY,
              tuple(RECITES.values())),
        Claim("never", "What was never shown is not", counted(value("recited_new"), below(0.05)), MAJORITY,
              tuple(RECITES.values())),
    ),
    differs=(
        "Six layers of width 128 that saw the sequences during training; the paper short-circuits models of up to "
        "twelve billion parameters, on text whose repetitions nobody counted.",
        "Deep layers are the last two of six; the paper's are the last quarter.",
    ),
    mechanisms=("softmax",),
    references={"made_of": ("text", "tokens")},
)  # fmt: skip
