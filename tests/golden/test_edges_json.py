"""Path patching, edge attribution and ACDC on random models of every wiring: the stored numbers."""

import json

import pytest
import torch

from edge_recordings import RECORDED, STORED, recording
from glassformer.testing import close

slow = pytest.mark.full


@pytest.mark.parametrize("name", [n if n == "sandwich" else pytest.param(n, marks=slow) for n in RECORDED])
def test_analyses_of_edges_measure_the_stored_numbers(name: str) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))[name]
    found = recording(name)
    assert list(found) == list(stored)
    for what, values in stored.items():
        expected = torch.tensor(values, dtype=torch.float64)
        # of logits near 1: what all but cancels in them is rounded to about 1e-15, by each processor its own way
        tolerance = max(1e-9, 1e-14 / max(float(expected.square().mean().sqrt()), 1e-9))
        close(torch.tensor(found[what], dtype=torch.float64), expected, tolerance)
