"""A fact far from the token that asks for it, read by encoders that see as many keys: near, global or random ones.

Two layers of a window of 113 keys reach 112 positions, and the fact stands some 230 away. By way of tokens that all
meet, or of random blocks, any two positions are a few steps apart.
"""

import torch
from torch import Tensor

from glassformer.attention import BigBird, Longformer, MixerConfig, Softmax
from glassformer.data import Batch, Needle
from glassformer.models import EncoderConfig, Learned, Mlp, Model, block, repeat
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
)

LENGTH, WIDTH, BATCHES = 256, 64, 8
WINDOW, GLOBAL, RANDOM, BOTH, FULL = "window", "window, global", "window, random", "window, both", "everything"
# keys that each query meets: 113, 113, 112, 112, and all
MIXERS: dict[str, MixerConfig] = {
    WINDOW: Longformer(57),
    GLOBAL: Longformer(49, n_global=16),
    RANDOM: BigBird(16, n_random=4, form="etc"),
    BOTH: BigBird(16, n_random=2),
    FULL: Softmax(),
}


def run(case: Case) -> Measures:
    return asked(MIXERS[case["keys"]], Needle(length=LENGTH, depth=0.1), case)


def asked(mixer: MixerConfig, data: Needle, case: Case, width: int = WIDTH, lr: float = 3e-3) -> dict[str, float]:
    """Return how an encoder of a mechanism answers, having learned to."""
    layer = block(mixer, n_heads=4, mlp=Mlp(2 * width))
    config = EncoderConfig(len(data.symbols()), width, repeat(layer, 2), max_len=data.length, positions=Learned())
    rows, model, steps = data.build(), config.build(case.seed), case["steps"]
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        optimiser.zero_grad()
        loss_of(model, rows.batch(step)).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        case.report(step + 1, steps)
    heldout = [rows.batch(i, "heldout") for i in range(BATCHES)]
    with torch.no_grad():
        right = [(model(batch.tokens)[:, -1].argmax(-1) == batch.targets[:, -1]).double() for batch in heldout]
        losses = [loss_of(model, batch) for batch in heldout]
    return {"accuracy": float(torch.cat(right).mean()), "loss": float(torch.cat(losses).mean())}


def loss_of(model: Model, batch: Batch) -> Tensor:
    """Return the loss of each row on what its last token asks for, which no row holds behind it."""
    return torch.nn.functional.cross_entropy(model(batch.tokens)[:, -1], batch.targets[:, -1], reduction="none")


def accuracy(keys: str, than: str | None = None) -> Quantity:
    found = value("accuracy", keys=keys)
    return found if than is None else found - value("accuracy", keys=than)


FINDS = Condition("Full attention finds the fact", accuracy(FULL), above(0.95))

STUDY = Study(
    "long-needle",
    paper='Beltagy et al. 2020, "Longformer", section 3; Zaheer et al. 2020, "Big Bird", section 2 and table 1: '
    "windows alone lose to those with global tokens or random blocks",
    question="Do global tokens and random blocks carry what a window cannot reach?",
    run=run,
    grid={"keys": tuple(MIXERS)},
    scales={"smoke": Scale(1, {"steps": 2}), "small": Scale(8, {"steps": 1000})},
    measures={
        "accuracy": Measure("Share of facts that are found; guessing among values finds 0.06", learned=True),
        "loss": Measure("Loss on the fact; guessing among values has 2.77", "nats", learned=True),
    },
    claims=(
        Claim("full-finds", "Full attention finds the fact", counted(accuracy(FULL), above(0.95)), MAJORITY),
        Claim("window-guesses", "A window does not: it guesses", counted(accuracy(WINDOW), below(0.15)), MAJORITY,
              (FINDS,)),
        Claim("global-finds", "With global tokens it is found", counted(accuracy(GLOBAL), above(0.9)), MAJORITY,
              (FINDS,)),
        Claim("random-finds-more", "With random blocks it is found more often than by a window",
              counted(accuracy(RANDOM, WINDOW), above(0.2)), MAJORITY, (FINDS,)),
        Claim("both-find", "With both it is found", counted(accuracy(BOTH), above(0.9)), MAJORITY, (FINDS,)),
    ),
    differs=(
        "Encoders of two layers and width 64 that learn this task alone, on 256 tokens; the papers' read text.",
        "Random blocks are drawn by our rule over the whole text, not by the authors' table.",
    ),
    mechanisms=("softmax", "longformer", "big_bird"),
    kinds=kinds_of(MIXERS),
    references={"keys": (FULL,)},
)  # fmt: skip
