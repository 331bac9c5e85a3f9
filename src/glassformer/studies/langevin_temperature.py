"""The temperature of training: weights of a trained layer, by steps of Langevin's and by batches, near their minimum.

The layer is an MLP of ours that has learned from another one by answers with noise. At its minimum the Hessian and the
covariance of gradients are known, and with them, by theory, what `k <x^2>` comes to along each direction: one
temperature for Langevin's steps; eta c / 2B of its own for stochastic gradients, which for noise that is alike on all
answers is proportional to k, since c is. Steps of Newton's make that one temperature, but not where answers have
unlike noise and c is no more proportional to k.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.dynamics import (
    Chains,
    QuadraticLoss,
    WeightSpace,
    batch_gradients,
    gradient_noise,
    local_minimum,
    loss_gradients,
    position_temperatures,
    run_chains,
)
from glassformer.errors import AnalysisUnavailable
from glassformer.fitting import Descent
from glassformer.models import Mlp
from glassformer.models.stack import make_context
from glassformer.numerics.decompositions import qr
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
    growth,
    value,
    within,
)

LANGEVIN, SGD, NEWTON, UNEVEN = "Langevin", "SGD", "Newton", "Newton, unlike noise"
RATE, BATCH = 0.2, 32
RATES, BATCHES = (0.1, RATE, 0.4), (8, BATCH, 128)
WIDTH, NEURONS, SIZE, NOISE = 4, 2, 1.5, 0.1
LEAST, MOST = 0.25, 1.75  # of the noise of single answers, where it is unlike
TEMPERATURE = 1e-4


class Trained(NamedTuple):
    """A layer that has learned.

    Args:
        error: Mean squared error on new inputs, of the variance of right answers.
        losses: From weights and numbers of examples to their mean loss.
        minimum: The loss of all near where it is least.
    """

    error: float
    losses: Callable[[Tensor, Tensor], Tensor]
    minimum: QuadraticLoss


def run(case: Case) -> Measures:
    kind, rate, batch, examples = case["steps"], case["rate"], case["batch"], case["examples"]
    layer = trained(examples, case["training"], kind == UNEVEN, case.generator())
    minimum, every = layer.minimum, torch.arange(examples)
    mobility = minimum.gibbs(1.0) if kind in (NEWTON, UNEVEN) else None
    if kind == LANGEVIN:
        temperature, noise, gradients = TEMPERATURE, None, loss_gradients(lambda w: layer.losses(w, every))
    else:
        temperature, noise = 0.0, gradient_noise(layer.losses, examples, minimum.minimum) / batch
        gradients = batch_gradients(layer.losses, examples, batch)
    chains = run_chains(
        gradients, minimum.minimum.expand(case["chains"], -1), step=rate, temperature=temperature, mobility=mobility,
        skip=case["length"] // 3, steps=case["length"], every=5, seed=case.seed,
    )  # fmt: skip
    found = position_temperatures(chains, minimum)
    theory = minimum.temperatures(minimum.covariance(rate, temperature=temperature, noise=noise, mobility=mobility))
    # to steps of Newton's all curvatures are 1
    k = minimum.curvatures
    limit = found.mean * (1 - rate / 2 * (k if mobility is None else 1))
    away = k.log() - k.log().mean()
    return {
        "error": layer.error,
        "over_theory": float((found.mean / theory).mean()),
        "agreeing": float(((found.mean - theory).abs() < 3 * found.error).double().mean()),
        "temperature": float(limit.mean()),
        "exponent": float(away @ limit.log() / (away @ away)),
        "spread": float(limit.log().std()),
        "balance": lambda: balance(chains, minimum, rate, temperature, mobility is None),
    }


def trained(examples: int, steps: int, unlike: bool, random: torch.Generator) -> Trained:
    """Return a layer trained on noisy answers of another one, at the minimum that it came to."""
    layer = Mlp(NEURONS, activation="tanh").build(WIDTH, 1, 0, "mlp").double().eval().requires_grad_(False)
    space = WeightSpace(layer)

    def outputs(w: Tensor, x: Tensor) -> Tensor:
        return space(w, x[None], make_context(1, len(x), x.device, is_causal=False))[0][0]

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    # weight vectors at right angles leave no direction nearly without curvature
    read, written = (SIZE * qr(drawn(WIDTH, NEURONS))[0] for _ in range(2))
    none = torch.zeros(NEURONS + WIDTH, dtype=torch.float64)
    teacher = torch.cat((read.mT.flatten(), none[:NEURONS], written.flatten(), none[NEURONS:]))
    sizes = torch.full((WIDTH,), NOISE, dtype=torch.float64)
    if unlike:
        sizes *= torch.tensor([LEAST, LEAST, MOST, MOST])
    x = drawn(examples, WIDTH)
    y = outputs(teacher, x) + sizes * drawn(examples, WIDTH)

    def losses(w: Tensor, chosen: Tensor) -> Tensor:
        return (outputs(w, x[chosen]) - y[chosen]).square().sum(-1).mean() / 2

    weights, every = (drawn(len(teacher)) / 2).requires_grad_(), torch.arange(examples)
    descent = Descent(
        [weights], torch.optim.Adam([weights]), lambda step: [losses(weights, every)],
        rate=lambda step: 0.03 * (1 - step / (steps + 1)), steps=steps, name="training of the layer",
        way_on=lambda: "Draw another teacher.",
    )  # fmt: skip
    for _ in descent:
        pass
    minimum = local_minimum(lambda w: losses(w, every), weights.detach())
    new = drawn(2000, WIDTH)
    asked = outputs(teacher, new)
    wrong = (outputs(minimum.minimum, new) - asked).square().mean()
    return Trained(float(wrong / asked.var(0).mean()), losses, minimum)


def balance(chains: Chains, minimum: QuadraticLoss, rate: float, temperature: float, plain: bool) -> float:
    """Return `<(x - m) g>` over what it has to be by the balance of a stationary state, all parameters together."""
    if not plain:
        raise AnalysisUnavailable("the balance is of steps along the gradient.")
    moved = ((chains.positions - minimum.minimum) * chains.gradients).sum(-1).mean()
    due = temperature * len(minimum.minimum) + rate / 2 * chains.gradients.square().sum(-1).mean()
    return float(moved / due)


def at(measure: str, steps: str, rate: float = RATE, batch: int = BATCH) -> Quantity:
    return value(measure, steps=steps, rate=rate, batch=batch)


LEARNED = Condition("The task was learned", at("error", LANGEVIN), below(0.01))

STUDY = Study(
    "langevin-temperature",
    paper='Mandt, Hoffman and Blei 2017, "Stochastic Gradient Descent as Approximate Bayesian Inference", arXiv '
    '1704.04289; Yaida 2018, "Fluctuation-dissipation relations for stochastic gradient descent", arXiv 1810.00004',
    question="Do steps of training have the temperature that their noise gives them?",
    run=run,
    grid={"steps": (LANGEVIN, SGD, NEWTON, UNEVEN), "rate": RATES, "batch": BATCHES},
    scales={
        "smoke": Scale(1, {"examples": 64, "training": 300, "chains": 3, "length": 30}, {"rate": (RATE,)}),
        "small": Scale(5, {"examples": 512, "training": 600, "chains": 24, "length": 3000}),
    },
    measures={
        "error": Measure("Mean squared error on new inputs, of the variance of right answers"),
        "over_theory": Measure("k <x^2> over what theory has, mean over directions"),
        "agreeing": Measure("Share of directions in which theory is within three standard errors of k <x^2>"),
        "temperature": Measure("k <x^2> without what a finite step adds, mean over directions"),
        "exponent": Measure("Power of the curvature with which it grows along directions"),
        "spread": Measure("Standard deviation of its logarithm over directions"),
        "balance": Measure("<(x - m) g> over n T + eta <g^2> / 2, which are one in a stationary state"),
    },
    claims=(
        *(Claim(f"langevin-{name}", f"Langevin's steps of {rate:g} have the temperature they are run at",
                at("over_theory", LANGEVIN, rate), within(0.05, 1), (LEARNED,))
          for name, rate in zip(("short", "middle", "long"), RATES)),
        Claim("langevin-equipartition", "All directions have it, to three standard errors",
              at("agreeing", LANGEVIN), above(0.9), (LEARNED,)),
        Claim("langevin-no-power", "It does not grow with the curvature", at("exponent", LANGEVIN), within(0.05, 0),
              (LEARNED,)),
        Claim("langevin-balance", "Positions and gradients have it too, without the Hessian",
              at("balance", LANGEVIN), within(0.05, 1), (LEARNED,)),
        Claim("sgd-theory", "Stochastic gradients have the temperatures of their own noise, eta c / 2B",
              at("over_theory", SGD), within(0.1, 1), (LEARNED,)),
        Claim("sgd-rate", "These grow with the step", growth("temperature", "rate", steps=SGD, batch=BATCH),
              within(0.1, 1), (LEARNED,)),
        Claim("sgd-batch", "and fall with the batch", growth("temperature", "batch", steps=SGD, rate=RATE),
              within(0.1, -1), (LEARNED,)),
        Claim("sgd-no-equipartition", "Where noise is proportional to the Hessian, temperature is to the curvature",
              at("exponent", SGD), within(0.15, 1), (LEARNED,)),
        Claim("sgd-balance", "Positions and gradients balance", at("balance", SGD), within(0.05, 1), (LEARNED,)),
        Claim("newton-equipartition", "There steps of Newton's have one temperature", at("spread", NEWTON), below(0.2),
              (LEARNED,)),
        Claim("newton-no-power", "which does not grow with the curvature", at("exponent", NEWTON), within(0.05, 0),
              (LEARNED,)),
        Claim("unlike-noise", "but not where noise is not proportional to it", at("spread", UNEVEN), above(0.4),
              (LEARNED,)),
        Claim("unlike-theory", "and then each direction has that of its own noise", at("over_theory", UNEVEN),
              within(0.1, 1), (LEARNED,)),
    ),
    differs=(
        "A layer of 22 weights, and noise so small that its loss is quadratic where weights go. Larger temperatures, "
        "and models whose minima have flat directions are not looked at.",
        "Finite steps are in all that theory says here; the papers take short ones.",
        "Ranges and lengths were set on one seed, with half as many chains and a third of the steps.",
    ),
    references={"steps": (LANGEVIN,), "rate": (RATE,), "batch": (BATCH,)},
    skip=lambda at: (at["rate"] != RATE and (at["batch"] != BATCH or at["steps"] in (NEWTON, UNEVEN)))
    or (at["batch"] != BATCH and at["steps"] != SGD),
)  # fmt: skip
