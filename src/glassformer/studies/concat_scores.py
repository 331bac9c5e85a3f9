"""Queries side by side with keys: what the score w . [q; k] can say, with a tanh between and without.

Without one, the score is a number of the query plus a number of the key, and softmax takes the query's out: every query
that sees the same keys looks at them alike. To recall what came with a key is to look at the place where that key was,
which depends on who asks.
"""

import math

import torch

import glassformer as gf
from glassformer.attention import Concat, ConcatLinear, MixerConfig
from glassformer.data import Recall
from glassformer.models import DecoderConfig, Learned, Mlp, block, repeat
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
    kinds_of,
    value,
    within,
)
from glassformer.training import OptimConfig, TrainConfig

LINEAR, TANH = "w . [q; k]", "v . tanh(W [q; k])"
MIXERS: dict[str, MixerConfig] = {LINEAR: ConcatLinear(), TANH: Concat()}
DATA = Recall(batch_size=32, length=24, n_pairs=4, n_keys=16, n_values=16)
WIDTH, BATCHES, CHANCE = 64, 16, math.log(16)


def run(case: Case) -> Measures:
    model = gf.load(case.train(recipe(case["score"], case["steps"])))
    data, losses = DATA.build(), list[torch.Tensor]()
    for i in range(BATCHES):
        batch = data.batch(i, "heldout")
        with torch.no_grad():
            logits = model(batch.tokens)
        losses.append(torch.nn.functional.cross_entropy(logits[batch.weight], batch.targets[batch.weight]))
    # without the mask, rows that say the same are one row
    rows = gf.run(model, data.batch(0, "heldout").tokens, read="scores").layers("scores").values[..., -4:, :-4]
    rows = rows.softmax(-1).double()
    return {
        "share_of_chance": float(torch.stack(losses).mean()) / CHANCE,
        "spread": float((rows - rows.mean(-2, keepdim=True)).abs().sum(-1).mean()),
    }


def recipe(score: str, steps: int) -> TrainConfig:
    # keys know the token before theirs, so that what came with a key can be found in one layer
    layers = repeat(block(MIXERS[score], n_heads=4, mlp=Mlp(WIDTH), smeared=True), 2)
    return TrainConfig(
        DecoderConfig(DATA.build().vocab_size, WIDTH, layers, max_len=24, positions=Learned()), DATA, steps=steps,
        optim=OptimConfig(lr=3e-3, warmup=50), log_every=50, evaluate_every=steps, save_every=steps,
    )  # fmt: skip


def of(score: str, measure: str = "share_of_chance") -> Quantity:
    return value(measure, score=score)


RECALLS = Condition("With a tanh, a key recalls what came with it", of(TANH), below(0.1))

STUDY = Study(
    "concat-scores",
    paper='Luong, Pham and Manning 2015, arXiv 1508.04025, section 3.1, "concat", which has the tanh; tutorials leave '
    "it out",
    question="What does the tanh do in a score of query and key side by side?",
    run=run,
    grid={"score": tuple(MIXERS)},
    scales={"smoke": Scale(1, {"steps": 8}), "small": Scale(3, {"steps": 800}), "full": Scale(5, {"steps": 4000})},
    measures={
        "share_of_chance": Measure(
            "Loss on what a key recalls, of that of guessing among sixteen symbols", learned=True
        ),
        "spread": Measure("How far the last four queries' weights on keys that all of them see are from their mean"),
    },
    claims=(
        Claim("linear-misses", "Without a tanh, nothing is recalled", counted(of(LINEAR), above(0.4)), MAJORITY,
              (RECALLS,)),
        Claim("tanh-recalls", "With it, a key recalls what came with it", counted(of(TANH), below(0.1)), MAJORITY),
        Claim("linear-alike", "Without a tanh, all queries look alike", of(LINEAR, "spread"), within(1e-4, 0)),
        Claim("tanh-apart", "With it, they do not", of(TANH, "spread"), above(0.1), (RECALLS,)),
    ),
    differs=(
        "Luong et al. translate, and score states of a recurrent decoder; here two layers recall pairs of symbols.",
        "Guessing among the four values of a text costs half of guessing among all sixteen: a model that finds them "
        "and compares nothing has a share of 0.5.",
        "Keys are smeared: they know the token before theirs. Seeds draw weights; the rows are the same for all.",
    ),
    mechanisms=("concat", "concat_linear"),
    kinds=kinds_of(MIXERS),
    references={"score": (TANH,)},
)  # fmt: skip
