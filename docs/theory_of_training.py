"""Pictures and numbers of pages on theory: weights that jitter, and hidden units that become unlike."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from glassformer.dynamics import (
    balance_temperatures,
    batch_gradients,
    committee_state,
    gibbs_on_line,
    gradient_noise,
    loss_gradients,
    position_temperatures,
    run_chains,
)
from glassformer.figures import Panel
from glassformer.labelled import Labelled
from glassformer.studies import hidden_unit_symmetry, langevin_temperature
from glassformer.study import Case

View = tuple[Sequence[Panel], dict[str, str]]


def langevin() -> View:
    """Two wells, temperatures along directions of a trained layer, and the order of hidden units by data."""
    (wells, of_wells), (directions, of_layer), (units, of_units) = two_wells(), trained_layer(), hidden_units()
    return [wells, *directions, units], of_wells | of_layer | of_units


def two_wells() -> tuple[Panel, dict[str, str]]:
    """The distribution of chains in two wells, and the Gibbs distribution."""
    temperature, step = 0.25, 0.1

    def loss(w: Tensor) -> Tensor:
        return (w.square() - 1).square().sum() / 4

    start = torch.linspace(-1, 1, 400, dtype=torch.float64)[:, None]
    chains = run_chains(loss_gradients(loss), start, step=step, steps=500, temperature=temperature, skip=100, every=5)
    gibbs = gibbs_on_line(loss, temperature, -3.0, 3.0)
    places = [round(0.2 * i, 1) for i in range(-11, 12)]
    ends = torch.tensor(places, dtype=torch.float64)
    found = ((chains.positions.flatten() - ends[:, None]).abs() < 0.1).double().mean(1) / 0.2
    theory = torch.stack([gibbs.density[(gibbs.points - place).abs().argmin()] for place in ends])
    lines = Labelled(
        torch.stack((found, theory)), ("of", "weight"), {"of": ["chains", "exp(-L / T) / Z"], "weight": places}
    )
    balanced = balance_temperatures(chains, step, torch.zeros(1, dtype=torch.float64))
    # what a step of a tenth adds to the distribution is not there in the balance
    apart = float(chains.positions.square().mean()) / gibbs.mean(gibbs.points.square()) - 1
    return Panel("two wells: density", lines), {
        f"chains in two wells at T = {temperature:g}, steps of {step:g}: T by the balance of positions and gradients": (
            f"{float(balanced.mean):.3f}, give or take {float(balanced.error):.3f}"
        ),
        "chains in two wells: mean square against the Gibbs distribution": f"{apart:+.1%}",
    }


def trained_layer() -> tuple[list[Panel], dict[str, str]]:
    """`k <x^2>` along directions of the Hessian of a layer at its minimum, of three kinds of steps, with theory."""
    rate, batch, examples = langevin_temperature.RATE, langevin_temperature.BATCH, 512
    layer = langevin_temperature.trained(examples, 600, False, torch.Generator().manual_seed(0))
    minimum, every = layer.minimum, torch.arange(examples)
    noise = gradient_noise(layer.losses, examples, minimum.minimum) / batch
    heat, newton = langevin_temperature.TEMPERATURE, minimum.gibbs(1.0)
    batches = batch_gradients(layer.losses, examples, batch)
    kinds = {
        "Langevin": (loss_gradients(lambda w: layer.losses(w, every)), heat, None, None),
        "batches": (batches, 0.0, noise, None),
        "batches, Newton": (batches, 0.0, noise, newton),
    }
    panels, facts = (
        list[Panel](),
        {"error of the trained layer, of the variance of right answers": f"{layer.error:.1e}"},
    )
    for name, (gradients, temperature, jitter, mobility) in kinds.items():
        chains = run_chains(
            gradients, minimum.minimum.expand(16, -1), step=rate, steps=3600, temperature=temperature,
            mobility=mobility, skip=300, every=5,
        )  # fmt: skip
        found, errors = position_temperatures(chains, minimum)
        theory = minimum.temperatures(
            minimum.covariance(rate, temperature=temperature, noise=jitter, mobility=mobility)
        )
        k = [round(float(one), 3) for one in minimum.curvatures]
        lines = Labelled(
            torch.stack((found, theory)) * 1e5, ("of", "curvature"), {"of": ["measured", "theory"], "curvature": k}
        )
        panels.append(Panel(f"{name}: k <x^2>, 1e-5", lines))
        ratio, ends = float(found[-1] / found[0]), (errors / found)[[0, -1]]
        facts[f"{name}: k <x^2> along the stiffest direction over the softest, measured and in theory"] = (
            f"{ratio:.1f}, give or take {ratio * float(ends.square().sum().sqrt()):.1f}; "
            f"{float(theory[-1] / theory[0]):.1f}"
        )
    return panels, facts


def hidden_units() -> tuple[Panel, dict[str, str]]:
    """The order of two hidden units by the amount of data, in theory and of a layer that is sampled."""
    amounts = [4.0, 8.0, 12.0, 14.0, 16.0, 20.0, 28.0, 36.0]
    settings = {"inputs": 24, "chains": 4, "steps": 600, "temperature": 2.0}
    sampled, theory = list[float](), list[float]()
    for amount in amounts:
        theory.append(committee_state(amount).order)
        measured = hidden_unit_symmetry.run(Case({"amount": amount, "activation": "gelu"}, settings, 0))["order"]
        sampled.append(float(measured() if callable(measured) else measured))
    lines = Labelled(torch.tensor([sampled, theory]), ("of", "amount"),
                     {"of": ["a layer of 24 inputs", "theory, many inputs"], "amount": amounts})  # fmt: skip
    return Panel("hidden units: order by data", lines), {
        f"order of two hidden units, {amount:g} examples for each input and unit of temperature": (
            f"{sampled[amounts.index(amount)]:.2f}; theory {theory[amounts.index(amount)]:.2f}"
        )
        for amount in (4.0, 14.0, 20.0, 36.0)
    }


VIEWS: dict[str, Callable[[], View]] = {"langevin": langevin}
