"""Dual chunks beyond the trained length: a decoder that was trained on 256 tokens reads 2,048 without more training.

Beside the rotary positions it was trained with: frequencies slowed down (interpolation, YaRN), and the plainest remedy,
to read the last 256 tokens and nothing before them, which says what the tokens further back are worth.
"""

import math

import torch
from torch import Tensor

from glassformer.attention import DualChunk, LinearScaling, PositionsConfig, Rope, Softmax, YarnScaling
from glassformer.models import Model
from glassformer.studies.window_and_first_tokens import DATA, LONG, SHIPPED, TRAINED, decoder, each, mixing
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

PLAIN, DUAL, SLOWED, YARN, CUT = "as trained", "dual chunks", "interpolation", "YaRN", "the last 256 tokens"
LAST = 32


def positions(kind: str, n: int) -> PositionsConfig:
    factor = n / TRAINED
    made = {DUAL: DualChunk(TRAINED * 5 // 8, TRAINED), SLOWED: Rope(scaling=LinearScaling(factor))}
    made[YARN] = Rope(scaling=YarnScaling(factor, TRAINED))
    return made.get(kind, Rope())


def run(case: Case) -> Measures:
    n = case["n"]
    model, rows = decoder(case, LONG + 1)
    changed = mixing(model, Softmax(), positions=positions(case["positions"], n))
    return {"loss": float(last(changed, rows[:, -n - 1 :], case).mean())}


def last(model: Model, rows: Tensor, case: Case) -> Tensor:
    """Return losses on the last tokens of rows, which are the same at every length."""
    seen = rows[:, -TRAINED - 1 :] if case["positions"] == CUT else rows
    return torch.cat([each(model, some[:, :-1], some[:, 1:])[:, -LAST:] for some in seen.split(2)])


def loss(kind: str, n: int, than: str | None = None, at: int | None = None) -> Quantity:
    found = value("loss", positions=kind, n=n)
    return found if than is None else found - value("loss", positions=than, n=at or n)


def plain(n: int) -> Quantity:
    return value("loss", model=SHIPPED, positions=PLAIN, n=n)


READS = Condition(
    "The decoder has learned text: it loses two thirds of what guessing does at most", plain(256),
    below(2 / 3 * math.log(DATA.vocab_size)),
)  # fmt: skip
BREAKS = Condition("As trained, 2,048 tokens are worse for it than 256", plain(2048) - plain(256), above(0.1))
BREAKS_AT_512 = Condition("As trained, 512 tokens are worse for it than 256", plain(512) - plain(256), above(0.1))

STUDY = Study(
    "dual-chunk-beyond-length",
    paper='An et al. 2024, "Training-Free Long-Context Scaling of Large Language Models", arXiv 2402.17463: a model '
    "trained on 8k tokens has a perplexity of 9.0 in 4k and of 8.6 in 32k (the authors' page)",
    question="Do dual chunks let a decoder read eight times its trained length, and use what stands there?",
    run=run,
    grid={"model": (SHIPPED,), "positions": (PLAIN, DUAL, SLOWED, YARN, CUT), "n": (256, 512, 1024, 2048)},
    scales={
        "smoke": Scale(1, {"rows": 1}, {"n": (256, 512, 2048)}),
        "small": Scale(5, {"rows": 8}),
    },
    measures={"loss": Measure("Loss on the last 32 of n tokens, which are the same ones for every n", "nats")},
    claims=(
        Claim("trained-breaks", "As trained, 2,048 tokens are worse than 256", loss(PLAIN, 2048, PLAIN, 256),
              above(0.1), (READS,)),
        Claim("dual-2048", "In dual chunks they are no worse", loss(DUAL, 2048, PLAIN, 256), below(0.05), (BREAKS,)),
        Claim("dual-512", "Nor are 512", loss(DUAL, 512, PLAIN, 256), below(0.05), (BREAKS_AT_512,)),
        Claim("dual-within", "Within 256 tokens dual chunks cost nothing", loss(DUAL, 256, PLAIN), within(0.02, 0),
              (READS,)),
        Claim("dual-trained", "In 2,048 they are better than as trained", loss(DUAL, 2048, PLAIN), below(0), (BREAKS,)),
        Claim("dual-interpolation", "Better than interpolation", loss(DUAL, 2048, SLOWED), below(0), (BREAKS,)),
        Claim("dual-yarn", "Better than YaRN", loss(DUAL, 2048, YARN), below(0), (BREAKS,)),
        Claim("dual-uses", "They use what stands further back", loss(DUAL, 2048, CUT), below(0), (BREAKS,)),
    ),
    differs=(
        "A decoder of 3 million parameters; the paper's have 7 to 70 billion. Chunks are 5/8 of the trained length, as "
        "in the authors' code.",
        "Interpolation and YaRN without the training that follows them in their papers. Seeds choose rows of text.",
    ),
    mechanisms=("softmax",),
    references={"model": (SHIPPED,), "positions": (PLAIN,), "n": (256, 512, 2048)},
    skip=lambda at: at["positions"] != PLAIN and at["positions"] != DUAL and at["n"] == 256,
)  # fmt: skip
