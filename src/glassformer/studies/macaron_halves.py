"""Macaron blocks against usual ones: the same number of weights, and half steps of an MLP around attention.

Two measures of one paper. What is trained, at equal parameters and steps: chains whose next symbol goes by the two
before it, so that attention has to bring one of them and MLPs to know what follows 144 pairs; the best loss is known.
What is computed: the error of one splitting of an ODE against another, with sub-steps that are solved, and with the
step of Euler's that a block is.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

import glassformer as gf
from glassformer.attention import Rope
from glassformer.data import Markov
from glassformer.models import BlockConfig, DecoderConfig, Mlp, block, macaron, repeat
from glassformer.models.accounting import count_parameters
from glassformer.study import (
    Case,
    Claim,
    Condition,
    Measure,
    Measures,
    Quantity,
    Scale,
    Study,
    below,
    value,
    within,
)
from glassformer.training import OptimConfig, TrainConfig

USUAL, MACARON, AROUND = "usual", "macaron", "attention halved"
WIDTH, DEPTH, BATCHES, N, STEPS = 64, 2, 16, 6, (64, 128)
DATA = Markov(batch_size=32, length=32, order=2, n_symbols=12)
Flow = Callable[[torch.Tensor, float], torch.Tensor]
SOLVERS: dict[str, Callable[[torch.Tensor], Flow]] = {
    "euler": lambda field: lambda x, h: x + h * (field @ x),
    "exact": lambda field: lambda x, h: torch.matrix_exp(h * field) @ x,
}


def run(case: Case) -> Measures:
    model: Any = gf.load(case.train(recipe(case["block"], case["steps"])))
    built = DATA.build()
    with torch.no_grad():
        loss = sum(float(model.loss(built.batch(i, "heldout"))) for i in range(BATCHES)) / BATCHES
    best, generator = DATA.optimal_loss(), case.generator()
    fields = [torch.randn(N, N, generator=generator, dtype=torch.float64) * 0.4 for _ in range(2)]
    start = torch.randn(N, 1, generator=generator, dtype=torch.float64)
    orders = {f"order_{name}": order(solver, fields, start, case["block"]) for name, solver in SOLVERS.items()}
    return {
        "share_unlearned": (loss - best) / (math.log(DATA.n_symbols) - best),
        "parameters": float(sum(count_parameters(model.config).values())),
    } | orders


def order(solver: Callable[[torch.Tensor], Flow], fields: Any, start: torch.Tensor, kind: str) -> float:
    """Return the order of a splitting: how many times the error halves when steps do."""
    (f, g), errors = map(solver, fields), list[torch.Tensor]()
    around, between = (f, g) if kind == AROUND else (g, f)
    exact = torch.matrix_exp(fields[0] + fields[1]) @ start
    for n in STEPS:
        x, h = start, 1 / n
        for _ in range(n):
            x = g(f(x, h), h) if kind == USUAL else around(between(around(x, h / 2), h), h / 2)
        errors.append((x - exact).norm())
    return float(torch.log2(errors[0] / errors[1]))


def layer(kind: str) -> BlockConfig:
    """Return a block of 12 WIDTH^2 weights: two MLPs of half the width, or two attentions and one such MLP."""
    slots: dict[str, Any] = {"n_heads": 4, "positions": Rope()}
    if kind == USUAL:
        return block(mlp=Mlp(4 * WIDTH, bias=False), **slots)
    return macaron(mlp=Mlp(2 * WIDTH, bias=False), halved="mlp" if kind == MACARON else "attention", **slots)


def recipe(kind: str, steps: int) -> TrainConfig:
    model = DecoderConfig(DATA.build().vocab_size, WIDTH, repeat(layer(kind), DEPTH), max_len=DATA.length)
    optim = OptimConfig(lr=3e-3, warmup=50)
    return TrainConfig(model, DATA, steps=steps, optim=optim, log_every=50, evaluate_every=steps, save_every=steps)


def unlearned(kind: str) -> Quantity:
    return value("share_unlearned", block=kind)


LEARNED = (Condition("The usual block learns the chain", unlearned(USUAL), below(0.25)),)

STUDY = Study(
    "macaron-halves",
    paper='Lu et al. 2019, "Understanding and Improving Transformer From a Multi-Particle Dynamic System Point of '
    'View", arXiv 1906.02762: half steps of an MLP around attention are a splitting of higher order, and do better',
    question="Do half steps around attention help, and of which order are they?",
    run=run,
    grid={"block": (USUAL, MACARON, AROUND)},
    scales={"smoke": Scale(2, {"steps": 4}), "small": Scale(5, {"steps": 250})},
    measures={
        "share_unlearned": Measure("Loss above the best there is, of what guessing symbols is above it"),
        "parameters": Measure("Parameters of the model"),
        "order_exact": Measure("Order of the splitting, its sub-steps solved"),
        "order_euler": Measure("Order of the splitting, each sub-step one of Euler's"),
    },
    claims=(
        Claim("usual-learns", "The usual block learns the chain", unlearned(USUAL), below(0.25)),
        Claim("better", "Macaron blocks learn more of it at equal weights", unlearned(MACARON) - unlearned(USUAL),
              below(0.0), LEARNED),
        Claim("around-better", "So do blocks with halves of attention around an MLP",
              unlearned(AROUND) - unlearned(USUAL), below(0.0), LEARNED),
        Claim("strang-second", "Strang's halves are of second order", value("order_exact", block=MACARON),
              within(0.1, 2)),
        Claim("strang-around-second", "Either way round", value("order_exact", block=AROUND), within(0.1, 2)),
        Claim("lie-first", "Lie's splitting is of first order", value("order_exact", block=USUAL), within(0.1, 1)),
        Claim("macaron-second", "The block as published, which takes Euler's step in each, is of second order, too",
              value("order_euler", block=MACARON), within(0.1, 2)),
        Claim("macaron-first", "It is of first order, as the usual block", value("order_euler", block=MACARON),
              within(0.1, 1)),
    ),
    differs=(
        "The paper translates and fine-tunes; this is a random chain over 12 symbols, for models of two blocks.",
        "Norms come before sub-layers; the other blocks have one norm more than the usual one, of 128 weights.",
        "Orders are of linear fields, whose flows are known: sub-layers do not enter them.",
    ),
    mechanisms=("softmax",),
    references={"block": (USUAL,)},
)  # fmt: skip
