"""Induction takes two layers: one that tells each token what came before it, and one that looks for that.

A language of random words, a quarter of which never occur in training. Completing one of those from its first
occurrence in the row is induction and nothing else: who only counted the training text cannot know it, whatever the
order. One layer cannot, either, unless its keys are mixed with those of the token before.
"""

import math

import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.heads import head_scores
from glassformer.analysis.losses import token_losses
from glassformer.data import Batch, UnseenWords
from glassformer.data.text.counts import NGramModel
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
from glassformer.training.recipes import unseen_words

ONE, SMEARED, TWO, COUNTS = "one layer", "one layer, smeared keys", "two layers", "4-gram counts"
DATA = UnseenWords()
BATCHES, COUNTED, ORDER = 4, 200, 4


def run(case: Case) -> Measures:
    built = DATA.replace(seed=case.seed).build()
    rows = [built.batch(i, "heldout") for i in range(BATCHES)]
    steps, name = case["steps"], case["model"]
    if name == COUNTS:
        counted = [ids for i in range(min(COUNTED, steps)) for ids in _whole(built.batch(i + 1)).tolist()]
        counts = NGramModel(counted, built.vocab_size, ORDER)
        return measures_of(
            case, rows, torch.stack([counts.loss(ids)[1:] for ids in torch.cat([*map(_whole, rows)]).tolist()])
        )
    recipe = unseen_words(2 if name == TWO else 1, smeared=name == SMEARED)
    model = gf.load(case.train(recipe.replace(data=built.config, steps=steps, evaluate_every=steps, save_every=steps)))
    found = measures_of(case, rows, token_losses(model, *rows)[0])
    return {**found, "prefix_matching": lambda: head_scores(model).best("induction")[1]}


def measures_of(case: Case, rows: list[Batch], losses: Tensor) -> dict[str, float]:
    """Return losses on the letters of withheld words but their first, where they occur first and later."""
    marks = DATA.replace(seed=case.seed).marks(torch.cat([*map(_whole, rows)]))
    inside = (marks.letter > 0) & marks.withheld
    again = float(losses[inside & (marks.occurrence > 1)].mean())
    return {
        "share_of_chance": again / math.log(DATA.alphabet),
        "gain": float(losses[inside & (marks.occurrence == 1)].mean()) - again,
    }


def _whole(batch: Batch) -> Tensor:
    return torch.cat((batch.tokens, batch.targets[:, -1:]), 1)


def share(model: str) -> Quantity:
    return value("share_of_chance", model=model)


UNKNOWN = Condition("Counting the training text does not tell these letters", share(COUNTS), above(0.6))
COMPLETES = Condition("Two layers complete words that were never seen", share(TWO), below(0.2))

STUDY = Study(
    "two-layers-for-induction",
    paper='Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context '
    'Learning and Induction Heads", argument 2; Sanford, Hsu and Telgarsky 2024, arXiv 2408.14332',
    question="Does completing what was never seen in training take two layers of attention?",
    run=run,
    grid={"model": (ONE, SMEARED, TWO, COUNTS)},
    scales={
        "smoke": Scale(seeds=1, settings={"steps": 20}),
        "small": Scale(seeds=8, settings={"steps": 4000}),
    },
    measures={
        "share_of_chance": Measure(
            "Loss on letters that an earlier occurrence of a withheld word determines, of that of guessing any letter"
        ),
        "gain": Measure("How much less than at its first occurrence that is", "nats"),
        "prefix_matching": Measure(
            "Prefix matching of the best head, on random tokens repeated", analysis=head_scores, learned=True
        ),
    },
    claims=(
        Claim(
            "two-complete",
            "Two layers complete words that were never seen",
            counted(share(TWO), below(0.2)),
            MAJORITY,
            (UNKNOWN,),
        ),
        Claim("one-does-not", "One layer does not", counted(share(ONE), above(0.6)), MAJORITY, (UNKNOWN, COMPLETES)),
        Claim(
            "smeared-completes",
            "One layer with smeared keys does",
            counted(share(SMEARED), below(0.2)),
            MAJORITY,
            (UNKNOWN,),
        ),
        Claim("counts-do-not", "Counting the training text does not", share(COUNTS), above(0.6)),
        Claim(
            "counts-gain-nothing",
            "Counting gains nothing where a word comes again",
            value("gain", model=COUNTS),
            below(0.5),
        ),
        Claim(
            "two-match",
            "Two layers have a head that matches prefixes",
            counted(value("prefix_matching", model=TWO), above(0.5)),
            MAJORITY,
            (UNKNOWN,),
        ),
        Claim(
            "one-matches-none",
            "One layer has none",
            counted(value("prefix_matching", model=ONE), below(0.2)),
            MAJORITY,
            (UNKNOWN, COMPLETES),
        ),
    ),
    differs=("Models of one head width and a language of random words, trained for minutes; no proof of any bound.",),
    mechanisms=("softmax",),
    references={"model": (TWO, COUNTS)},
)
