"""The phase change: when induction heads form, and what changes with it.

Three runs on Python, some rows of each batch random tokens repeated: two layers, one layer, and one layer whose keys
are mixed with those before them, which is what a single layer lacks for induction.
"""

import dataclasses
import math

from glassformer.analysis.heads import head_scores
from glassformer.analysis.learning import Trajectory, phase_change, read_history, trajectory
from glassformer.data import MixtureConfig
from glassformer.errors import AnalysisUnavailable
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
from glassformer.training import TrainConfig
from glassformer.training.recipes import attention_only

ONE, SMEARED, TWO = "one", "one, smeared keys", "two"
# so that both studies of these runs find them trained
SCALES = {
    "smoke": Scale(seeds=1, settings={"steps": 8, "repeated": 0.5, "batches": 1, "checkpoints": 4}),
    "small": Scale(seeds=3, settings={"steps": 2000, "repeated": 0.5, "batches": 8, "checkpoints": 20}),
    "full": Scale(seeds=5, settings={"steps": 4000, "repeated": 0.25, "batches": 32, "checkpoints": 40}),
}
DIFFERS = (
    "Half of each batch (a quarter at full scale) are random tokens repeated, and prefix matching is measured on such: "
    "models this small form no induction heads from a few million tokens of text alone.",
    "Rows are 128 tokens, so that the score compares their end with their beginning, not token 500 with token 50.",
)


def run(case: Case) -> Measures:
    history = read_history(case.train(recipe(case["layers"], case)))
    path = trajectory(history, *history.batches(case["batches"]))
    score, matching = (path.measures.select(measure=name).values for name in ("icl_score", "prefix_matching"))
    return {
        "icl_score": float(score[-1]),
        "prefix_matching": float(matching[-1]),
        "tokens_until": lambda: tokens_until(path),
        "apart": lambda: apart(path),
        "bump": lambda: phase_change(path).bump_height,
    }


def recipe(layers: str, case: Case) -> TrainConfig:
    """Return the recipe of a shipped attention-only model, with its weights kept along the way."""
    steps, share = case["steps"], case["repeated"]
    found = attention_only(2 if layers == TWO else 1, smeared=layers == SMEARED)
    assert isinstance(found.data, MixtureConfig)
    every = steps // case["checkpoints"]
    return found.replace(
        data=found.data.replace(shares=(1 - share, share), seed=case.seed), steps=steps, save_every=steps,
        evaluate_every=every, keep=tuple(range(every, steps + 1, every)),
    )  # fmt: skip


def tokens_until(path: Trajectory) -> float:
    matching = path.measures.select(measure="prefix_matching").values
    for tokens, score in zip(path.tokens.values.tolist(), matching.tolist()):
        if score > 0.5:
            return float(tokens)
    raise AnalysisUnavailable("prefix matching never exceeds a half")


def apart(path: Trajectory) -> float:
    """Return the ratio of the tokens seen where prefix matching and where the score change fastest; 1 is at once."""
    steepest = phase_change(path).steepest
    steps = [float(steepest.select(measure=name).values.double().mean()) for name in ("prefix_matching", "icl_score")]
    return math.exp(abs(math.log(steps[0] / steps[1])))


FORMS = Condition("Two layers form an induction head", value("prefix_matching", layers=TWO), above(0.5))

STUDY = Study(
    "phase-change",
    paper='Olsson et al. 2022, "In-context Learning and Induction Heads", "The phase change" and arguments 1 and 2',
    question="Do induction heads form when in-context learning appears, and earlier where they form more easily?",
    run=run,
    grid={"layers": (TWO, ONE, SMEARED)},
    scales=SCALES | {"smoke": dataclasses.replace(SCALES["smoke"], grid={"layers": (TWO, SMEARED)})},
    measures={
        "icl_score": Measure("In-context-learning score at the end: loss late in the row less loss early", "nats"),
        "prefix_matching": Measure("Prefix matching of the best head at the end", analysis=head_scores, learned=True),
        "tokens_until": Measure("Training until a head's prefix matching exceeds a half", "tokens"),
        "apart": Measure(
            "Training by which prefix matching changes fastest, against that by which the score does, the later by "
            "the earlier",
            analysis=phase_change,
        ),
        "bump": Measure("How far the loss curve leaves its convex hull", "nats", phase_change),
    },
    claims=(
        Claim(
            "at-once",
            "Induction heads form when in-context learning appears",
            value("apart", layers=TWO),
            below(2),
            (FORMS,),
        ),
        Claim(
            "bump",
            "The loss has a bump there, more than without induction heads",
            value("bump", layers=TWO) - value("bump", layers=ONE),
            above(0),
            (FORMS,),
        ),
        Claim(
            "one-layer-none",
            "One layer has no induction head",
            counted(value("prefix_matching", layers=ONE), below(0.2)),
            MAJORITY,
            (FORMS,),
        ),
        Claim(
            "one-layer-less",
            "One layer learns less in context",
            value("icl_score", layers=TWO) - value("icl_score", layers=ONE),
            below(-0.05),
            (FORMS,),
        ),
        Claim(
            "smeared-enough",
            "With smeared keys one layer is enough",
            counted(value("prefix_matching", layers=SMEARED), above(0.5)),
            MAJORITY,
        ),
        Claim(
            "smeared-learns",
            "Where they form earlier, in-context learning is there, too",
            value("icl_score", layers=SMEARED) - value("icl_score", layers=ONE),
            below(-0.05),
        ),
        Claim(
            "smeared-sooner",
            "Smeared keys bring them in half the training",
            value("tokens_until", layers=SMEARED) / value("tokens_until", layers=TWO),
            below(0.5),
            (FORMS,),
        ),
    ),
    differs=DIFFERS,
    mechanisms=("softmax",),
    references={"layers": (TWO,)},
)
