"""Schedules of the learning rate at equal peak, warm-up and steps, on a task whose best loss is known row by row.

Symbols of each row are drawn with probabilities of its own, and counting them is all there is to do: what a model
loses beyond the loss of counting, on the same rows, is what training left undone. A cosine has to know when training
ends, and one that was meant for twice as long is stopped halfway; the inverse square root knows no end.
"""

import math

from glassformer.data import DirichletMarkov
from glassformer.models import DecoderConfig, Mlp, block
from glassformer.study import Case, Claim, Condition, Measure, Measures, Scale, Study, above, below, value
from glassformer.training import OptimConfig, TrainConfig, read_metrics

NOAM, COSINE, CUT, CONSTANT = "noam", "cosine", "cosine, cut short", "constant"
WIDTH, PEAK, WARMUP, BATCHES = 32, 1e-2, 40, 32
DATA = DirichletMarkov(batch_size=16, length=32, order=0)


def run(case: Case) -> Measures:
    steps = case["steps"]
    folder = case.train(recipe(case["schedule"], steps))
    losses = {line["step"]: line["heldout_loss"] for line in read_metrics(folder) if "heldout_loss" in line}
    return {"excess": losses[steps] - best_loss(), "excess_before": losses[0] - best_loss()}


def recipe(schedule: str, steps: int) -> TrainConfig:
    """Return one layer on counting, with its loss measured after so many steps; a cosine cut short goes on."""
    kind = "noam" if schedule == NOAM else "constant" if schedule == CONSTANT else "cosine"
    # the rate of noam at the end of its warm-up is its factor over this root
    lr = PEAK * math.sqrt(WIDTH * WARMUP) if kind == "noam" else PEAK
    optim = OptimConfig(lr=lr, schedule=kind, warmup=WARMUP, floor=0.0)
    layer = block(n_heads=2, mlp=Mlp(2 * WIDTH))
    model = DecoderConfig(DATA.n_symbols + 1, WIDTH, (layer,), max_len=DATA.length)
    return TrainConfig(
        model, DATA, optim=optim, steps=2 * steps if schedule == CUT else steps, log_every=50, evaluate_every=steps,
        evaluate_batches=BATCHES, save_every=steps,
    )  # fmt: skip


def best_loss() -> float:
    """Return the loss of counting on the rows that held-out losses are measured on, in nats."""
    data = DATA.build()
    total = 0.0
    for batch in (data.batch(i, "heldout") for i in range(BATCHES)):
        right = DATA.predictive(batch.tokens).gather(-1, batch.targets[..., None])
        total -= float(right.log().mean())
    return total / BATCHES


LEARNED = {
    kind: Condition(
        f"With {kind} training halves what is left to learn",
        value("excess", schedule=kind) / value("excess_before", schedule=kind),
        below(0.5),
    )
    for kind in (NOAM, COSINE)
}

STUDY = Study(
    "noam-and-cosine",
    paper='Vaswani et al. 2017, "Attention Is All You Need", section 5.3; Loshchilov and Hutter 2017, "SGDR", arXiv '
    '1608.03983; Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models", appendix B',
    question="Does a cosine end nearer to the best loss than an inverse square root, and what does it cost to stop it?",
    run=run,
    grid={"schedule": (NOAM, COSINE, CUT, CONSTANT)},
    scales={
        "smoke": Scale(seeds=1, settings={"steps": 10}),
        "small": Scale(seeds=5, settings={"steps": 400}),
        "full": Scale(seeds=5, settings={"steps": 8000}),
    },
    measures={
        "excess": Measure("Held-out loss beyond that of counting on the same rows", "nats"),
        "excess_before": Measure("The same before training", "nats"),
    },
    claims=(
        Claim(
            "cosine-noam",
            "A cosine ends nearer to the best loss than warm-up and inverse square root",
            value("excess", schedule=COSINE) / value("excess", schedule=NOAM),
            below(1),
            (LEARNED[NOAM],),
        ),
        Claim(
            "constant-noam",
            "Without decay training ends farther from it than with the inverse square root",
            value("excess", schedule=CONSTANT) / value("excess", schedule=NOAM),
            above(1),
            (LEARNED[NOAM],),
        ),
        Claim(
            "cut-cosine",
            "A cosine meant for twice as long is worse when it is stopped halfway",
            value("excess", schedule=CUT) / value("excess", schedule=COSINE),
            above(1),
            (LEARNED[COSINE],),
        ),
        Claim(
            "cut-noam",
            "A cosine stopped halfway is worse than the inverse square root, which knows no end",
            value("excess", schedule=CUT) / value("excess", schedule=NOAM),
            above(1),
            (LEARNED[NOAM],),
        ),
    ),
    differs=(
        "One layer of width 32 that learns to count, in place of translation and language models; 400 steps, of which "
        "40 are warm-up. The peak is the same for all, chosen for none.",
        "Seeds draw weights; the rows are the same for all, in training and where losses are measured.",
        "No claim is made of warm-up itself, which this pre-norm model may not need.",
    ),
    mechanisms=("softmax",),
    references={"schedule": (NOAM, COSINE)},
)
