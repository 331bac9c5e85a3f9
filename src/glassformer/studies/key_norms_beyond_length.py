"""Keys of one length beyond the trained length: what is left of a score when only angles can rank keys.

Su explains why decoders with rotary positions fail in longer texts by how scores are made: where keys may be long, they
are learned in place of angles, and longer texts lead to angles that training never showed. Keys of one length leave
angles alone. Small decoders are trained on 64 tokens of text and go on to 512.
"""

import math

import torch
from torch import Tensor

import glassformer as gf
from glassformer.analysis.behaviour import score_geometry
from glassformer.attention import QueryKeyNorm, Rope, Softmax
from glassformer.models import DecoderConfig, Mlp, block, repeat
from glassformer.studies.entropy_by_length import DATA, LONG, TRAINED, held_out
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
from glassformer.training import OptimConfig, TrainConfig

NONE, QUERIES, KEYS, COSINE = "neither", "queries", "keys", "both"
NORMS: dict[str, QueryKeyNorm | bool] = {
    NONE: False,
    QUERIES: QueryKeyNorm(gains="none", of="queries"),
    KEYS: QueryKeyNorm(gains="none", of="keys"),
    COSINE: QueryKeyNorm(gains="none"),
}
WIDTH, HEADS = 64, 4
# what cosines are multiplied by, as the article has it: 4 log of half the trained length
SHARPNESS = 4 * math.log(TRAINED / 2)


def run(case: Case) -> Measures:
    model = gf.load(case.train(recipe(case["normed"], case["steps"])))
    rows, losses = held_out(model.tokenizer, case["rows"]), list[Tensor]()
    for some in rows.split(16):
        with torch.no_grad():
            losses.append(torch.nn.functional.cross_entropy(model(some[:, :-1]).mT, some[:, 1:], reduction="none"))
    found = {"loss": slice(TRAINED * 3 // 4, TRAINED), "loss_beyond": slice(LONG * 3 // 4, LONG)}
    geometry = score_geometry(model, rows[:8, :-1], length=TRAINED)
    angles = geometry.ranges.select(measure="angle", reach="trained").values
    return {name: float(torch.cat(losses)[:, where].mean()) for name, where in found.items()} | {
        "angles": float((angles[:, 1] - angles[:, 0]).mean()),
        "angles_outside": float(geometry.outside.select(measure="angle").values.mean()),
        "lengths_outside": float(geometry.outside.select(measure="key_norm").values.mean()),
        "lengths_share": float(geometry.shares_within.select(factor="key_norm").values.mean()),
    }


def recipe(normed: str, steps: int) -> TrainConfig:
    mixer = Softmax(scale=SHARPNESS * HEADS / WIDTH) if normed == COSINE else Softmax()
    layer = block(mixer, n_heads=HEADS, mlp=Mlp(2 * WIDTH), positions=Rope(), qk_norm=NORMS[normed])
    model = DecoderConfig(DATA.vocab_size, WIDTH, repeat(layer, 2), max_len=LONG)
    optim = OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(model, DATA, optim=optim, steps=steps, log_every=50, evaluate_every=steps, save_every=steps)


def less(measure: str, normed: str, than: str) -> Quantity:
    return value(measure, normed=normed) - value(measure, normed=than)


def plain(measure: str) -> Quantity:
    return value(measure, normed=NONE)


LEARNED = Condition(
    "Without norms the decoder has learned text: it loses two thirds of what guessing does at most", plain("loss"),
    below(2 / 3 * math.log(DATA.vocab_size)),
)  # fmt: skip
BREAKS = Condition("Without norms it predicts worse in 512 tokens", plain("loss_beyond") - plain("loss"), above(0.1))
NEW_ANGLES = Condition("Without norms one pair in a hundred has a new angle", plain("angles_outside"), above(0.01))

STUDY = Study(
    "key-norms-beyond-length",
    paper='Su 2023, "Transformer Upgrade Road 15: Key Normalization Helps Length Extrapolation", '
    "kexue.fm/archives/9859: at 8 times the trained length 23 % of tokens are right without, 22 % with normed queries, "
    "48 % with normed keys, 47 % with cosines",
    question="Do keys of one length help beyond the trained length, and is it because of angles?",
    run=run,
    grid={"normed": tuple(NORMS)},
    scales={"smoke": Scale(1, {"steps": 5, "rows": 2}), "small": Scale(3, {"steps": 800, "rows": 256})},
    measures={
        "loss": Measure("Loss in the last quarter of 64 tokens", "nats"),
        "loss_beyond": Measure("Loss in the last quarter of 512 tokens", "nats"),
        "angles": Measure("Width of the range of angles in 64 tokens, mean over heads", "degrees", score_geometry),
        "angles_outside": Measure("Share of the other pairs with angles outside of that", "", score_geometry),
        "lengths_outside": Measure("Share of them with keys of other lengths than in 64", "", score_geometry),
        "lengths_share": Measure("What lengths of keys make of the variance of a row of scores", "", score_geometry),
    },
    claims=(
        Claim(
            "plain-breaks", "Trained on 64 tokens, a decoder predicts worse in 512",
            plain("loss_beyond") - plain("loss"), above(0.1), (LEARNED,),
        ),
        Claim("keys-help", "With normed keys it predicts better there", less("loss_beyond", KEYS, NONE), below(0),
              (BREAKS,)),
        Claim("cosines-help", "With cosines, too", less("loss_beyond", COSINE, NONE), below(0), (BREAKS,)),
        Claim("queries-help-less", "With normed queries it is worse than with normed keys",
              less("loss_beyond", QUERIES, KEYS), above(0), (BREAKS,)),
        Claim("keys-within", "Within 64 tokens normed keys cost nothing", less("loss", KEYS, NONE), within(0.1, 0),
              (LEARNED,)),
        Claim("cosines-within", "Cosines cost nothing there, either", less("loss", COSINE, NONE), within(0.1, 0),
              (LEARNED,)),
        Claim("more-angles", "Normed keys are trained on more angles", less("angles", KEYS, NONE), above(0),
              (LEARNED,)),
        Claim("fewer-new-angles", "Fewer pairs have angles that training did not show",
              less("angles_outside", KEYS, NONE), below(0), (LEARNED, NEW_ANGLES)),
        Claim("lengths-rank", "Without norms lengths of keys rank keys", plain("lengths_share"), above(0), (LEARNED,)),
        Claim("new-lengths", "Some lengths are new beyond 64 tokens", plain("lengths_outside"), above(0), (LEARNED,)),
        Claim("one-length", "Of normed keys none is", value("lengths_outside", normed=KEYS), within(0, 0),
              exact="normed keys have one length, whatever was learned"),
    ),
    differs=(
        "Two layers of width 64 and 800 steps on docstrings, in place of 100 million parameters.",
        "Angles are those of all pairs of eight rows, between the least and the largest of each head.",
        "Asked first of a language of random words, which some seeds learned late and no model knew in 512 tokens: the "
        "loss was near chance with and without norms, and most claims were undecided.",
    ),
    mechanisms=("softmax",),
    references={"normed": (NONE,)},
)  # fmt: skip
