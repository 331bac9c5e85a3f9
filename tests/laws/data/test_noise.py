"""Noise in images: the image at one end and noise at the other, and both told from their mixture and its velocity."""

import math

import pytest
import torch
from jaxtyping import TypeCheckError

from glassformer.data import (
    Cosine,
    DataConfig,
    Digits,
    Noised,
    NoiseSchedule,
    Recall,
    Shapes,
    Straight,
    noise_images,
    stretched,
)
from glassformer.errors import ConfigError, DataError
from glassformer.testing import close

schedules = pytest.mark.parametrize("schedule", [Straight(), Cosine()])


def drawn(n: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    images, noise = torch.randn(2, n, 2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return images, noise


@schedules
def test_there_is_the_image_at_time_0_and_noise_alone_at_time_1(schedule: NoiseSchedule) -> None:
    images, noise = drawn()
    assert torch.equal(schedule.noised(images, noise, torch.zeros(6, dtype=torch.float64)), images)
    close(schedule.noised(images, noise, torch.ones(6, dtype=torch.float64)), noise)


@schedules
def test_image_and_noise_follow_from_what_was_noised_and_its_velocity_at_any_time(schedule: NoiseSchedule) -> None:
    images, noise = drawn()
    times = torch.tensor([0.0, 0.1, 0.5, 0.77, 0.999, 1.0], dtype=torch.float64)
    noised, velocity = (make(images, noise, times) for make in (schedule.noised, schedule.velocity))
    image, left = schedule.parts(noised, velocity, times)
    close(image, images)
    close(left, noise)


@schedules
def test_the_velocity_is_how_fast_what_is_noised_moves_in_units_of_the_schedule(schedule: NoiseSchedule) -> None:
    images, noise = drawn()
    times = torch.linspace(0.05, 0.95, 6, dtype=torch.float64)
    moved, step = schedule.velocity(images, noise, times), 1e-6
    after, before = (schedule.noised(images, noise, times + s) for s in (step, -step))
    unit = math.pi / 2 if isinstance(schedule, Cosine) else 1.0
    # of central differences in float64
    torch.testing.assert_close((after - before) / (2 * step) / unit, moved, atol=1e-8, rtol=1e-8)
    at = schedule.shares(times)
    close(at.alpha * at.sigma_rate - at.alpha_rate * at.sigma, torch.ones(6, dtype=torch.float64))


def test_the_cosine_keeps_unit_variance_and_the_straight_line_does_not() -> None:
    times = torch.linspace(0, 1, 9, dtype=torch.float64)
    kept, straight = (schedule.shares(times) for schedule in (Cosine(), Straight()))
    close(kept.alpha**2 + kept.sigma**2, torch.ones(9, dtype=torch.float64))
    close(straight.alpha + straight.sigma, torch.ones(9, dtype=torch.float64))
    assert float((straight.alpha**2 + straight.sigma**2)[4]) == 0.5
    # of unit images that noise is added to, in a million numbers
    random = torch.Generator().manual_seed(1)
    images, noise = torch.randn(2, 1, 1, 1000, 1000, generator=random, dtype=torch.float64)
    variance = Cosine().noised(images, noise, torch.tensor([0.3], dtype=torch.float64)).var()
    assert abs(float(variance) - 1) < 0.01


@schedules
def test_a_batch_holds_what_its_images_noise_and_times_make(schedule: NoiseSchedule) -> None:
    config = Noised(Digits(packaged=True), 5, schedule, seed=3)
    data = config.build()
    batch, again, other = data.batch(2), data.batch(2), data.batch(3)
    assert all(torch.equal(one, two) for one, two in zip(batch.tensors().values(), again.tensors().values()))
    assert not torch.equal(batch.tokens, other.tokens)
    assert batch.times is not None and batch.classes is not None and other.times is not None
    assert not torch.equal(batch.times, other.times) and 0 <= float(batch.times.min()) < float(batch.times.max()) <= 1
    plain = config.of.build().batch(2)
    assert torch.equal(batch.classes, plain.targets[:, 0]) and batch.weight.shape == (5, 1)
    # the image in it is that of the data, stretched, whatever noise lies over it
    image, _ = schedule.parts(batch.tokens.double(), batch.targets.double(), batch.times.double())
    torch.testing.assert_close(image, stretched(plain.tokens).double(), atol=1e-5, rtol=0)
    batch.check_targets(1)


def test_noise_is_of_the_seed_and_images_may_be_given_with_times_of_ones_own() -> None:
    images, classes = torch.zeros(2, 1, 8, 8), torch.tensor([1, 2])
    one, two = (
        noise_images(images, classes, torch.tensor([0.0, 1.0]), random=torch.Generator().manual_seed(s)) for s in (0, 1)
    )
    assert torch.equal(one.tokens[0], images[0]) and torch.equal(one.tokens[1], one.targets[1])
    assert not torch.equal(one.tokens[1], two.tokens[1])


def test_noised_data_survive_json_and_say_what_they_are() -> None:
    config = Noised(Shapes(size=10, task="kind"), 3, Cosine())
    assert DataConfig.from_dict(config.to_dict()) == config and (config.batch_size, config.length) == (3, 1)
    data = config.build()
    assert data.describe()["classes"] == list(config.of.classes()) and list(data.documents("train")) == []
    # under the type checks of tests a wrong split does not get as far
    with pytest.raises((DataError, TypeCheckError)):
        data.batch(0, "test")  # type: ignore[arg-type]
    for wrong in (Recall(), config):
        with pytest.raises(ConfigError, match=f"found {wrong.kind}"):
            Noised(wrong)
