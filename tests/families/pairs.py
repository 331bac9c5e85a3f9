"""What the parity test of an encoder-decoder does; no family of its own."""

from pathlib import Path
from typing import Any

import torch

from families import TOLERANCE, compared_whole, reference_folder


def check_pair(kind: Any, config: Any, folder: Path, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """Compare an encoder-decoder with its reference in everything; return the largest error of each comparison."""
    theirs = reference_folder(kind, config, folder, dtype)
    return compare_pair(theirs, folder, dtype)


def compare_pair(theirs: Any, folder: Path, dtype: torch.dtype) -> dict[str, float]:
    """Compare a reference with the folder it was saved in."""
    errors, _ = compared_whole(theirs, folder, dtype, length=9, first=3)
    bad = {name: error for name, error in errors.items() if not error <= TOLERANCE[dtype]}
    assert not bad, f"beyond {TOLERANCE[dtype]} of the reference: {bad}"
    return errors
