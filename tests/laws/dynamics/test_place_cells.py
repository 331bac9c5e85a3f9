"""Place cells: information and waves of maps whose values are known."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.dynamics import RateMaps, rate_maps, shuffled_information
from glassformer.errors import ShapeMismatch, WrongArgument
from glassformer.testing import close

EVEN = torch.full((16,), 1 / 16, dtype=torch.float64)


def wave(down: int, right: int, phase: float = 0.3) -> Tensor:
    """Return a plane wave on four rows and four columns."""
    row, column = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    return (2 * math.pi * (down * row + right * column) / 4 + phase).cos().flatten().double()


def test_a_unit_of_one_place_says_that_place_and_one_of_all_says_nothing() -> None:
    places = torch.tensor([0, 1, 1, 2, 2, 2, 2, 3])
    activity = torch.stack([(places == place).double() for place in range(4)] + [torch.ones(8).double()], 1)
    maps = rate_maps(activity, places, 5)
    close(maps.occupancy, torch.tensor([1, 2, 4, 1, 0]).double() / 8)
    close(maps.rates[:4, :4], torch.eye(4, dtype=torch.float64))
    close(maps.information(), torch.tensor([3.0, 2.0, 1.0, 3.0, 0.0], dtype=torch.float64))


def test_information_is_that_of_place_about_activity_and_knows_no_size() -> None:
    generator = torch.Generator().manual_seed(0)
    activity = torch.rand(200, 3, generator=generator, dtype=torch.float64)
    places = torch.randint(6, (200,), generator=generator)
    maps = rate_maps(activity, places, 6)
    close(rate_maps(7 * activity, places, 6).information(), maps.information())
    # a spike of the unit is drawn, and then where it was: the divergence of that from the occupancy
    where = torch.stack([activity[places == place].sum(0) for place in range(6)], 1)
    where = where / where.sum(1, keepdim=True)
    close(maps.information(), (where * (where / maps.occupancy).log2()).sum(1))
    assert rate_maps(torch.zeros(200, 1), places, 6).information().tolist() == [0.0]


def test_shuffled_cells_are_cells_shifted_in_time() -> None:
    places = torch.arange(12) % 4
    activity = (places == 1).double()[:, None]
    found = shuffled_information(activity, places, 4, n_shuffles=8)
    # where places come round at one pace, a shifted cell is the cell of another place
    close(found, torch.full((8, 1), 2.0, dtype=torch.float64))
    drawn = torch.randint(4, (4000,), generator=torch.Generator().manual_seed(1))
    cell = (drawn == 1).double()[:, None]
    assert (
        shuffled_information(cell, drawn, 4, n_shuffles=8).max() < 0.02 < 1.9 < rate_maps(cell, drawn, 4).information()
    )


def test_the_strongest_wave_has_all_of_a_band_and_half_of_two() -> None:
    maps = torch.stack([wave(0, 1), 3 + wave(1, 2), wave(2, 2, 0.0), wave(0, 1) + wave(1, 0), torch.ones(16).double()])
    close(RateMaps(maps, EVEN).wave_share(4), torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0], dtype=torch.float64))
    ring = (2 * math.pi * torch.arange(5, dtype=torch.float64) / 5).cos()[None]
    close(RateMaps(ring, torch.full((5,), 0.2, dtype=torch.float64)).wave_share(1), torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: rate_maps(torch.ones(4, 2), torch.zeros(5).long(), 3), ShapeMismatch, "both are of the same"),
        (lambda: rate_maps(torch.ones(4, 2), torch.tensor([0, 1, 2, 3]), 3), ShapeMismatch, "0 to 2; found 0 to 3"),
        (lambda: RateMaps(torch.ones(1, 16), EVEN).wave_share(3), ShapeMismatch, "do not fill rows=3"),
        (lambda: RateMaps(-torch.ones(1, 16), EVEN).information(), WrongArgument, "activity is not negative"),
    ],
)
def test_what_is_no_map_of_rates_is_refused(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()
