"""What a picture of an image's patches shows: the colours of a canvas, and whether they are those of numbers."""

import base64
from functools import cache
from typing import Any

import numpy as np
from playwright.sync_api import Locator

from glassformer.figures.colours import LIGHT


def drawn(picture: Locator) -> Any:
    """Return the colours of a canvas, `row column colour`: red, green and blue."""
    script = """canvas => {
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
        copy.drawImage(canvas, 0, 0);
        const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
        return [canvas.height, canvas.width, btoa([...data].map(byte => String.fromCharCode(byte)).join(''))];
    }"""
    height, width, data = picture.evaluate(script)
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)[..., :3].astype(int)


@cache
def ramp(signed: bool) -> tuple[str, ...]:
    return LIGHT.ramp("diverging" if signed else "sequential")


def colour(weight: float, limit: float, *, signed: bool) -> list[int]:
    """Return the colour of a number on light paper."""
    share = (abs(weight) / limit) ** 0.5 * (1 if weight > 0 else -1) if limit else 0.0
    hexadecimal = ramp(signed)[int(128 + 128 * share + 0.5) if signed else int(256 * max(0.0, share) + 0.5)]
    return [int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5)]


def shows(picture: Locator, found: dict[str, Any], weights: list[float], limit: float, *, signed: bool = False) -> bool:
    """Whether each patch of a picture is filled with the colour of its number: whatever its outlines, most of it."""
    rows, columns, outside = found["grid"]
    colours = drawn(picture)
    patch = len(colours) // rows
    assert len(colours) == patch * rows and len(colours[0]) == patch * columns
    for i, weight in enumerate(weights[outside:]):
        top, left = i // columns * patch, i % columns * patch
        inside = colours[top : top + patch, left : left + patch]
        if (abs(inside - colour(weight, limit, signed=signed)).max(-1) <= 3).mean() < 1 / 3:
            return False
    return True
