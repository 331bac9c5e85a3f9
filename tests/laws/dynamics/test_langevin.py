"""Langevin's steps: descent without noise, Gibbs distributions, equipartition and its finite step, noise of batches."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from glassformer.dynamics import (
    Chains,
    QuadraticLoss,
    WeightSpace,
    balance_temperatures,
    batch_gradients,
    chain_means,
    gibbs_on_line,
    gradient_noise,
    local_minimum,
    loss_gradients,
    position_temperatures,
    run_chains,
)
from glassformer.errors import NotConverged, ShapeMismatch, TrainingDiverged, WrongArgument
from glassformer.models import DecoderConfig, Mlp, block
from glassformer.models.stack import make_context
from glassformer.studies import langevin_temperature
from glassformer.study import Case
from glassformer.testing import close
from glassformer.testing.layers import randomise
from one_pass import in_one_pass

CURVATURES, STEP = torch.tensor([1.0, 3.0, 10.0], dtype=torch.float64), 0.1


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def definite(n: int, seed: int = 0) -> Tensor:
    drawn = normal(n, n, seed=seed)
    return drawn @ drawn.mT / n + 0.3 * torch.eye(n, dtype=torch.float64)


def turned(curvatures: Tensor) -> QuadraticLoss:
    """A quadratic loss with some curvatures, along directions that are no axes."""
    u = torch.linalg.qr(normal(len(curvatures), len(curvatures), seed=3))[0]
    return QuadraticLoss(u * curvatures @ u.mT, normal(len(curvatures), seed=4))


def two_wells(x: Tensor) -> Tensor:
    return (x.square() - 1).square().sum() / 4


# the kernel of attention knows no chains side by side; PyTorch takes one after another
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_without_noise_steps_are_those_of_gradient_descent_on_a_model() -> None:
    model = randomise(DecoderConfig(7, 6, (block(n_heads=2, mlp=Mlp(5)),), max_len=6).build().double().eval())
    ids, space = torch.tensor([[1, 5, 2, 6, 3]]), WeightSpace(model)

    def loss(w: Tensor) -> Tensor:
        return cross_entropy(space(w, ids[:, :-1])[0], ids[0, 1:])

    found = run_chains(loss_gradients(loss), space.vector()[None], step=0.3, steps=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for w, slope in zip(found.positions[:, 0], found.gradients[:, 0]):
        close(w, space.vector())
        optimizer.zero_grad()
        cross_entropy(model(ids[:, :-1])[0], ids[0, 1:]).backward()
        close(slope, torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                                for p in model.parameters()]))  # fmt: skip
        optimizer.step()


def test_weights_are_a_vector_and_come_back_by_their_names() -> None:
    layer = randomise(Mlp(3).build(4, 1, 0, "mlp").double().eval())
    space, some = WeightSpace(layer), WeightSpace(layer, ("output.bias", "input.weight"))
    for name, value in space.named(space.vector()).items():
        assert torch.equal(value, layer.get_parameter(name))
    assert list(some.named(some.vector())) == ["output.bias", "input.weight"] and len(some.vector()) == 16
    x, context = normal(1, 2, 4), make_context(1, 2, torch.device("cpu"), is_causal=False)
    close(some(some.vector(), x, context)[0], layer(x, context)[0])
    moved = some(some.vector() + 1, x, context)[0]
    assert (moved - layer(x, context)[0]).abs().max() > 0.1


def test_hidden_units_can_be_exchanged_and_descent_keeps_those_alike_that_begin_alike() -> None:
    layer = randomise(Mlp(3).build(4, 1, 0, "mlp").double().eval())
    space, context = WeightSpace(layer), make_context(1, 20, torch.device("cpu"), is_causal=False)
    x, y = normal(1, 20, 4), normal(1, 20, 4, seed=1)

    def loss(w: Tensor) -> Tensor:
        return (space(w, x, context)[0] - y).square().mean()

    def ordered(w: Tensor, order: list[int]) -> Tensor:
        own = space.named(w)
        of_neurons = (own["input.weight"][order], own["input.bias"][order], own["output.weight"][:, order])
        return torch.cat([*(part.flatten() for part in of_neurons), own["output.bias"]])

    w = space.vector()
    close(loss(ordered(w, [2, 0, 1])), loss(w))
    alike = ordered(w, [0, 1, 1])
    for temperature in (0.0, 1e-3):
        end = run_chains(
            loss_gradients(loss), alike[None], step=0.1, steps=21, temperature=temperature, every=20
        ).positions[-1, 0]
        apart = (end - ordered(end, [0, 2, 1])).abs().max()
        assert (end - alike).abs().max() > 0.01
        # two sums of the same numbers in another order
        assert apart < 1e-13 if temperature == 0 else apart > 1e-2


@in_one_pass
@pytest.mark.parametrize("moved", [None, definite(4, 7)])
@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_steps_leave_their_covariance_as_it_is(moved: Tensor | None, temperature: float) -> None:
    loss, noise, one = QuadraticLoss(definite(4), normal(4)), definite(4, 5), torch.eye(4, dtype=torch.float64)
    mobility = one if moved is None else moved
    found = loss.covariance(0.2, temperature=temperature, noise=noise, mobility=moved)
    kept = one - 0.2 * mobility @ loss.hessian
    drawn = 0.04 * mobility @ noise @ mobility + 2 * temperature * 0.2 * mobility
    close(kept @ found @ kept.mT + drawn, found)


def test_equipartition_holds_but_for_the_step_and_whatever_the_mobility() -> None:
    loss, temperature = turned(CURVATURES), 0.7
    expected = temperature / (1 - STEP * CURVATURES / 2)
    close(loss.temperatures(loss.covariance(STEP, temperature=temperature)), expected)
    close(loss.temperatures(loss.gibbs(temperature)), torch.full_like(expected, temperature))
    # what is left falls in proportion to the step, with any mobility
    for mobility in (None, definite(3, 6)):
        gaps = [(loss.covariance(step, temperature=temperature, mobility=mobility) - loss.gibbs(temperature)).norm()
                for step in (1e-3, 5e-4, 2.5e-4)]  # fmt: skip
        assert all(abs(float(one / other) - 2) < 0.02 for one, other in pairwise(gaps))


def test_chains_have_the_temperature_of_their_noise_with_what_the_step_adds() -> None:
    loss, temperature = turned(CURVATURES), 0.7
    start = loss.minimum.expand(400, -1)
    chains = run_chains(loss_gradients(loss), start, step=STEP, steps=150, temperature=temperature, skip=60, every=5)
    found, expected = position_temperatures(chains, loss), temperature / (1 - STEP * CURVATURES / 2)
    assert ((found.mean - expected).abs() < 4 * found.error).all() and (found.error < 0.03 * expected).all()
    # without that the stiffest direction would be off by a factor of two
    assert found.mean[-1] - temperature > 20 * found.error[-1]
    balanced = balance_temperatures(chains, STEP, loss.minimum)
    assert ((balanced.mean - temperature).abs() < 4 * balanced.error).all()


def test_the_exact_flow_forgets_where_it_began_and_comes_to_the_gibbs_distribution() -> None:
    loss, temperature = turned(CURVATURES), 0.7
    away = loss.minimum + loss.directions.sum(1)
    for time in (0.1, 0.5):
        close((loss.flow(away[None], time, 0.0)[0] - loss.minimum) @ loss.directions, (-time * loss.curvatures).exp())
    ends = loss.flow(away.expand(4000, -1), 0.2, temperature)
    means, spreads = ends.mean(0) - loss.minimum, loss.temperatures(ends.mT.cov())
    k = loss.curvatures
    assert ((means @ loss.directions - (-0.2 * k).exp()).abs() < 4 * (temperature / k / 4000).sqrt()).all()
    expected = -temperature * (-0.4 * k).expm1()
    assert ((spreads / expected - 1).abs() < 4 * math.sqrt(2 / 4000)).all()
    # one of a long time is a draw of the Gibbs distribution
    late = loss.flow(away.expand(4000, -1), 50.0, temperature)
    assert ((loss.temperatures(late.mT.cov()) / temperature - 1).abs() < 4 * math.sqrt(2 / 4000)).all()


def test_of_two_wells_steps_come_to_the_gibbs_distribution_as_they_get_shorter() -> None:
    temperature, n = 0.3, 241
    gibbs = gibbs_on_line(two_wells, temperature, -2.5, 2.5, n_points=n)
    x, gaps = gibbs.points, []
    for step in (0.1, 0.05, 0.025):
        # the chance to come from one point to another, of which the distribution that stays is found by repetition
        drift = x - step * (x**3 - x)
        moves = (-(x - drift[:, None]).square() / (4 * temperature * step)).exp()
        stays = torch.linalg.matrix_power(moves / moves.sum(1, keepdim=True), 4096)[n // 2]
        gaps.append(float(stays @ x.square()) - gibbs.mean(x.square()))
    assert all(abs(one / other - 2) < 0.25 for one, other in pairwise(gaps))
    assert gibbs.mean(torch.ones_like(x)) == pytest.approx(1)


def test_chains_in_two_wells_are_spread_as_quadrature_says_and_balance_at_any_step() -> None:
    temperature = 0.3
    gibbs = gibbs_on_line(two_wells, temperature, -3.0, 3.0)
    start = normal(600, 1).sign()
    chains = run_chains(
        loss_gradients(two_wells), start, step=0.01, steps=600, temperature=temperature, skip=300, every=20
    )
    found = chain_means(chains.positions.square())
    # what a step of a hundredth adds is a tenth of this
    assert abs(float(found.mean) - gibbs.mean(gibbs.points.square())) < 4 * float(found.error) < 0.1
    long = run_chains(loss_gradients(two_wells), start, step=0.2, steps=600, temperature=temperature, skip=60, every=5)
    balanced = balance_temperatures(long, 0.2, torch.zeros(1, dtype=torch.float64))
    assert abs(float(balanced.mean) - temperature) < 4 * float(balanced.error) < 0.04
    # without the second term the step would be taken for temperature
    assert float((long.positions * long.gradients).mean()) - temperature > 8 * float(balanced.error)


def test_the_noise_of_batches_is_a_temperature_of_its_own_along_each_direction() -> None:
    loss, step, batch, n = turned(CURVATURES), 0.02, 4, 200
    drawn = normal(n, 3, seed=8)
    # noise whose covariance is a quarter of the Hessian, exactly
    centred = drawn - drawn.mean(0)
    white = centred @ torch.linalg.inv(torch.linalg.cholesky(centred.mT @ centred / n)).mT
    pulls = white @ torch.linalg.cholesky(loss.hessian / 4).mT

    def losses(w: Tensor, chosen: Tensor) -> Tensor:
        return loss(w) + pulls[chosen].mean(0) @ w

    noise = gradient_noise(losses, n, normal(3))
    close(noise, loss.hessian / 4)
    expected = step * CURVATURES / 4 / (2 * batch * (1 - step * CURVATURES / 2))
    close(loss.temperatures(loss.covariance(step, noise=noise / batch)), expected)
    start = loss.minimum.expand(150, -1)
    chains = run_chains(batch_gradients(losses, n, batch), start, step=step, steps=400, skip=120, every=10)
    found = position_temperatures(chains, loss)
    assert ((found.mean - expected).abs() < 4 * found.error).all() and (found.error < 0.1 * expected).all()
    balanced = balance_temperatures(chains, step, loss.minimum)
    assert (balanced.mean.abs() < 4 * balanced.error).all()


def test_gibbs_distributions_take_noise_that_is_alike_or_newtons_steps_and_noise_like_the_hessian() -> None:
    loss, one = turned(CURVATURES), torch.eye(3, dtype=torch.float64)
    step, newton = 1e-6, loss.gibbs(1.0)

    def is_gibbs(noise: Tensor, mobility: Tensor | None) -> bool:
        found = loss.temperatures(loss.covariance(step, noise=noise, mobility=mobility))
        return bool((found / found.mean() - 1).abs().max() < 1e-4)

    assert is_gibbs(one, None) and is_gibbs(loss.hessian, newton)
    assert not is_gibbs(loss.hessian, None) and not is_gibbs(one, newton)
    # plain steps with noise like the Hessian spread alike; a finite step of Newton's adds the same to all
    close(loss.covariance(step, noise=loss.hessian), step / 2 * one, 1e-5)
    close(loss.covariance(0.5, noise=loss.hessian, mobility=newton), 0.25 / 0.75 * newton)


def test_a_minimum_is_flat_and_its_hessian_is_that_of_slopes_around_it() -> None:
    def loss(w: Tensor) -> Tensor:
        return (w[0] - w[1].square()).square() + (1 - w[1]).square() / 10 + (w[2] - 0.5).cosh() + w[2] * w[0] / 5

    found = local_minimum(loss, torch.tensor([-1.0, 2.0, 1.5], dtype=torch.float64))
    slope = torch.func.grad(loss)
    assert slope(found.minimum).abs().max() < 1e-9
    for i, row in enumerate(found.hessian):
        nudge = 1e-5 * torch.eye(3, dtype=torch.float64)[i]
        close((slope(found.minimum + nudge) - slope(found.minimum - nudge)) / 2e-5, row, 1e-8)
    again = local_minimum(turned(CURVATURES), normal(3))
    close(again.minimum, turned(CURVATURES).minimum)
    close(again.curvatures, CURVATURES)


@pytest.mark.full
@pytest.mark.parametrize("steps", [langevin_temperature.LANGEVIN, langevin_temperature.SGD])
def test_a_trained_layer_has_the_temperatures_of_its_noise(steps: str) -> None:
    point = {"steps": steps, "rate": langevin_temperature.RATE, "batch": langevin_temperature.BATCH}
    found = langevin_temperature.run(Case(point, {"examples": 256, "training": 600, "chains": 12, "length": 1500}, 1))
    even = 0.0 if steps == langevin_temperature.LANGEVIN else 1.0
    for name, expected, tolerance in (
        ("error", 0, 0.01), ("over_theory", 1, 0.1), ("exponent", even, 0.1), ("agreeing", 1, 0.15),
    ):  # fmt: skip
        value = found[name]
        assert isinstance(value, float) and abs(value - expected) < tolerance, name


def test_what_the_theory_does_not_speak_of_is_refused() -> None:
    loss, one = turned(CURVATURES), torch.eye(3, dtype=torch.float64)
    with pytest.raises(WrongArgument, match=r"below 0\.2, which is 2 / k"):
        loss.covariance(0.25, temperature=1.0)
    with pytest.raises(WrongArgument, match=r"least eigenvalue of this one is 0\. Weight decay"):
        QuadraticLoss(torch.zeros(2, 2, dtype=torch.float64), normal(2))
    with pytest.raises(WrongArgument, match="hessian= takes a symmetric matrix"):
        QuadraticLoss(normal(3, 3), normal(3))
    with pytest.raises(WrongArgument, match="mobility= takes a matrix that is positive definite"):
        loss.covariance(0.1, mobility=-one)
    with pytest.raises(ShapeMismatch, match="mobility= is of 2 parameters, and the loss is of 3"):
        loss.covariance(0.1, mobility=torch.eye(2, dtype=torch.float64))
    with pytest.raises(ShapeMismatch, match="mobility= is of 3 parameters, and the chains are of 1"):
        run_chains(loss_gradients(two_wells), normal(2, 1), step=0.1, steps=1, mobility=one)
    with pytest.raises(ShapeMismatch, match="chains of 2 parameters near the minimum of a loss of 3"):
        position_temperatures(Chains(normal(3, 2, 2), normal(3, 2, 2)), loss)
    with pytest.raises(ShapeMismatch, match="of 3 rows at a point of 2 numbers"):
        QuadraticLoss(one, normal(2))
    with pytest.raises(TrainingDiverged, match="Below 2 / k steps are stable"):
        run_chains(loss_gradients(two_wells), 9 * normal(2, 1).sign(), step=0.5, steps=20)
    with pytest.raises(WrongArgument, match="temperature= takes"):
        run_chains(loss_gradients(two_wells), normal(2, 1), step=0.1, steps=1, temperature=-1.0)
    with pytest.raises(ShapeMismatch, match="Run two or more"):
        balance_temperatures(Chains(normal(3, 1, 2), normal(3, 1, 2)), 0.1, normal(2))
    with pytest.raises(WrongArgument, match="does not rise on either side has no Gibbs distribution"):
        gibbs_on_line(lambda w: -w.square().sum(), 1.0, -2.0, 2.0)
    with pytest.raises(WrongArgument, match="low= must be below high="):
        gibbs_on_line(two_wells, 1.0, 2.0, -2.0)
    with pytest.raises(NotConverged, match="local_minimum: after 1 steps"):
        local_minimum(two_wells, torch.tensor([1.7], dtype=torch.float64), most=1)
    # the top between two wells is flat, and no minimum
    with pytest.raises(WrongArgument, match="positive definite"):
        local_minimum(two_wells, torch.zeros(1, dtype=torch.float64))
    layer = Mlp(3).build(4, 1, 0, "mlp")
    with pytest.raises(WrongArgument, match=r'Nearest: "input\.weight"'):
        WeightSpace(layer.eval(), ("input.weights",))
    with pytest.raises(WrongArgument, match="of one parameter or more"):
        WeightSpace(layer.eval(), ())
    with pytest.raises(ShapeMismatch, match="2 numbers for parameters that have 31"):
        WeightSpace(layer.eval()).named(normal(2))
    with pytest.raises(WrongArgument, match=r"Call model\.eval"):
        WeightSpace(layer.train())
