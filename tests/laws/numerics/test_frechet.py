"""The Fréchet distance: of known normal distributions what the formula says, and a distance."""

import torch

from glassformer.numerics.frechet import frechet_distance


def drawn(n: int, seed: int, width: int = 5) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_it_is_zero_of_the_same_points_and_the_same_both_ways() -> None:
    one, other = drawn(40, 0), drawn(30, 1) * 2 + 1
    assert abs(frechet_distance(one, one)) < 1e-10
    assert abs(frechet_distance(one, other) - frechet_distance(other, one)) < 1e-10
    assert frechet_distance(one, other) > 0.1


def test_points_that_are_moved_are_as_far_as_the_square_of_the_way() -> None:
    one, way = drawn(40, 0), torch.tensor([3.0, 0, -4, 0, 0])
    assert abs(frechet_distance(one, one + way) - 25) < 1e-9


def test_points_that_are_stretched_along_their_axes_are_as_far_as_deviations_differ() -> None:
    one = drawn(200, 0)
    factors = torch.tensor([1.0, 2.0, 0.5, 3.0, 0.0])
    # decorrelated, so that covariances commute
    one = one - one.mean(0)
    _, _, axes = torch.linalg.svd(one, full_matrices=False)
    one = one @ axes.T
    wanted = float(((1 - factors) * one.std(0)).square().sum())
    assert abs(frechet_distance(one, one * factors) - wanted) < 1e-9


def test_of_one_feature_it_is_that_of_two_bells_and_it_does_not_turn() -> None:
    one, other = drawn(50, 0, 1), drawn(70, 1, 1) * 3
    wanted = float((one.mean() - other.mean()).square() + (one.std() - other.std()).square())
    assert abs(frechet_distance(one, other) - wanted) < 1e-10
    a, b = drawn(40, 2), drawn(40, 3) @ drawn(5, 4)
    turn = torch.linalg.qr(drawn(5, 5))[0]
    assert abs(frechet_distance(a @ turn, b @ turn) - frechet_distance(a, b)) < 1e-9


def test_fewer_points_than_features_are_taken_as_they_are() -> None:
    few, many = drawn(3, 0), drawn(90, 1)
    assert 0 < frechet_distance(few, many) < 40 and abs(frechet_distance(few, few)) < 1e-9
