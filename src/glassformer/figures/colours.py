"""The colours of every picture, on pages, in figures and on the terminal: one table, light and dark.

Numbers with a sign are blue below zero and orange above it, at any size; numbers without one run from the colour of the
paper to the darkest ink, or on dark paper to the lightest. The lightness of a ramp never turns back on either side of
zero, so that it reads in grey and with any colour vision.
"""

import bisect
import dataclasses
import itertools
import math
from functools import cache
from typing import Literal

Ramp = Literal["sequential", "diverging"]
STEPS = 257  # zero of a diverging ramp is the entry in the middle

# curves that stand beside each other, on light and dark paper (Okabe and Ito 2008)
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# what a terminal calls the two signs: its own blue is too dark to read on black
TERMINAL = {"positive": "yellow", "negative": "cyan"}


@dataclasses.dataclass(frozen=True)
class Palette:
    """The colours of one theme, as `#rrggbb`.

    Args:
        positive: Bars and points above zero.
        negative: Below zero.
        bar: Bars of numbers without a sign.
        undefined: Cells without a number.
        trained: Lines on maps, where a text goes beyond what the model was trained on.
        sequential: Stops of the ramp of numbers without a sign, from zero on.
        diverging: Stops of the ramp of numbers with a sign, zero in the middle.
    """

    positive: str
    negative: str
    bar: str
    undefined: str
    trained: str
    sequential: tuple[str, ...]
    diverging: tuple[str, ...]

    def ramp(self, kind: Ramp) -> tuple[str, ...]:
        """Return a ramp as `STEPS` colours, equally far from each other to the eye; of a diverging one on each side."""
        if kind == "sequential":
            return _between(self.sequential, STEPS)
        zero = len(self.diverging) // 2
        below, above = self.diverging[: zero + 1], self.diverging[zero:]
        return _between(below, STEPS // 2 + 1) + _between(above, STEPS // 2 + 1)[1:]


LIGHT = Palette(
    positive="#d0701f",
    negative="#3b78bd",
    bar="#2f7fa6",
    undefined="#dbdcd7",
    trained="#b1123f",
    sequential=("#f6f7f2", "#cfe5c8", "#6dbdb4", "#2f7fa6", "#27458c", "#1b1b4b"),
    diverging=("#0b3c7a", "#3b78bd", "#a9c9e8", "#f6f6f3", "#f3c392", "#d0701f", "#7a3400"),
)
DARK = Palette(
    positive="#ec8f38",
    negative="#5b9bea",
    bar="#3fa3b3",
    undefined="#363d46",
    trained="#ff8fb0",
    sequential=("#171b20", "#1d2f55", "#255f8c", "#2f9aa0", "#84cfa0", "#f4f3c0"),
    diverging=("#9cd0ff", "#5b9bea", "#25508c", "#171b20", "#8a4a12", "#ec8f38", "#ffb469"),
)

Triple = tuple[float, float, float]


@cache
def _between(stops: tuple[str, ...], n: int) -> tuple[str, ...]:
    """Return `n` colours on the way through some stops, equally far from each other to the eye."""
    places = [_oklab(stop) for stop in stops]
    ways = list(itertools.accumulate(map(math.dist, places, places[1:]), initial=0.0))
    found: list[str] = []
    for i in range(n):
        at = ways[-1] * i / (n - 1)
        left = min(bisect.bisect_right(ways, at), len(places) - 1) - 1
        (l0, a0, b0), (l1, a1, b1) = places[left], places[left + 1]
        part = (at - ways[left]) / (ways[left + 1] - ways[left])
        found.append(_hexadecimal((l0 + part * (l1 - l0), a0 + part * (a1 - a0), b0 + part * (b1 - b0))))
    return tuple(found)


def _oklab(colour: str) -> Triple:
    """Return a colour where equal steps look equal (Ottosson 2020)."""
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.793617785 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.428592205 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.808675766 * short,
    )


def _hexadecimal(place: Triple) -> str:
    lightness, a, b = place
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3
    mixed = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * short,
    )
    return "#" + "".join(f"{round(255 * min(1.0, max(0.0, _gamma(max(0.0, x))))):02x}" for x in mixed)


def _linear(x: float) -> float:
    return x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4


def _gamma(x: float) -> float:
    return 12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055
