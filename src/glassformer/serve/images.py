"""Images that runs of a model may read: those that a server was started with, and no others."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ServedImage:
    """One image.

    Args:
        pixels: Its numbers, of one row.
        code: The Python expression that gives them.
        imports: Lines that import what the expression names.
    """

    pixels: Float[Tensor, "batch channel row column"]
    code: str
    imports: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Hash of its numbers."""
        return hashlib.sha256(self.pixels.double().cpu().numpy().tobytes()).hexdigest()
