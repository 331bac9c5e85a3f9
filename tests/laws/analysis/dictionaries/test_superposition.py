"""Superposition of directions: known figures, tight frames, what a rotation leaves alone, and bad input."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from glassformer.analysis.dictionaries import TopK, superposition
from glassformer.errors import AnalysisUnavailable, ShapeMismatch


def polygon(n: int) -> Tensor:
    angles = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    return torch.stack((angles.cos(), angles.sin()), -1)


def antiprism() -> Tensor:
    """Two squares above one another, one turned by half a right angle, as far apart as makes a tight frame."""
    height = math.sqrt(1 / 2)
    square = polygon(4)
    turned = square @ torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64) / math.sqrt(2)
    corners = [torch.cat((ring, torch.full((4, 1), z, dtype=torch.float64)), -1)
               for ring, z in ((square, height), (turned, -height))]  # fmt: skip
    return torch.nn.functional.normalize(torch.cat(corners), dim=-1)


def rotation(n: int, seed: int) -> Tensor:
    drawn = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0]


TETRAHEDRON = torch.tensor([x for x in product((-1.0, 1.0), repeat=3) if math.prod(x) > 0], dtype=torch.float64)
FIGURES = {
    "orthonormal": (torch.eye(4, dtype=torch.float64), 1.0),
    "antipodal": (torch.tensor([[1.0], [-1.0]], dtype=torch.float64), 1 / 2),
    "triangle": (polygon(3), 2 / 3),
    "tetrahedron": (TETRAHEDRON / math.sqrt(3), 3 / 4),
    "pentagon": (polygon(5), 2 / 5),
    "square antiprism": (antiprism(), 3 / 8),
}


@pytest.mark.parametrize("name", FIGURES)
def test_published_figures(name):
    rows, share = FIGURES[name]
    found = superposition(rows @ rotation(rows.shape[1], 1))
    assert (found.dimensionality.values - share).abs().max() < 1e-12
    # tight frames: shares of dimensions add up to all of them
    assert abs(float(found.dimensionality.values.sum()) - rows.shape[1]) < 1e-12


def test_equals_sums_over_pairs():
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[2] = 0
    found = superposition(rows)
    for i, row in enumerate(rows):
        length = float(row.norm())
        overlaps = [float((row @ other / length) ** 2) if length else 0.0 for other in rows]
        assert abs(float(found.norm.values[i]) - length) < 1e-12
        assert abs(float(found.interference.values[i]) - sum(overlaps[:i] + overlaps[i + 1 :])) < 1e-12
        assert abs(float(found.dimensionality.values[i]) - (length**2 / sum(overlaps) if length else 0)) < 1e-12
    assert abs(found.dimensions_per_feature - 3 / float(rows.square().sum())) < 1e-12


def test_of_a_dictionary_are_decoder_rows():
    dictionary = TopK(d_in=6, n_features=9, k=2).build(0)
    found, rows = superposition(dictionary), superposition(dictionary.W_dec)
    assert torch.equal(found.dimensionality.values, rows.dimensionality.values)
    assert found.dimensions == 6


def test_refusals():
    assert superposition(torch.zeros(2, 3)).dimensions_per_feature == math.inf
    with pytest.raises(ShapeMismatch, match="feature width"):
        superposition(torch.zeros(3))
    for bad in (torch.zeros(0, 3), torch.full((2, 2), torch.nan)):
        with pytest.raises(AnalysisUnavailable, match="no directions"):
            superposition(bad)
