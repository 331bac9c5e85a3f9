"""What every head of a run looks at, as one image without scripts: layers from the last down, heads side by side."""

import base64
import struct
import zlib
from html import escape

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from glassformer.figures.colours import LIGHT, Ramp
from glassformer.labelled import Labelled
from glassformer.serve.api import Thumbs
from glassformer.serve.questions import QUESTIONS
from glassformer.serve.runs import ServedRun
from glassformer.words import spoken

_CELLS, _SIDE, _GAP = 48, 72, 6  # of a pattern: cells along a side at most, pixels along a side at least; between two


def picture(run: ServedRun) -> str:
    """Return an image element with the patterns of all heads; empty where none has one. On the thread of the model."""
    arrays = QUESTIONS["thumbs"].answer(run, Thumbs(size=_CELLS)).arrays
    rows = [torch.cat(_tiles(one), 1) for one in reversed([*arrays.values()])]
    if not rows:
        return ""
    width = max(row.shape[1] for row in rows)
    image = torch.cat([_padded(row, width) for row in rows])
    told = spoken("What every head looks at: a row for each layer, the first at the bottom; dark is much.")
    data = base64.b64encode(png(image)).decode()
    return f'<p>{escape(told)}</p><img alt="{escape(told)}" src="data:image/png;base64,{data}">'


def _tiles(patterns: Labelled) -> list[UInt8[Tensor, "row column channel"]]:
    """Return the patterns of a layer as images with a margin, in the colours of pages."""
    values = patterns.values.flatten(0, -3).float().cpu()
    is_signed = bool((values < 0).any())
    limit = float(values.nan_to_num().abs().max()) or 1.0
    if is_signed:
        return [_framed(_coloured(one / limit, "diverging")) for one in values]
    return [_framed(_coloured(one, "sequential")) for one in values]


def _coloured(values: Float[Tensor, "query key"], ramp: Ramp) -> UInt8[Tensor, "query key channel"]:
    """Return the colours of numbers from -1 to 1 or 0 to 1, by their square root; of what has no number a third one."""
    stops = torch.tensor([_channels(colour) for colour in LIGHT.ramp(ramp)], dtype=torch.uint8)
    part = values.nan_to_num().sign() * values.nan_to_num().abs().clamp(max=1).sqrt()
    last = len(stops) - 1
    place = (part * last if ramp == "sequential" else (part + 1) / 2 * last).round().long()
    hidden = torch.tensor(_channels(LIGHT.undefined), dtype=torch.uint8)
    return torch.where(values.isnan()[..., None], hidden, stops[place])


def _channels(colour: str) -> list[int]:
    return list(bytes.fromhex(colour.removeprefix("#")))


def _framed(image: UInt8[Tensor, "row column channel"]) -> UInt8[Tensor, "pixel_row pixel_column channel"]:
    """Return an image with each cell as a square of whole pixels, and white around it."""
    by = -(-_SIDE // max(image.shape[:2]))
    large = image.repeat_interleave(by, 0).repeat_interleave(by, 1)
    return _padded(large, large.shape[1] + _GAP, large.shape[0] + _GAP)


def _padded(
    image: UInt8[Tensor, "row column channel"], width: int, height: int = 0
) -> UInt8[Tensor, "pixel_row pixel_column channel"]:
    """Return an image with white on its right and below it."""
    down, across = max(0, height - image.shape[0]), width - image.shape[1]
    return torch.nn.functional.pad(image, (0, 0, 0, across, 0, down), value=255)


def png(image: UInt8[Tensor, "row column 3"]) -> bytes:
    """Return an image of red, green and blue as a PNG file."""
    height, width, _ = image.shape
    # each row begins with how it is filtered: not at all
    rows = torch.nn.functional.pad(image.reshape(height, 3 * width), (1, 0)).contiguous()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows.numpy().tobytes(), 9)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
