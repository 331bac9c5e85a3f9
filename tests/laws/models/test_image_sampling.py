"""Images out of noise: with the exact field of a normal distribution samples are of that distribution."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from glassformer.attention import Softmax
from glassformer.data import Cosine, NoiseSchedule, Straight
from glassformer.errors import AnalysisUnavailable, TokenOutOfRange
from glassformer.models import Patches, block, image_encoder, image_generator, sample_images, sana
from glassformer.models.image_sampling import denoised, drawn_variance
from glassformer.testing import close

schedules = pytest.mark.parametrize("schedule", [Straight(), Cosine()])
MEAN = torch.tensor([0.7, -1.0], dtype=torch.float64)
COVARIANCE = torch.tensor([[0.5, 0.3], [0.3, 0.4]], dtype=torch.float64)


def exact(schedule: NoiseSchedule) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the velocity of images of two pixels whose distribution is normal, from the mean of x_0 given x_t."""

    def velocity(x: Tensor, times: Tensor) -> Tensor:
        at = schedule.shares(times[0])
        inverse = torch.linalg.inv(at.alpha**2 * COVARIANCE + at.sigma**2 * torch.eye(2, dtype=torch.float64))
        left = x.flatten(1) - at.alpha * MEAN
        image = MEAN + left @ (at.alpha * COVARIANCE @ inverse).T
        noise = (x.flatten(1) - at.alpha * image) / at.sigma
        return (at.alpha_rate * image + at.sigma_rate * noise).view_as(x)

    return velocity


def distribution(schedule: NoiseSchedule, steps: int, ancestral: bool) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of what is made: it is affine in all that is drawn, each of which is moved alone."""
    n = 1 + 2 + 2 * steps * ancestral
    noise, drawn = torch.zeros(n, 1, 1, 2, dtype=torch.float64), iter(range(steps))
    noise[1, ..., 0] = noise[2, ..., 1] = 1

    def draws() -> Tensor:
        own, at = torch.zeros_like(noise), 3 + 2 * next(drawn)
        own[at, ..., 0] = own[at + 1, ..., 1] = 1
        return own

    made = denoised(exact(schedule), noise, steps, schedule, draws if ancestral else None).flatten(1)
    moved = made[1:] - made[0]
    return made[0], moved.T @ moved


@schedules
@pytest.mark.parametrize("ancestral", [False, True])
def test_samples_of_a_normal_distribution_have_its_mean_and_covariance(schedule, ancestral) -> None:
    errors = []
    for steps in (50, 100, 200):
        mean, covariance = distribution(schedule, steps, ancestral)
        errors.append(float((covariance - COVARIANCE).norm() / COVARIANCE.norm()))
        assert float((mean - MEAN).norm()) < 3 / steps
    # of first order: half the error with twice the steps
    assert errors[-1] < 0.03 and all(0.4 < b / a < 0.6 for a, b in itertools.pairwise(errors)), errors


def test_a_step_on_the_straight_line_is_that_of_euler() -> None:
    x = noise = torch.randn(4, 1, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    steps, velocity = 7, exact(Straight())
    for i in range(steps):
        time = torch.tensor([1 - i / steps], dtype=torch.float64)
        x = x - velocity(x, time) / steps
    close(denoised(velocity, noise, steps), x)


def test_a_step_on_the_circle_is_that_of_euler_for_image_and_noise_in_units_of_the_image() -> None:
    schedule = Cosine()
    x = noise = torch.randn(4, 1, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    times = torch.linspace(0.9, 0.1, 6, dtype=torch.float64)
    for t, s in itertools.pairwise(times):
        now, then = schedule.shares(t), schedule.shares(s)
        _, left = schedule.parts(x, exact(schedule)(x, t[None]), t.expand(4))
        x = then.alpha * (x / now.alpha + (then.sigma / then.alpha - now.sigma / now.alpha) * left)
    y = noise
    for t, s in itertools.pairwise(times):
        image, left = schedule.parts(y, exact(schedule)(y, t[None]), t.expand(4))
        y = schedule.noised(image, left, s.expand(4))
    close(x, y)


@schedules
def test_what_an_ancestral_step_draws_is_what_bayes_leaves_open(schedule: NoiseSchedule) -> None:
    t, s = torch.tensor(0.8, dtype=torch.float64), torch.tensor(0.55, dtype=torch.float64)
    now, then = schedule.shares(t), schedule.shares(s)
    passed = now.alpha / then.alpha
    added = now.sigma**2 - passed**2 * then.sigma**2
    drawn = drawn_variance(now.alpha, now.sigma, then.alpha, then.sigma)
    close(1 / drawn, 1 / then.sigma**2 + passed**2 / added)
    nothing = schedule.shares(torch.zeros((), dtype=torch.float64))
    assert float(drawn_variance(now.alpha, now.sigma, nothing.alpha, nothing.sigma)) == 0


@schedules
def test_where_every_image_is_one_any_number_of_steps_ends_in_it(schedule: NoiseSchedule) -> None:
    image = torch.tensor([[[[2.0, -1.0]]]], dtype=torch.float64)
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 1, 1, 2, generator=random, dtype=torch.float64)

    def velocity(x: Tensor, times: Tensor) -> Tensor:
        at = schedule.shares(times[0])
        return at.alpha_rate * image + at.sigma_rate * (x - at.alpha * image) / at.sigma

    def draws() -> Tensor:
        return torch.randn(noise.shape, generator=random, dtype=torch.float64)

    for steps in (1, 2, 9):
        close(denoised(velocity, noise, steps, schedule), image.expand(3, -1, -1, -1))
        close(denoised(velocity, noise, steps, schedule, draws), image.expand(3, -1, -1, -1))


def generator(schedule: NoiseSchedule | None = None):
    patches = Patches((4, 6), 2, channels=2)
    config = image_generator(patches, 16, sana(2, n_heads=2, grid=patches.grid), 3, schedule, init="xavier")
    return config.build(seed=1)


@pytest.mark.parametrize("ancestral", [False, True])
def test_a_seed_is_an_image_whatever_is_made_beside_it(ancestral: bool) -> None:
    model = generator(Cosine())
    made = sample_images(model, [0, 1, 2, 1], steps=3, ancestral=ancestral, seed=5)
    assert made.shape == (4, 2, 4, 6)
    assert torch.equal(sample_images(model, [0, 1, 2, 1], steps=3, ancestral=ancestral, seed=5), made)
    alone = sample_images(model, torch.tensor([2]), steps=3, ancestral=ancestral, seed=7)
    torch.testing.assert_close(alone, made[2:3], atol=1e-5, rtol=1e-5)
    other = sample_images(model, [0], steps=3, ancestral=ancestral, seed=6)
    assert not torch.allclose(other, made[:1], atol=1e-2)
    # the class is told
    assert not torch.allclose(sample_images(model, [1], steps=3, ancestral=ancestral, seed=5), made[:1], atol=1e-4)
    assert sample_images(model, [], steps=3).shape == (0, 2, 4, 6)
    # what is drawn on the way is another number at each step, and of the first noise alone otherwise
    assert torch.allclose(made, sample_images(model, [0, 1, 2, 1], steps=3, seed=5)) == (not ancestral)


def test_training_mode_and_gradients_are_left_as_they_were() -> None:
    model = generator().train()
    assert not sample_images(model, [0], steps=2).requires_grad and model.training


def test_what_makes_no_images_says_so() -> None:
    classes = image_encoder(Patches((4, 6), 2), 8, (block(Softmax(), n_heads=2),), 3).build()
    with pytest.raises(AnalysisUnavailable, match="image_generator"):
        sample_images(classes, [0])
    with pytest.raises(TokenOutOfRange, match="0 to 2"):
        sample_images(generator(), [3], steps=1)
