"""What the factors say of a product is what the product says."""

import pytest
import torch
from hypothesis import given, strategies as st

from glassformer.errors import AnalysisUnavailable, ShapeMismatch
from glassformer.testing import close
from glassformer.weights import Factored
from glassformer.weights.largest import largest
from one_pass import in_one_pass


def _normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


shapes = st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 9), st.sampled_from([(), (3,), (2, 3)]))


def _draw(shape, seed=0):
    n, r, m, batch = shape
    return Factored(_normal(*batch, n, r, seed=seed), _normal(*batch, r, m, seed=seed + 1))


@given(shapes, st.integers(0, 99))
def test_norm_and_singular_values_are_those_of_the_product(shape, seed):
    m = _draw(shape, seed)
    close(m.norm(), m.dense().norm(dim=(-2, -1)))
    s = torch.linalg.svdvals(m.dense())
    k = min(s.shape[-1], m.singular_values().shape[-1])
    close(m.singular_values()[..., :k], s[..., :k])
    u, s, v = m.svd()
    close(u * s[..., None, :] @ v.mT, m.dense())


@given(st.integers(1, 9), st.integers(1, 12), st.sampled_from([(), (3,)]), st.integers(0, 99))
def test_eigenvalues_trace_and_diagonal_are_those_of_the_product(n, r, batch, seed):
    m = _draw((n, r, n, batch), seed)
    dense = m.dense()
    close(m.diagonal(), dense.diagonal(dim1=-2, dim2=-1))
    close(m.trace(), dense.diagonal(dim1=-2, dim2=-1).sum(-1))
    # power sums tell spectra apart without pairing them up; zeros add nothing to any
    small, big = m.eigenvalues(), torch.linalg.eigvals(dense)
    for power in range(1, 5):
        close((small**power).sum(-1).real, (big**power).sum(-1).real, 1e-8)
        close((small.abs() ** (2 * power)).sum(-1), (big.abs() ** (2 * power)).sum(-1), 1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_eigenvalues_have_one_order(seed: int) -> None:
    m = _draw((7, 5, 7, (3,)), seed)
    values = m.eigenvalues()
    assert bool((values.abs().diff() <= 0).all())
    # another way to the same values, and the same order of conjugates
    torch.testing.assert_close(m.mT.eigenvalues(), values, rtol=1e-7, atol=1e-9)


@given(shapes, st.integers(0, 99))
def test_products_sums_and_transposes_are_those_of_the_products(shape, seed):
    m = _draw(shape, seed)
    n, r, p, batch = shape
    other, square = _draw((n, 3, p, batch), seed + 7), _normal(p, 5)
    close((m + other).dense(), m.dense() + other.dense())
    close((m - other).dense(), m.dense() - other.dense())
    close((-2.0 * m).dense(), -2.0 * m.dense())
    close(m.mT.dense(), m.dense().mT)
    close((m @ square).dense(), m.dense() @ square)
    close((_normal(4, n) @ m).dense(), _normal(4, n) @ m.dense())
    chained = m @ other.mT
    close(chained.dense(), m.dense() @ other.dense().mT)
    assert chained.rank == min(r, 3)
    close(m.centred(rows=True).dense(), m.dense() - m.dense().mean(-1, keepdim=True))
    close(m.centred(columns=True).dense(), m.dense() - m.dense().mean(-2, keepdim=True))


@given(shapes, st.integers(0, 99))
def test_rows_columns_and_members_are_those_of_the_product(shape, seed):
    m = _draw(shape, seed)
    dense = m.dense()
    close(m.rows(0), dense[..., 0, :])
    close(m.columns(slice(0, 2)), dense[..., :2])
    close(m.rows(torch.tensor([0, 0])), dense[..., [0, 0], :])
    if m.batch:
        close(m[0].dense(), dense[0])
        close(m.sum().dense(), dense.sum(len(m.batch) - 1))


@given(shapes, st.integers(1, 20), st.integers(1, 30), st.booleans(), st.booleans(), st.integers(0, 99))
def test_the_largest_entries_are_found_whatever_the_block(shape, k, block, largest, by_size, seed):
    m = _draw(shape, seed)
    found = m.top(k, largest=largest, by_size=by_size, block=block)
    flat = m.dense().flatten(-2)
    order = (flat.abs() if by_size else flat).topk(min(k, flat.shape[-1]), -1, largest=largest or by_size).indices
    close(found.values, flat.gather(-1, order))
    close(flat.gather(-1, found.rows * m.shape[-1] + found.columns), found.values)


@in_one_pass
@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize("kind", ["even", "falling", "nearly constant", "zero"])
def test_screening_and_bounds_lose_none_of_the_largest(kind, by_size, coarse):
    left, right = _normal(90, 6), _normal(6, 70, seed=1)
    if kind == "falling":
        left, right = left * 0.4 ** torch.arange(6), right * torch.linspace(0.01, 3, 70)
    if kind == "nearly constant":
        left, right = left * 1e-4, right * 1e-4
        left[:, 0], right[0] = 5.0, -1.0
    left = left * (kind != "zero")
    dense = left @ right
    for k in (1, 13, 200):
        values, places = largest(left, right, k, by_size=by_size, block=64, coarse=coarse)
        expected = (dense.abs() if by_size else dense).flatten().topk(k).values
        close(values.abs() if by_size else values, expected)
        close(dense.flatten()[places], values)
        assert len(places.unique()) == k


def test_numbers_that_are_not_finite_have_no_largest():
    with pytest.raises(AnalysisUnavailable, match="finite"):
        Factored(torch.full((2, 1), torch.nan), _normal(1, 2)).top(1)


def test_the_norm_of_a_product_depends_on_the_order():
    a, b = _normal(6, 2), _normal(2, 6, seed=1)
    assert abs(float(Factored(a, b).norm()) - float(torch.linalg.matrix_norm(b @ a))) > 0.5
    close(Factored(a, b).trace(), (b @ a).trace())


def test_gradients_pass_through_the_factors():
    left, right = _normal(5, 2).requires_grad_(), _normal(2, 5, seed=1).requires_grad_()
    m = Factored(left, right)
    (m.norm() + m.trace() + m.diagonal().square().sum()).backward()
    dense = (left.detach() @ right.detach()).requires_grad_()
    (dense.norm() + dense.trace() + dense.diagonal().square().sum()).backward()
    assert left.grad is not None and right.grad is not None and dense.grad is not None
    close(left.grad, dense.grad @ right.detach().mT)
    close(right.grad, left.detach().mT @ dense.grad)


def test_grouped_batches_broadcast():
    left, right = _normal(4, 1, 5, 2), _normal(3, 2, 5)
    m = Factored(left, right)
    assert m.shape == (4, 3, 5, 5)
    close(m[1, 2].dense(), left[1, 0] @ right[2])


@in_one_pass
@pytest.mark.parametrize(
    ("what", "match"),
    [
        (lambda: Factored(_normal(3, 2), _normal(3, 2)), "one rank"),
        (lambda: Factored(_normal(2, 3, 2), _normal(3, 2, 4)), "broadcast"),
        (lambda: Factored(_normal(3, 2), _normal(2, 4)).trace(), "square"),
        (lambda: Factored(_normal(3, 2), _normal(2, 4))[0], "no batch axis"),
        (lambda: Factored(_normal(3, 2), _normal(2, 4)) + Factored(_normal(2, 2), _normal(2, 4)), "cannot add"),
    ],
)
def test_shapes_that_do_not_fit_say_so(what, match):
    with pytest.raises(ShapeMismatch, match=match):
        what()


def test_batch_axes_broadcast_as_those_of_tensors_do():
    for a, b in (((), (3,)), ((2, 1), (3,)), ((1,), (0,)), ((4, 1, 2), (1, 5, 2))):
        product = Factored(torch.ones(*a, 2, 3), torch.ones(*b, 3, 4))
        assert product.batch == torch.broadcast_shapes(a, b)
        assert product.dense().shape[:-2] == product.batch
    with pytest.raises(ShapeMismatch, match="do not broadcast"):
        Factored(torch.ones(2, 2, 3), torch.ones(3, 3, 4))
    with pytest.raises(ShapeMismatch, match="do not broadcast"):
        _ = Factored(torch.ones(2, 2, 3), torch.ones(3, 4)) + Factored(torch.ones(3, 2, 3), torch.ones(3, 4))
