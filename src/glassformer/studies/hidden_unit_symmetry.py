"""Whether data break the symmetry of hidden units: a layer of two, sampled at a temperature, by how much data there is.

The layer is an MLP of ours whose two neurons are added; it learns from one of the same form. Its weights follow
Langevin's steps at a temperature high above the loss of an example, and begin alike. Theory of many inputs says where
overlaps with the teacher come to: units stay alike for few data, and beyond a threshold each has its own unit of the
teacher. Without a non-linearity units never differ, whatever is seen.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.dynamics import (
    WeightSpace,
    committee_overlaps,
    committee_state,
    loss_gradients,
    run_chains,
    specialisation,
)
from glassformer.models import Mlp
from glassformer.models.stack import make_context
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

UNITS, STEP = 2, 0.5  # steps are in units of the largest curvature, about
CURVED, STRAIGHT = "gelu", "none"
FEW, LESS, MORE, MANY = 4.0, 8.0, 28.0, 56.0
AMOUNTS = (FEW, LESS, 16.0, MORE, MANY)


class Committee(NamedTuple):
    """A layer whose neurons are added, as a function of its weights.

    Args:
        space: The weights of its neurons; what adds them up stays as it is.
        outputs: From weights of all neurons and examples to answers.
    """

    space: WeightSpace
    outputs: Callable[[Tensor, Tensor], Tensor]


def run(case: Case) -> Measures:
    n, heat, generator = case["inputs"], case["temperature"], case.generator()
    student = committee(n, Mlp(UNITS, activation=case["activation"], bias=False))
    teacher = math.sqrt(n) * torch.eye(UNITS, n, dtype=torch.float64)
    seen, new = (
        torch.randn(count, n, generator=generator, dtype=torch.float64)
        for count in (round(case["amount"] * n * heat), 1000)
    )
    answers, asked = (student.outputs(teacher.flatten(), x) for x in (seen, new))

    def energy(w: Tensor) -> Tensor:
        return (student.outputs(w, seen) - answers).square().sum() / 2 + heat * w.square().sum() / 2

    # both units of a chain begin as one
    start = torch.randn(case["chains"], 1, n, generator=generator, dtype=torch.float64).expand(-1, UNITS, -1)
    chains = run_chains(
        loss_gradients(energy), start.flatten(1), step=STEP / (heat * (1 + case["amount"])), temperature=heat,
        skip=case["steps"], steps=case["steps"], every=10, seed=case.seed,
    )  # fmt: skip
    weights = chains.positions.unflatten(-1, (UNITS, n))
    order = float(specialisation(committee_overlaps(weights, teacher).shared).mean())
    wrong = torch.stack([(student.outputs(w, new) - asked).square().mean() for w in chains.positions[-1]]).mean()
    return {
        "error": float(wrong / asked.var()),
        "order": order,
        "off_theory": order - committee_state(case["amount"], case["activation"]).order,
    }


def committee(n_inputs: int, neurons: Mlp) -> Committee:
    """Return a layer of so many inputs whose first output is the sum of its neurons, over the root of their number."""
    layer = neurons.build(n_inputs, 1, 0, "mlp").double().eval().requires_grad_(False)
    layer.output.weight.zero_()[0] = 1 / math.sqrt(UNITS)
    space = WeightSpace(layer, ("input.weight",))

    def outputs(weights: Tensor, x: Tensor) -> Tensor:
        context = make_context(1, len(x), x.device, is_causal=False)
        return space(weights, x[None] / math.sqrt(n_inputs), context)[0][0, :, 0]

    return Committee(space, outputs)


def at(measure: str, amount: float, activation: str = CURVED) -> Quantity:
    return value(measure, amount=amount, activation=activation)


LEARNED = Condition("With most data the task is learned", at("error", MANY), below(0.3))

STUDY = Study(
    "hidden-unit-symmetry",
    paper='Biehl, Schloesser and Ahr 1998, "Phase transitions in soft-committee machines", arXiv cond-mat/9805182; '
    'Hou, Wong and Huang 2019, "Minimal model of permutation symmetry in unsupervised learning", arXiv 1904.13052',
    question="Do hidden units become unlike when there is enough data, and only then?",
    run=run,
    grid={"amount": AMOUNTS, "activation": (CURVED, STRAIGHT)},
    scales={
        "smoke": Scale(1, {"inputs": 8, "chains": 2, "steps": 20, "temperature": 2.0}, {"amount": (FEW, MANY)}),
        "small": Scale(8, {"inputs": 32, "chains": 4, "steps": 500, "temperature": 2.0}),
    },
    measures={
        "error": Measure("Mean squared error on new examples, of the variance of right answers"),
        "order": Measure("How much more units overlap with their own unit of the teacher than with the other"),
        "off_theory": Measure("It above what theory of many inputs and high temperatures says"),
    },
    claims=(
        Claim("few", "With few data units are no more unlike than chance has them", at("order", FEW), below(0.3),
              (LEARNED,)),
        Claim("no-rise-below", "Twice as many make them no more unlike, below the threshold",
              at("order", LESS) - at("order", FEW), below(0.15), (LEARNED,)),
        Claim("rise", "Beyond it they become so", at("order", MORE) - at("order", LESS), above(0.25), (LEARNED,)),
        *(Claim(f"theory-{name}", f"With {amount:g} examples for each input and unit of temperature, as theory says",
                at("off_theory", amount), within(0.12, 0), (LEARNED,))
          for name, amount in (("more", MORE), ("many", MANY))),
        Claim("straight", "Without a non-linearity they never do", at("order", MANY, STRAIGHT), below(0.3), (LEARNED,)),
    ),
    differs=(
        "Weights have a decay that grows with the temperature in place of a sphere, and f is gelu, for which theory is "
        "computed by quadrature.",
        "32 inputs and a temperature of 2: theory is of many inputs, and of temperatures at which only the mean of the "
        "examples is seen. By chance an order is of the size of .2 with so few inputs.",
        "Ranges and lengths were set on one seed.",
    ),
    references={"amount": (MANY,), "activation": (CURVED,)},
    skip=lambda at: at["activation"] == STRAIGHT and at["amount"] != MANY,
)  # fmt: skip
