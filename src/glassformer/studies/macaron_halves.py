"""Macaron blocks against usual ones: the same number of weights, and half steps of an MLP around attention.

Two measures of one paper. What is trained: text, at equal parameters and steps. What is computed: the error of one
splitting of an ODE against another, with sub-steps that are solved, and with the step of Euler's that a block is.
"""

from collections.abc import Callable
from typing import Any

import torch

from glassformer.attention import Rope
from glassformer.data import TextConfig
from glassformer.models import BlockConfig, DecoderConfig, Mlp, block, macaron, repeat
from glassformer.study import Case, Claim, Condition, Measure, Measures, Scale, Study, below, value, within
from glassformer.training import OptimConfig, TrainConfig, read_metrics

USUAL, MACARON = "usual", "macaron"
WIDTH, LENGTH, DEPTH, N, STEPS = 64, 128, 3, 6, (64, 128)
Flow = Callable[[torch.Tensor, float], torch.Tensor]
SOLVERS: dict[str, Callable[[torch.Tensor], Flow]] = {
    "euler": lambda field: lambda x, h: x + h * (field @ x),
    "exact": lambda field: lambda x, h: torch.matrix_exp(h * field) @ x,
}


def run(case: Case) -> Measures:
    folder = case.train(recipe(case["block"], case["steps"]))
    losses = [line["heldout_loss"] for line in read_metrics(folder) if "heldout_loss" in line]
    generator = case.generator()
    fields = [torch.randn(N, N, generator=generator, dtype=torch.float64) * 0.4 for _ in range(2)]
    start = torch.randn(N, 1, generator=generator, dtype=torch.float64)
    halved = case["block"] == MACARON
    orders = {f"order_{name}": order(solver, fields, start, halved) for name, solver in SOLVERS.items()}
    return {"loss": float(losses[-1]), "learned": float(losses[0] - losses[-1])} | orders


def order(solver: Callable[[torch.Tensor], Flow], fields: Any, start: torch.Tensor, halved: bool) -> float:
    """Return the order of a splitting: how many times the error halves when steps do."""
    (f, g), errors = map(solver, fields), list[torch.Tensor]()
    exact = torch.matrix_exp(fields[0] + fields[1]) @ start
    for n in STEPS:
        x, h = start, 1 / n
        for _ in range(n):
            x = g(f(g(x, h / 2), h), h / 2) if halved else g(f(x, h), h)
        errors.append((x - exact).norm())
    return float(torch.log2(errors[0] / errors[1]))


def layer(kind: str) -> BlockConfig:
    if kind == MACARON:
        return macaron(n_heads=4, positions=Rope(), mlp=Mlp(2 * WIDTH, bias=False))
    return block(n_heads=4, positions=Rope(), mlp=Mlp(4 * WIDTH, bias=False))


def recipe(kind: str, steps: int) -> TrainConfig:
    data = TextConfig(batch_size=16, length=LENGTH, vocab_size=512)
    model = DecoderConfig(data.vocab_size, WIDTH, repeat(layer(kind), DEPTH), max_len=LENGTH)
    optim = OptimConfig(lr=3e-3, warmup=50)
    # evaluated before training, and behind it
    return TrainConfig(model, data, steps=steps, optim=optim, log_every=50, evaluate_every=steps, save_every=steps)


LEARNED = (Condition("The usual block learns the text", value("learned", block=USUAL), within(1.0, 6.0)),)

STUDY = Study(
    "macaron-halves",
    paper='Lu et al. 2019, "Understanding and Improving Transformer From a Multi-Particle Dynamic System Point of '
    'View", arXiv 1906.02762: half steps of an MLP around attention are a splitting of higher order, and do better',
    question="Do half steps around attention help, and of which order are they?",
    run=run,
    grid={"block": (USUAL, MACARON)},
    scales={"smoke": Scale(2, {"steps": 4}), "small": Scale(8, {"steps": 800})},
    measures={
        "loss": Measure("Loss on held-out text", "nats"),
        "learned": Measure("How far it fell from before training", "nats"),
        "order_exact": Measure("Order of the splitting, its sub-steps solved"),
        "order_euler": Measure("Order of the splitting, each sub-step one of Euler's"),
    },
    claims=(
        Claim("usual-learns", "The usual block learns the text", value("learned", block=USUAL), within(1.0, 6.0)),
        Claim("better", "Macaron blocks have the lower loss at equal weights",
              value("loss", block=MACARON) - value("loss", block=USUAL), below(0.0), LEARNED),
        Claim("strang-second", "Strang's halves are of second order", value("order_exact", block=MACARON),
              within(1.9, 2.1)),
        Claim("lie-first", "Lie's splitting is of first order", value("order_exact", block=USUAL), within(0.9, 1.1)),
        Claim("macaron-second", "So is the block as published, which takes Euler's step in each",
              value("order_euler", block=MACARON), within(1.9, 2.1)),
    ),
    differs=(
        "The paper translates and fine-tunes; this is text of the standard library, in 512 tokens, for minutes.",
        "Norms come before sub-layers; a Macaron block has one norm more, of 128 weights.",
    ),
    mechanisms=("softmax",),
    references={"block": (USUAL,)},
)  # fmt: skip
