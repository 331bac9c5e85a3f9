"""Vector spins: the mean-field equations that look like a block, their gradients, their transition, and exact sums."""

import math
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from glassformer.attention import Attention, Softmax
from glassformer.dynamics import (
    VectorSpins,
    binary_magnetisations,
    mean_field,
    mean_field_step,
    spin_norm,
    spontaneous_order,
)
from glassformer.errors import NotConverged, ShapeMismatch, WrongArgument
from glassformer.models import RmsNorm
from glassformer.testing import close
from glassformer.testing.layers import D_MODEL, Layer, randomise, stream


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def symmetric(n: int, size: float, seed: int = 0) -> Tensor:
    drawn = normal(n, n, seed=seed) * size / math.sqrt(n)
    return (drawn + drawn.mT) / 2 * (1 - torch.eye(n, dtype=torch.float64))


SPINS, FIELDS = VectorSpins(symmetric(6, 0.3), beta=1.3), normal(6, 8, seed=1)


def test_the_spins_are_as_long_as_they_must_be_and_their_means_are_slopes_of_log_z() -> None:
    fields = FIELDS.clone().requires_grad_()
    means, t = SPINS.magnetisations(fields), SPINS.saddle(fields).detach()
    own = torch.diagonal(torch.inverse(t.diag() - SPINS.couplings))
    close(8 / (2 * SPINS.beta) * own + means.square().sum(-1), torch.full_like(own, 8))
    [slope] = torch.autograd.grad(SPINS.log_partition(fields), fields)
    close(slope / SPINS.beta, means)


def test_steepest_descent_solves_the_tap_equations() -> None:
    means, reaction = SPINS.magnetisations(FIELDS), SPINS.reaction(FIELDS)
    close(mean_field_step(means, FIELDS, SPINS.couplings, SPINS.beta, reaction), means)
    close(mean_field(FIELDS, SPINS.couplings, SPINS.beta, reaction), means)
    # without the reaction it is another answer
    naive = mean_field(FIELDS, SPINS.couplings, SPINS.beta)
    assert 1e-3 < (naive - means).norm() / means.norm() < 0.2
    # nothing throws back what nothing couples to
    alone = VectorSpins(torch.zeros(6, 6, dtype=torch.float64), 1.3)
    close(alone.magnetisations(FIELDS), spin_norm(FIELDS, 1.3))


def test_the_saddles_gradient_is_that_of_finite_differences_and_a_systems_response_is_symmetric() -> None:
    couplings, fields = symmetric(2, 0.3).requires_grad_(), normal(2, 2, seed=1).requires_grad_()

    def exact(j: Tensor, h: Tensor) -> Tensor:
        return VectorSpins((j + j.mT) / 2 * (1 - torch.eye(2)), 1.3).magnetisations(h)

    along = [normal(2, 2, seed=7), normal(2, 2, seed=8)]
    step = [1e-5 * direction for direction in along]
    weighted = exact(couplings, fields).square().sum()
    slope = sum((g * v).sum() for g, v in zip(torch.autograd.grad(weighted, (couplings, fields)), along))
    with torch.no_grad():
        ends = [exact(couplings + sign * step[0], fields + sign * step[1]).square().sum() for sign in (1, -1)]
    close((ends[0] - ends[1]) / 2e-5, torch.as_tensor(slope), 1e-8)
    response = torch.autograd.functional.jacobian(lambda h: exact(couplings.detach(), h), fields.detach())
    assert isinstance(response, Tensor)
    close(response.reshape(4, 4), response.reshape(4, 4).mT)


def test_the_implicit_layer_has_the_gradient_of_unrolled_updates() -> None:
    couplings, fields = normal(4, 4, seed=2).mul(0.1).requires_grad_(), normal(4, 3, seed=1).requires_grad_()
    unrolled = spin_norm(fields)
    for _ in range(80):
        unrolled = mean_field_step(unrolled, fields, couplings)
    gradients = []
    for means in (mean_field(fields, couplings), unrolled):
        gradients.append((means, *torch.autograd.grad((means * means.detach().cos()).sum(), (fields, couplings))))
    for ours, expected in zip(*gradients):
        close(ours, expected)


def test_means_turn_with_the_fields_and_vanish_without_them() -> None:
    turn = torch.linalg.qr(normal(8, 8, seed=3))[0]
    close(SPINS.magnetisations(FIELDS @ turn), SPINS.magnetisations(FIELDS) @ turn)
    assert SPINS.magnetisations(0 * FIELDS).abs().max() == 0


def test_the_norm_is_rms_norm_in_the_cold_and_linear_in_the_heat() -> None:
    x = normal(5, 12)
    norm = RmsNorm(eps=0.0).build(12, "norm", None).double()
    close(spin_norm(x, 1e12), norm(x[None])[0])
    close(spin_norm(x, 1e-9), 1e-9 * x)


def test_one_spin_is_that_of_the_exact_integral_up_to_one_over_its_dimensions() -> None:
    errors = []
    for d in (8, 32, 128):
        field = torch.ones(1, d, dtype=torch.float64)
        # ratio of Bessel functions I_{d/2} / I_{d/2 - 1} at d, by their continued fraction
        ratio = 0.0
        for order in range(d // 2 + 200, d // 2 - 1, -1):
            ratio = 1 / (2 * order / d + ratio)
        errors.append(abs(float(spin_norm(field)[0, 0]) - ratio))
    slopes = [math.log(later / earlier) / math.log(4) for earlier, later in pairwise(errors)]
    assert all(abs(slope + 1) < 0.1 for slope in slopes)


def test_an_update_with_a_heads_pattern_is_a_block_with_a_norm_behind_it() -> None:
    layer = Layer(randomise(Attention(1, d_head=4, mixer=Softmax()).build(D_MODEL, 8, 0, "").double().eval()))
    x = stream(1, 5)
    read = layer.read(x, "pattern", "value", "out")
    pattern, written = read["pattern"][0, 0], read["out"][0]
    # what each token brings along, mixed by the pattern, is what the head writes
    brought = torch.linalg.solve(pattern, written)
    norm = RmsNorm(eps=0.0).build(D_MODEL, "norm", None).double()
    close(mean_field_step(brought, x[0], pattern / 2, 1e12), norm(x + written)[0])


def test_spins_that_all_attract_each_other_order_below_the_critical_temperature() -> None:
    n, d, coupling = 12, 6, 0.7
    couplings = (torch.ones(n, n, dtype=torch.float64) - torch.eye(n, dtype=torch.float64)) * coupling / n
    fields, start = torch.zeros(n, d, dtype=torch.float64), torch.ones(n, d, dtype=torch.float64)
    critical = n / (2 * coupling * (n - 1))
    for ratio in (0.5, 1.5, 4.0):
        order = spontaneous_order(coupling, n, ratio * critical)
        found = mean_field(fields, couplings, ratio * critical, start=start)
        assert float(found.mean(0).square().mean()) == pytest.approx(order, abs=1e-9)
        assert order == pytest.approx(max(0, 1 - 1 / ratio))
    assert spontaneous_order(1.0, 1, 9.0) == 0


def test_of_binary_spins_the_reaction_makes_the_answer_three_times_better() -> None:
    couplings, fields = symmetric(8, 0.6, seed=2), 0.5 * normal(8, seed=3)
    states = torch.tensor(list(product((-1.0, 1.0), repeat=8)), dtype=torch.float64)
    weights = ((states @ couplings * states).sum(-1) / 2 + states @ fields).softmax(0)
    exact = weights @ states
    naive, tap = (
        (binary_magnetisations(fields, couplings, reaction=on) - exact).abs().max() for on in (False, True)
    )  # fmt: skip
    assert 3 * tap < naive


def test_what_is_no_system_of_spins_is_refused() -> None:
    uneven = normal(3, 3) * (1 - torch.eye(3, dtype=torch.float64))
    with pytest.raises(WrongArgument, match="must be symmetric"):
        VectorSpins(uneven)
    with pytest.raises(WrongArgument, match="have a diagonal"):
        binary_magnetisations(normal(3), torch.eye(3, dtype=torch.float64))
    with pytest.raises(WrongArgument, match="beta= takes"):
        VectorSpins(symmetric(3, 1.0), beta=0.0)
    with pytest.raises(ShapeMismatch, match="2 fields for 3 spins"):
        VectorSpins(symmetric(3, 1.0)).magnetisations(normal(2, 4))
    # two that push each other away and are updated at once swing
    apart = torch.tensor([[0.0, -3.0], [-3.0, 0.0]], dtype=torch.float64)
    with pytest.raises(NotConverged, match="higher temperature"):
        mean_field(torch.ones(2, 2, dtype=torch.float64), apart, 9.0, most=100)
    with pytest.raises(NotConverged, match="saddle: after 1 steps"):
        SPINS.saddle(FIELDS, most=1)
