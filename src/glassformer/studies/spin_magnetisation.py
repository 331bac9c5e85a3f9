"""Magnetisations of vector spins: the mean-field equations that look like a block, against the system itself, sampled.

Spins are drawn one after another, each from its distribution in the field of all others (von Mises and Fisher's), for
many sweeps. Two systems: couplings and fields at random, where means are compared one by one; and spins that all
attract each other without a field, which theory has ordered below a critical temperature, by 1 - T / T_c, and not
above it.
"""

import math

import torch
from torch import Tensor

from glassformer.dynamics import VectorSpins, mean_field, spin_norm, spontaneous_order
from glassformer.errors import AnalysisUnavailable
from glassformer.study import Case, Claim, Condition, Measure, Measures, Scale, Study, above, below, value, within

RANDOM, ATTRACTED = "random couplings", "all attracted"
COLD, COOL, MILD, WARM = 0.25, 0.5, 0.75, 1.5
N_RANDOM, SIZE, COUPLING = 6, 0.4, 0.5


def run(case: Case) -> Measures:
    return of_random(case) if case["system"] == RANDOM else of_attracted(case)


def of_random(case: Case) -> Measures:
    """Return errors of means relative to the sampled ones."""
    d, beta, generator = case["dimensions"], 1 / case["temperature"], case.generator()
    drawn = torch.randn(N_RANDOM, N_RANDOM, generator=generator, dtype=torch.float64) * SIZE / math.sqrt(N_RANDOM)
    couplings = (drawn + drawn.mT) / math.sqrt(2) * (1 - torch.eye(N_RANDOM, dtype=torch.float64))
    fields = torch.randn(N_RANDOM, d, generator=generator, dtype=torch.float64)
    start = spin_norm(fields, 1e9).expand(case["chains"], -1, -1)
    found = sampled(couplings, fields, beta, start, case["sweeps"])[1]

    def error(means: Tensor) -> float:
        return float((means - found).norm() / found.norm())

    return {
        "error": error(VectorSpins(couplings, beta).magnetisations(fields)),
        "error_naive": error(mean_field(fields, couplings, beta)),
        "error_alone": error(spin_norm(fields, beta)),
        "order": _undefined,
        "off_theory": _undefined,
    }


def of_attracted(case: Case) -> Measures:
    """Return the order that is sampled, and how far it is from that of theory."""
    n, d = case["spins"], case["dimensions"]
    couplings = (torch.ones(n, n, dtype=torch.float64) - torch.eye(n, dtype=torch.float64)) * COUPLING / n
    beta = n / (2 * COUPLING * (n - 1)) / case["temperature"]
    start = torch.ones(case["chains"], n, d, dtype=torch.float64)
    order = sampled(couplings, torch.zeros(n, d, dtype=torch.float64), beta, start, case["sweeps"])[0]
    theory = spontaneous_order(COUPLING, n, beta)
    return {"order": order, "off_theory": order - theory} | dict.fromkeys(
        ("error", "error_naive", "error_alone"), _undefined
    )


def _undefined() -> float:
    raise AnalysisUnavailable("this is a measure of the other system.")


def sampled(couplings: Tensor, fields: Tensor, beta: float, start: Tensor, sweeps: int) -> tuple[float, Tensor]:
    """Return the mean square of the mean spin, of its length, and the mean of each spin, over the later half of sweeps.

    Args:
        couplings: How strongly spins act on each other.
        fields: What acts on each from outside.
        beta: Inverse temperature.
        start: Spins of all chains, `chain spin d_model`.
        sweeps: How often each spin is drawn.
    """
    spins, d = start.clone(), start.shape[-1]
    orders, means = list[Tensor](), list[Tensor]()
    for sweep in range(sweeps):
        for i in range(len(couplings)):
            spins[:, i] = math.sqrt(d) * drawn_around(beta * math.sqrt(d) * (fields[i] + 2 * couplings[i] @ spins))
        if 2 * sweep >= sweeps:
            orders.append(spins.mean(1).square().mean())
            means.append(spins.mean(0))
    return float(torch.stack(orders).mean()), torch.stack(means).mean(0)


def drawn_around(fields: Tensor) -> Tensor:
    """Return unit vectors u drawn with density as exp(field . u), `chain d_model`; Wood 1994."""
    strength, d = fields.norm(dim=-1), fields.shape[-1]
    b = (d - 1) / (2 * strength + (4 * strength.square() + (d - 1) ** 2).sqrt())
    middle = (1 - b) / (1 + b)
    most = strength * middle + (d - 1) * (1 - middle.square()).log()
    along, missing = torch.zeros_like(strength), torch.ones_like(strength, dtype=torch.bool)
    shape = torch.full_like(strength, (d - 1) / 2)
    beta = torch.distributions.Beta(shape, shape)
    while bool(missing.any()):
        z = beta.sample()
        w = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        kept = missing & (
            strength * w + (d - 1) * (1 - middle * w).log() - most >= torch.rand(len(z), dtype=z.dtype).log()
        )
        along, missing = torch.where(kept, w, along), missing & ~kept
    axis = fields / strength[:, None]
    across = torch.randn_like(fields)
    across -= (across * axis).sum(-1, keepdim=True) * axis
    across /= across.norm(dim=-1, keepdim=True)
    return along[:, None] * axis + (1 - along.square()).sqrt()[:, None] * across


COUPLED = Condition("Couplings matter: spins alone are elsewhere", value("error_alone", system=RANDOM, temperature=1.0),
                    above(0.05))  # fmt: skip

STUDY = Study(
    "spin-magnetisation",
    paper='mcbal 2021, "Transformers Are Secretly Collectives of Spin Systems" and "Approximate free energy '
    'minimization", mcbal.github.io',
    question="Do spins whose mean-field equations look like a block have the means that these equations say?",
    run=run,
    grid={"system": (RANDOM, ATTRACTED), "temperature": (COLD, COOL, MILD, 1.0, WARM)},
    scales={
        "smoke": Scale(2, {"spins": 6, "dimensions": 8, "chains": 4, "sweeps": 6}),
        "small": Scale(5, {"spins": 48, "dimensions": 32, "chains": 32, "sweeps": 200}),
    },
    measures={
        "error": Measure("Distance of means from those sampled, relative to these: steepest descent"),
        "error_naive": Measure("The same of naive mean field"),
        "error_alone": Measure("The same of spins without couplings"),
        "order": Measure("Mean square of the mean spin, of a spin's own"),
        "off_theory": Measure("It above what theory says"),
    },
    claims=(
        Claim("means", "Steepest descent has the means of the system to a twentieth",
              value("error", system=RANDOM, temperature=1.0), below(0.05), (COUPLED,)),
        Claim("better-than-naive", "It has them better than equations without the reaction",
              value("error_naive", system=RANDOM, temperature=1.0) - value("error", system=RANDOM, temperature=1.0),
              above(0.0), (COUPLED,)),
        *(Claim(f"ordered-{name}", f"At {ratio:g} of the critical temperature spins are ordered as theory says",
                value("off_theory", system=ATTRACTED, temperature=ratio), within(0.05, 0))
          for name, ratio in (("cold", COLD), ("cool", COOL), ("mild", MILD))),
        Claim("disordered", "Above it they are not ordered", value("order", system=ATTRACTED, temperature=WARM),
              below(0.1)),
    ),
    differs=(
        "Six spins with couplings at random, and forty-eight that attract each other, of 32 dimensions; theory is of "
        "many dimensions, and of many spins near the critical temperature.",
        "Temperatures of spins that attract each other are in units of the critical one.",
    ),
    mechanisms=("softmax",),
    references={"system": (RANDOM,), "temperature": (1.0,)},
    skip=lambda at: (at["temperature"] == 1.0) is not (at["system"] == RANDOM),
)  # fmt: skip
