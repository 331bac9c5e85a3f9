"""Place cells: where units are active, how much their activity says about place, and how periodic it is.

    rate map      r_p = mean activity of a unit where the place is p
    information   sum_p P(p) (r_p / r) log2(r_p / r),   r = sum_p P(p) r_p               in bits
    shuffled      the same, activity shifted in time against places
    waves         share of a map's variance in its strongest plane wave: 1 of a band, less of several

Few visits to a place make any unit look informed, so that information means something beside that of shuffled cells
alone.

Source: Skaggs, McNaughton, Gothard and Markus 1993, "An Information-Theoretic Approach to Deciphering the Hippocampal
Code" (information per spike); Krupic, Burgess and O'Keefe 2012, "Neural Representations of Location Composed of
Spatially Periodic Bands", for waves.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.arguments import Count, Natural, checked
from glassformer.errors import ShapeMismatch, WrongArgument


@checked
@dataclass(frozen=True, eq=False)
class RateMaps:
    """Mean activity of units by place.

    Args:
        rates: Of each unit at each place; zero where nobody was.
        occupancy: Share of time spent at each place.
    """

    rates: Float[Tensor, "unit place"]
    occupancy: Float[Tensor, " place"]

    def information(self) -> Float[Tensor, " unit"]:
        """Spatial information in bits, of units that are nowhere negative; zero of a unit that is never active.

        Raises:
            WrongArgument: A rate is below zero, so that it is no share of anything.
        """
        if bool((self.rates < 0).any()):
            raise WrongArgument(
                f"information: a rate is {float(self.rates.min()):.3g}, and activity is not negative. Take attention "
                "weights, or activity.relu()."
            )
        mean = self.rates @ self.occupancy
        relative = self.rates / mean.clamp_min(torch.finfo(mean.dtype).tiny)[:, None]
        return torch.special.xlogy(relative, relative) @ self.occupancy / math.log(2)

    def wave_share(self, rows: Count) -> Float[Tensor, " unit"]:
        """Share of each map's variance in its strongest plane wave, on a torus of so many rows; zero of a flat map.

        Args:
            rows: Of places, which are numbered row by row; 1 of a ring.

        Raises:
            ShapeMismatch: Places do not fill so many rows.
        """
        n_units, n_places = self.rates.shape
        if rows < 1 or n_places % rows:
            raise ShapeMismatch(f"{n_places} places do not fill rows={rows} evenly.")
        spectrum = torch.fft.fft2(self.rates.reshape(n_units, rows, -1))
        power = spectrum.abs().square()
        # a wave and the one that runs the other way are one wave
        opposite = power.flip(1, 2).roll((1, 1), (1, 2))
        columns = power.shape[2]
        down, right = (torch.arange(n, device=power.device) for n in (rows, columns))
        own = ((2 * down) % rows == 0)[:, None] & ((2 * right) % columns == 0)
        waves = torch.where(own, power, power + opposite)
        waves[:, 0, 0] = power[:, 0, 0] = 0.0
        total = power.sum((1, 2))
        return torch.where(total > 0, waves.amax((1, 2)) / total.clamp_min(torch.finfo(total.dtype).tiny), 0.0)


@checked
def rate_maps(activity: Float[Tensor, "time unit"], places: Int[Tensor, " when"], n_places: Count) -> RateMaps:
    """Rate maps of units.

    Args:
        activity: Of each unit over time.
        places: Where one is at each time.
        n_places: How many places there are.

    Raises:
        ShapeMismatch: Times differ, or a place is none of them.
    """
    if len(activity) != len(places) or not len(places):
        raise ShapeMismatch(f"activity at {len(activity)} times, and places at {len(places)}: both are of the same.")
    if int(places.min()) < 0 or int(places.max()) >= n_places:
        raise ShapeMismatch(f"places are 0 to {n_places - 1}; found {int(places.min())} to {int(places.max())}.")
    here = torch.nn.functional.one_hot(places, n_places).to(activity)
    times = here.sum(0)
    return RateMaps((activity.mT @ here) / times.clamp_min(1.0), times / len(places))


@checked
def shuffled_information(
    activity: Float[Tensor, "time unit"],
    places: Int[Tensor, " when"],
    n_places: Count,
    *,
    n_shuffles: Count = 100,
    seed: Natural = 0,
) -> Float[Tensor, "shuffle unit"]:
    """Spatial information of shuffled cells: activity shifted in time, its end put in front, places left as they are.

    Args:
        activity: Of each unit over time.
        places: Where one is at each time.
        n_places: How many places there are.
        n_shuffles: How many shifts are drawn.
        seed: Of the shifts.

    Raises:
        ShapeMismatch: As `rate_maps`.
    """
    generator = torch.Generator().manual_seed(seed)
    shifts = torch.randint(1, max(len(places), 2), (n_shuffles,), generator=generator).tolist()
    return torch.stack([rate_maps(activity.roll(by, 0), places, n_places).information() for by in shifts])
