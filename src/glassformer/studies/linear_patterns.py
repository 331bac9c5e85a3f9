"""Patterns of linear attention after training on text: how far they spread, of what rank they are, what decay is for.

A pattern of features has no more independent rows than there are features, whatever divides each row: as much of it as
no mask touches, queries of a text's second half and keys of its first, shows that. An exponential has no such bound.
Products of non-negative features cannot make a row sharp; a decay per head gives what they lack, at least the nearest.
"""

import math

import torch
from torch import Tensor

import glassformer as gf
from glassformer.attention import Lightning, Linear, MixerConfig, Softmax
from glassformer.models import DecoderConfig, Mlp, published_block
from glassformer.numerics.decompositions import singular_values
from glassformer.studies.entropy_by_length import DATA, entropy, held_out
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
    kinds_of,
    value,
)
from glassformer.training import OptimConfig, TrainConfig

SOFTMAX, LINEAR, DECAY, NONE = "softmax", "linear", "lightning", "lightning without decay"
LENGTH, WIDTH, HEADS, LAYERS, ROWS = 64, 64, 4, 2, 16
D_HEAD = WIDTH // HEADS
MIXERS: dict[str, MixerConfig] = {
    SOFTMAX: Softmax(),
    LINEAR: Linear(),
    DECAY: Lightning(),
    NONE: Lightning(slopes=(0.0,) * HEADS),
}
# singular values above this share of the largest count, in float64
TOLERANCE = 1e-9


def run(case: Case) -> Measures:
    attention = case["attention"]
    trained = gf.load(case.train(recipe(attention, case["steps"])))
    rows = held_out(trained.tokenizer, case["rows"])[:, : LENGTH + 1]
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(trained(rows[:, :-1]).mT, rows[:, 1:])
    read = gf.run(trained.double(), rows[:ROWS, :-1], read="pattern").layers("pattern").values
    half = LENGTH // 2
    found = {"loss": float(loss), "rank": rank(read[..., half:, :half])}
    if attention in (SOFTMAX, LINEAR):
        # of rows that sum to one, and see as many tokens
        found["entropy"] = float(entropy(read[..., half:, :]).mean())
        found["even"] = float(torch.arange(half + 1, LENGTH + 1).double().log().mean())
    return found


def rank(patterns: Tensor) -> float:
    """Return how many singular values are not rounding, mean over heads, layers and rows."""
    values = singular_values(patterns)
    return float((values > TOLERANCE * values[..., :1]).double().sum(-1).mean())


def recipe(attention: str, steps: int) -> TrainConfig:
    layers = tuple(published_block(MIXERS[attention], i, n_heads=HEADS, mlp=Mlp(2 * WIDTH)) for i in range(LAYERS))
    model = DecoderConfig(DATA.vocab_size, WIDTH, layers, max_len=LENGTH)
    optim = OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(model, DATA, optim=optim, steps=steps, log_every=50, evaluate_every=steps, save_every=steps)


def of(attention: str, measure: str) -> Quantity:
    return value(measure, attention=attention)


LEARNED = Condition(
    "Softmax has learned text: it loses two thirds of what guessing does at most", of(SOFTMAX, "loss"),
    below(2 / 3 * math.log(DATA.vocab_size)),
)  # fmt: skip

STUDY = Study(
    "linear-patterns",
    paper='Katharopoulos et al. 2020, arXiv 2006.16236; Qin et al. 2022, "The Devil in Linear Transformer", arXiv '
    '2210.10340 (patterns spread); Qin et al. 2023, arXiv 2307.14995 (decay); Meng et al. 2025, "PolaFormer", arXiv '
    "2501.15061, section 3 (entropy)",
    question="Do linear patterns spread more than those of softmax, is their rank bounded, and what is decay for?",
    run=run,
    grid={"attention": tuple(MIXERS)},
    scales={"smoke": Scale(1, {"steps": 5, "rows": 16}), "small": Scale(3, {"steps": 800, "rows": 256})},
    measures={
        "loss": Measure("Loss on held-out text; guessing has 6.24", "nats"),
        "entropy": Measure("Entropy of rows of the second half, mean over heads", "nats"),
        "even": Measure("Entropy of even rows that see as many tokens", "nats"),
        "rank": Measure("Rank of 32 queries by the 32 keys before them, mean over heads"),
    },
    claims=(
        Claim("softmax-learned", "Softmax learns text", of(SOFTMAX, "loss"), below(2 / 3 * math.log(DATA.vocab_size))),
        Claim("linear-spreads", "Rows of linear attention have a higher entropy than those of softmax",
              of(LINEAR, "entropy") - of(SOFTMAX, "entropy"), above(0), (LEARNED,)),
        Claim("linear-even", "They are within a tenth of a nat of even rows",
              of(LINEAR, "even") - of(LINEAR, "entropy"), below(0.1), (LEARNED,)),
        Claim("linear-rank", f"Linear patterns have no higher rank than heads have channels, {D_HEAD}",
              of(LINEAR, "rank"), below(D_HEAD + 0.5), exact="no training changes the bound"),
        Claim("lightning-rank", "Nor have those of lightning attention, whose decay splits into a factor of each side",
              of(DECAY, "rank"), below(D_HEAD + 0.5), exact="no training changes the bound"),
        Claim("softmax-rank", "Patterns of softmax exceed it", of(SOFTMAX, "rank"), above(D_HEAD), (LEARNED,)),
        Claim("linear-worse", "Linear attention predicts text worse than softmax",
              of(LINEAR, "loss") - of(SOFTMAX, "loss"), above(0), (LEARNED,)),
        Claim("decay-helps", "With its decay lightning attention predicts text better than without",
              of(NONE, "loss") - of(DECAY, "loss"), above(0), (LEARNED,)),
    ),
    differs=(
        "Decoders of two layers and width 64 on docstrings, 64 tokens, without other positions than decay; the papers "
        "train large language models, or read images. Seeds draw weights and batches.",
        "Entropy is asked of patterns whose rows sum to one, and so not of lightning's, which are signed.",
    ),
    mechanisms=("softmax", "linear", "lightning"),
    kinds=kinds_of(MIXERS),
    references={"attention": (SOFTMAX,)},
)  # fmt: skip
