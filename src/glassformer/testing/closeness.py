"""Comparing tensors: `from glassformer.testing import close`."""

import torch
from torch import Tensor


def close(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
    """Assert that two tensors agree, with errors measured against the size of the reference.

    Args:
        actual: What the code under test gave.
        expected: The reference; its root mean square is the unit of the error (1 if the reference is all zeros).
        tolerance: Largest allowed error in that unit. Default: 1e-9 in float64, 1e-5 otherwise.
    """
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if tolerance is None:
        tolerance = 1e-9 if expected.dtype == torch.float64 else 1e-5
    actual, expected = actual.detach().double(), expected.detach().double()
    unit = expected.square().mean().sqrt() if expected.any() else 1.0
    error = (actual - expected).abs() / unit
    # written so that NaN fails
    if not (error <= tolerance).all():
        worst = tuple(int(i) for i in torch.unravel_index(error.nan_to_num(torch.inf).argmax(), error.shape))
        raise AssertionError(
            f"error {error[worst]:.3g} of the reference's RMS at {worst}, allowed {tolerance:.3g}: "
            f"got {actual[worst]:.9g}, expected {expected[worst]:.9g}"
        )
