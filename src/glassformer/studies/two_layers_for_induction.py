"""Induction takes two layers: one that tells each token what came before it, and one that looks for that.

A language of random words, a quarter of which never occur in training. Completing one of those from its first
occurrence in the row is induction and nothing else. One layer cannot, unless its keys are mixed with those of the token
before.
"""

import math

import torch

import glassformer as gf
from glassformer.analysis.heads import head_scores
from glassformer.analysis.losses import token_losses
from glassformer.data import UnseenWords
from glassformer.models import ModelLike
from glassformer.study import Case, Claim, Measure, Measures, Scale, Study, above, below, value
from glassformer.training.recipes import unseen_words

ONE, SMEARED, TWO = "one", "one, smeared keys", "two"
BATCHES = 4


def run(case: Case) -> Measures:
    steps = case["steps"]
    recipe = unseen_words(2 if case["layers"] == TWO else 1, smeared=case["layers"] == SMEARED)
    model = gf.load(case.train(recipe.replace(steps=steps, evaluate_every=steps, save_every=steps)))
    loss = _loss(model)
    return {
        "loss": loss,
        "share_of_chance": loss / math.log(UnseenWords().alphabet),
        "prefix_matching": lambda: head_scores(model).best("induction")[1],
    }


def _loss(model: ModelLike) -> float:
    """Return the loss on letters of withheld words that occurred before in the row, in nats."""
    data = UnseenWords()
    built = data.build()
    rows = [built.batch(i, "heldout") for i in range(BATCHES)]
    losses, _ = token_losses(model, *rows)
    marks = data.marks(torch.cat([torch.cat((row.tokens, row.targets[:, -1:]), 1) for row in rows]))
    return float(losses[(marks.letter > 0) & marks.withheld & (marks.occurrence > 1)].mean())


STUDY = Study(
    "two-layers-for-induction",
    paper='Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context '
    'Learning and Induction Heads", argument 2; Sanford, Hsu and Telgarsky 2024, arXiv 2408.14332',
    question="Does completing what was never seen in training take two layers of attention?",
    run=run,
    grid={"layers": (ONE, SMEARED, TWO)},
    scales={
        "smoke": Scale(seeds=2, settings={"steps": 20}),
        "small": Scale(seeds=3, settings={"steps": 1500}),
    },
    measures={
        "loss": Measure("Loss on letters that an earlier occurrence of a withheld word determines", "nats"),
        "share_of_chance": Measure("The same, of the loss of guessing any letter"),
        "prefix_matching": Measure("Prefix matching of the best head, on random tokens repeated", analysis=head_scores),
    },
    claims=(
        Claim("Two layers complete words that were never seen", value("share_of_chance", layers=TWO), below(0.2)),
        Claim("One layer does not", value("share_of_chance", layers=ONE), above(0.6)),
        Claim("One layer with smeared keys does", value("share_of_chance", layers=SMEARED), below(0.2)),
        Claim("Two layers have a head that matches prefixes", value("prefix_matching", layers=TWO), above(0.5)),
        Claim("One layer has none", value("prefix_matching", layers=ONE), below(0.2)),
    ),
    differs=("Models of one head width and a language of random words, trained for minutes; no proof of any bound.",),
    mechanisms=("softmax",),
)
