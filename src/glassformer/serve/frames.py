"""Arrays on the wire: the layout of safetensors, with each array in as few bytes as its picture needs.

    f32       the numbers                                                    what is read out
    f16       rounded to 11 bits, in units of `scale`                        error <= |x| / 2048 + scale / 2^24
    sqrt8     u8 of sqrt(x / scale) * 254, for what is never negative        error <= scale * (s + 1/1016) / 254
    signed8   i8 of sign(x) sqrt(|x| / scale) * 127                          error <= scale * (s + 1/508) / 127
    lin8      u8 of (x - low) / scale * 254                                  error <= scale / 508
    s = sqrt(|x| / scale)

A square root keeps what a linear byte would show as zero. What has no number (a masked score) is 255, or -128 of
signed8, and NaN of floats; 0 is zero.

A reduced picture has in each cell the number of largest size of the block it stands for, so that nothing is lost by
shrinking. `tril` leaves out what a causal mask hides: row i has i + 1 entries.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.files import json_text
from glassformer.numerics.precision import wide

Encoding = Literal["f32", "f16", "sqrt8", "signed8", "lin8"]
Packing = Literal["full", "tril"]
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
HEADER = "glassformer"  # of a frame's metadata: JSON on the arrays in it
_HALF = 2.0**15  # what float16 holds, with room


@dataclass(frozen=True)
class Encoded:
    """An array as it is sent.

    Args:
        values: What is sent.
        encoding: What its numbers are.
        packing: `tril` if the last two axes are packed into one.
        shape: Of the array, before it was packed.
        scale: Unit of the encoding; 1 of f32.
        low: What lin8 counts from.
    """

    values: Tensor
    encoding: Encoding
    packing: Packing
    shape: tuple[int, ...]
    scale: float = 1.0
    low: float = 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """What a reader has to know besides the bytes, as JSON data."""
        return {
            "encoding": self.encoding, "packing": self.packing, "shape": list(self.shape), "scale": self.scale,
            "low": self.low,
        }  # fmt: skip

    def decoded(self) -> Tensor:
        """The array again, in float32, NaN where there is no number."""
        values = self.values.float()
        if self.encoding == "f16":
            values = values * self.scale
        elif self.encoding == "sqrt8":
            values = torch.where(self.values == 255, torch.nan, (values / 254) ** 2 * self.scale)
        elif self.encoding == "signed8":
            number = values.sign() * (values / 127) ** 2 * self.scale
            values = torch.where(self.values == -128, torch.nan, number)
        elif self.encoding == "lin8":
            values = torch.where(self.values == 255, torch.nan, values / 254 * self.scale + self.low)
        return values if self.packing == "full" else unpacked(values, self.shape)


def encoded(values: Tensor, encoding: Encoding = "f32", packing: Packing = "full") -> Encoded:
    """Return an array as it is sent.

    Args:
        values: Numbers; what is not finite counts as missing.
        encoding: What is sent of each.
        packing: `tril` for square matrices along the last two axes that have nothing above the diagonal.

    Raises:
        AnalysisUnavailable: sqrt8 of negative numbers.
        ShapeMismatch: tril of what is not square.
    """
    shape = tuple(values.shape)
    values = wide(values.detach()).float().cpu()
    values = packed(values) if packing == "tril" else values
    there = values.isfinite()
    known = torch.where(there, values, 0.0)
    size = float(known.abs().max()) if known.numel() else 0.0
    scale = size or 1.0
    if encoding == "f32":
        return Encoded(torch.where(there, values, torch.nan).contiguous(), encoding, packing, shape)
    if encoding == "f16":
        # a power of two, so that nothing but the rounding of 11 bits is lost
        scale = 1.0 if size < _HALF else 2.0 ** (torch.tensor(size / _HALF).log2().ceil().item())
        half = torch.where(there, values / scale, torch.nan).half()
        return Encoded(half.contiguous(), encoding, packing, shape, scale)
    if encoding == "sqrt8":
        if bool((known < 0).any()):
            raise AnalysisUnavailable("sqrt8 is of numbers that are never negative, and some are: ask for signed8.")
        codes = (known / scale).sqrt().mul(254).round()
        return Encoded(torch.where(there, codes, 255.0).to(torch.uint8), encoding, packing, shape, scale)
    if encoding == "signed8":
        codes = known.sign() * (known.abs() / scale).sqrt().mul(127).round()
        return Encoded(torch.where(there, codes, -128.0).to(torch.int8), encoding, packing, shape, scale)
    low = float(values[there].min()) if bool(there.any()) else 0.0
    span = (float(values[there].max()) - low if bool(there.any()) else 0.0) or 1.0
    codes = ((known - low) / span * 254).round()
    return Encoded(torch.where(there, codes, 255.0).to(torch.uint8), encoding, packing, shape, span, low)


def packed(values: Tensor) -> Tensor:
    """Return matrices without what lies above the diagonal, row behind row; raises `ShapeMismatch` if not square."""
    if values.ndim < 2 or values.shape[-1] != values.shape[-2]:
        raise ShapeMismatch(
            f"tril packs square matrices; this array is {'x'.join(map(str, values.shape))}: ask for full."
        )
    # slices of rows: far quicker than a list of indices
    return torch.cat([values[..., row, : row + 1] for row in range(values.shape[-1])], -1)


def unpacked(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return what `packed` was given, with NaN above the diagonal."""
    found, at = values.new_full(shape, torch.nan), 0
    for row in range(shape[-1]):
        found[..., row, : row + 1] = values[..., at : at + row + 1]
        at += row + 1
    return found


def reduced(values: Tensor, rows: int, columns: int) -> Tensor:
    """Return matrices of at most so many rows and columns: of each block the number of largest size, with its sign.

    A block without any number has none (NaN).
    """
    height, width = values.shape[-2:]
    down, across = -(-height // max(1, rows)), -(-width // max(1, columns))
    if down == across == 1:
        return values

    def largest(values: Tensor) -> Tensor:
        """Of each block, or -inf of one without any number."""
        values = values.nan_to_num(-torch.inf, -torch.inf, -torch.inf)
        # blocks at the edge reach beyond it
        if height % down or width % across:
            values = torch.nn.functional.pad(values, (0, -width % across, 0, -height % down), value=-torch.inf)
        # along rows first, which lie in one piece: both at once takes three times as long
        return values.unflatten(-1, (-1, across)).amax(-1).unflatten(-2, (-1, down)).amax(-2)

    high = largest(values)
    # numbers that have no sign need no second look
    if not bool((values < 0).any()):
        return high.masked_fill(high == -torch.inf, torch.nan)
    low = -largest(-values)
    return torch.where(high >= -low, high, low).masked_fill(high == -torch.inf, torch.nan)


def frame(arrays: Mapping[str, Encoded], facts: Mapping[str, Any]) -> bytes:
    """Return arrays in the layout of safetensors; the header says how to read each, and carries further facts."""
    from safetensors.torch import save

    told = dict(facts) | {
        "arrays": {name: dict(facts.get("arrays", {}).get(name, {})) | one.facts for name, one in arrays.items()}
    }
    return save({name: one.values.contiguous() for name, one in arrays.items()}, {HEADER: json_text(told)})


def read_frame(content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the arrays of a frame, in float32, and its facts: the inverse of `frame` up to what encodings lose."""
    from safetensors.torch import load

    length = int.from_bytes(content[:8], "little")
    facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][HEADER])
    arrays: dict[str, Tensor] = {}
    for name, values in load(content).items():
        told = facts["arrays"][name]
        shape = tuple(told["shape"])
        one = Encoded(values, told["encoding"], told["packing"], shape, told["scale"], told["low"])
        arrays[name] = one.decoded()
    return arrays, facts
