"""Chain of thought: four problems of many steps, learned with the steps written out, with as many fillers, and at once.

Decoders of one layer, or of two where a step has to look up what it is made of first, learn to say the last value:

    steps     behind all values on the way, each of which takes one look back
    filler    behind as many tokens that say nothing: as much to compute with, side by side
    none      at once

A decoder that answers at once, or behind fillers, is a threshold circuit of constant depth (TC0). For sums modulo a
number there is one, since counting is enough. For products of permutations of five there is none unless TC0 is all of
NC1, for circuits none unless it is all of P, and for squares taken again and again none is known. That is of what can
be computed; what is learned in so many updates is measured here.
"""

from collections.abc import Sequence
from statistics import fmean

import glassformer as gf
from glassformer.data import CircuitValue, IteratedSquaring, PermutationProduct, Question, RunningSum, SerialQuestion
from glassformer.models import GREEDY, DecoderConfig, Learned, Mlp, Model, block, generate, repeat
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
    within,
)
from glassformer.training import OptimConfig, TrainConfig

SUMS, PERMUTATIONS, SQUARES, CIRCUITS = "sums", "permutations", "squares", "circuits"
STEPS, FILLER, NONE = "steps", "filler", "none"
TASKS: dict[str, SerialQuestion] = {
    SUMS: RunningSum(modulus=3),
    PERMUTATIONS: PermutationProduct(),
    SQUARES: IteratedSquaring(moduli=(23, 47, 59, 83), tested=0.25),
    CIRCUITS: CircuitValue(),
}
# what a gate of the prompt reads is looked up in one layer, and what that is in another
LAYERS = {SUMS: 1, PERMUTATIONS: 1, SQUARES: 1, CIRCUITS: 2}
WIDTH, SOLVED, UNSOLVED, ALIKE = 64, 0.95, 0.9, 0.1


def run(case: Case) -> Measures:
    problem, data = case["problem"], task(case["problem"], case["chain"])
    model = gf.load(case.train(recipe(problem, data, case["steps"]))).eval()
    longest = data.replace(n_min=data.n_max)
    return {
        "right": right(model, longest, longest.questions(case["questions"], "test", seed=case.seed)),
        "right_any": right(model, data, data.questions(case["questions"], "test", seed=case.seed)),
        "right_trained": right(model, longest, longest.questions(case["questions"], seed=case.seed)),
    }


def task(problem: str, chain: str) -> SerialQuestion:
    """Return the questions of a problem with answers written in some way, in rows that just hold them."""
    found = TASKS[problem].replace(chain=chain)
    longest = found.longest()
    return found.replace(length=longest.prompt + longest.answer + 1)


def recipe(problem: str, data: SerialQuestion, steps: int) -> TrainConfig:
    layers = repeat(block(n_heads=4, mlp=Mlp(4 * WIDTH)), LAYERS[problem])
    # whatever is written, weights are as many
    places = task(problem, STEPS).length
    model = DecoderConfig(data.build().vocab_size, WIDTH, layers, max_len=places, positions=Learned())
    optim = OptimConfig(lr=3e-3, warmup=100)
    return TrainConfig(model, data, optim=optim, steps=steps, log_every=50, evaluate_every=steps, save_every=steps)


def right(model: Model, data: SerialQuestion, asked: Sequence[Question]) -> float:
    """Return the share of questions behind which a model writes, token by token, something that ends in the answer."""
    prompts = [question.prompt for question in asked]
    found = generate(model, prompts, GREEDY, max_new_tokens=data.longest().answer + 1)
    return fmean(
        text.split()[-1:] == question.answer.split()[-1:] for text, question in zip(found.texts, asked, strict=True)
    )


def of(problem: str, chain: str) -> Quantity:
    return value("right", problem=problem, chain=chain)


LEARNED = {
    problem: (Condition(f"With steps written out, {problem} are learned", of(problem, STEPS), above(SOLVED)),)
    for problem in TASKS
}
SAID = {
    SUMS: "sums of twelve numbers modulo three",
    PERMUTATIONS: "products of twelve permutations of five",
    SQUARES: "twelve squares one after another",
    CIRCUITS: "circuits of eight gates, each of which reads the one before,",
}
SERIAL = (PERMUTATIONS, SQUARES, CIRCUITS)

STUDY = Study(
    "chain-of-thought",
    paper='Li, Liu, Zhou and Ma 2024, "Chain of Thought Empowers Transformers to Solve Inherently Serial Problems", '
    'arXiv 2402.12875, section 4; fillers: Pfau, Merrill and Bowman 2024, "Let\'s Think Dot by Dot", arXiv 2404.15758',
    question="Do few layers learn with written steps what they do not learn at once, and do fillers do as well?",
    run=run,
    grid={"problem": tuple(TASKS), "chain": (STEPS, FILLER, NONE)},
    scales={
        "smoke": Scale(1, {"steps": 2, "questions": 8}, {"chain": (STEPS, NONE)}),
        "small": Scale(8, {"steps": 1000, "questions": 200}),
    },
    measures={
        "right": Measure("Share of the longest questions, none of them trained on, whose last value is right",
                         learned=True),
        "right_any": Measure("The same of questions of all lengths", learned=True),
        "right_trained": Measure("The same of the longest questions that are trained on", learned=True),
    },
    claims=(
        *(Claim(f"learned-{problem}", f"The task was learned: with steps written out, {SAID[problem]} are found",
                counted(of(problem, STEPS), above(SOLVED)), MAJORITY)
          for problem in TASKS),
        Claim("sums-at-once", "At once sums are found too, as counting finds them",
              counted(of(SUMS, NONE), above(SOLVED)), MAJORITY, LEARNED[SUMS]),
        *(Claim(f"not-at-once-{problem}", f"At once {SAID[problem]} are not found",
                counted(of(problem, NONE), below(UNSOLVED)), MAJORITY, LEARNED[problem])
          for problem in SERIAL),
        *(Claim(f"not-by-filler-{problem}", f"Behind fillers {SAID[problem]} are not found",
                counted(of(problem, FILLER), below(UNSOLVED)), MAJORITY, LEARNED[problem])
          for problem in SERIAL),
        *(Claim(f"filler-as-at-once-{problem}", f"Behind fillers as many {problem} are right as at once, to a tenth",
                counted(of(problem, FILLER) - of(problem, NONE), within(ALIKE, 0)), MAJORITY, LEARNED[problem])
          for problem in TASKS),
    ),
    differs=(
        "Words of up to twelve steps, or eight gates, and decoders of width 64. Theory is of words that grow, and any "
        "decoder, not of those that a thousand updates find: what is not learned here is not shown to be impossible.",
        "Moduli of squares are below ninety, so that all squares together would fit into a table. A quarter of the "
        "numbers are never trained on with the same modulus and as many steps, nor what they lack to the modulus.",
        "Products are of four generators, one of which does nothing, and gates read the bit right before them, so that "
        "circuits are deep. The paper draws from all of a group, and both bits of a gate anywhere.",
        "Fillers are told apart by their places alone, and a decoder is trained to write them.",
        "Where a step has to look up what it is made of, in circuits, there are two layers, whatever is written.",
    ),
    mechanisms=("softmax",),
    references={"problem": tuple(TASKS), "chain": (STEPS,)},
)  # fmt: skip
