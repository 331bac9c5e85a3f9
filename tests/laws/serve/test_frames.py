"""What a frame loses is bounded by what its encoding says, and a reduced picture keeps the largest of each block."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.serve.frames import ENCODINGS, Encoding, encoded, frame, read_frame, reduced
from glassformer.testing.layers import seeds


def drawn(seed: int, size: float, *, negative: bool = True, missing: bool = True, n: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    # over many orders of magnitude, as weights of attention are
    values = torch.randn(2, n, n, generator=generator) * torch.rand(2, n, n, generator=generator) ** 6 * size
    values = values if negative else values.abs()
    return values.masked_fill(torch.rand(2, n, n, generator=generator) < 0.2, torch.nan) if missing else values


def bound(values: Tensor, encoding: Encoding) -> Tensor:
    """How far a decoded number may be from what was sent, as the module says."""
    known = values[values.isfinite()].double()
    largest, size = values.nan_to_num().abs().max().double(), values.double().abs()
    scale = largest if largest > 0 else torch.tensor(1.0)
    root = (size / scale).sqrt()
    return {
        "f32": torch.zeros_like(size),
        "f16": size / 2048 + 2.0**-24 * max(1.0, float(scale) / 2**14),
        "sqrt8": scale * (root + 1 / 1016) / 254,
        "signed8": scale * (root + 1 / 508) / 127,
        "lin8": torch.full_like(size, float((known.max() - known.min()) if len(known) else 0.0) / 508),
    }[encoding]


@given(seed=seeds, size=st.sampled_from([1e-6, 1.0, 1e6]))
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_decoded_number_is_within_the_bound(encoding: Encoding, seed: int, size: float) -> None:
    values = drawn(seed, size, negative=encoding != "sqrt8")
    found, facts = read_frame(frame({"x": encoded(values, encoding)}, {"question": "pattern"}))
    assert facts["question"] == "pattern" and facts["arrays"]["x"]["encoding"] == encoding
    there = values.isfinite()
    assert torch.equal(found["x"].isfinite(), there)
    # float32 at both ends rounds too
    slack = 4e-7 * values.double().abs() + 1e-12
    assert bool(((found["x"].double() - values.double()).abs() <= bound(values, encoding) + slack)[there].all())
    zero = values == 0
    assert bool((found["x"][zero] == 0).all())


@given(seed=seeds)
def test_what_lies_below_the_diagonal_survives_packing(seed: int) -> None:
    values = drawn(seed, 1.0, missing=False)
    sent = encoded(values, packing="tril")
    assert sent.values.shape == (2, 45)
    found = read_frame(frame({"x": sent}, {}))[0]["x"]
    assert torch.equal(found.tril().nan_to_num(), values.tril()) and bool(found.triu(1).isnan().any())


@given(seed=seeds, rows=st.integers(1, 10), columns=st.integers(1, 10), n=st.integers(1, 9))
def test_a_lone_bright_cell_survives_shrinking(seed: int, rows: int, columns: int, n: int) -> None:
    values = drawn(seed, 1.0, n=n)
    small = reduced(values, rows, columns)
    assert small.shape[-2] <= rows and small.shape[-1] <= columns
    for whole, part in zip(values, small):
        if bool(whole.isfinite().any()):
            largest = whole.nan_to_num().flatten()[whole.nan_to_num().abs().argmax()]
            assert bool((part == largest).any())
        down, across = -(-n // rows), -(-n // columns)
        for i in range(part.shape[0]):
            for j in range(part.shape[1]):
                cells = whole[i * down : (i + 1) * down, j * across : (j + 1) * across]
                known = cells[cells.isfinite()]
                assert part[i, j].isnan() if not len(known) else part[i, j].abs() == known.abs().max()


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AnalysisUnavailable, match="signed8"):
        encoded(torch.tensor([-1.0]), "sqrt8")
    with pytest.raises(ShapeMismatch, match="2x3"):
        encoded(torch.zeros(2, 3), packing="tril")
