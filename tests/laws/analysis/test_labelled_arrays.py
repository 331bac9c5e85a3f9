"""Labelled tensors behave as arrays: their numbers are those of the bare tensors, and labels stay with them."""

# functions of torch are said to take tensors alone
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false, reportUnusedExpression=false

import operator

import numpy
import pytest
import torch

import glassformer as gf
from glassformer.errors import ShapeMismatch, UnknownAxis, WrongArgument
from glassformer.labelled import Labelled
from glassformer.labelled.tensor import RowLabels

TOKENS = ["0:a", "1:b", "2:c", "3:d"]
VALUES = torch.linspace(0.05, 0.95, 24, dtype=torch.float64).reshape(2, 3, 4)
PATTERN = Labelled(VALUES, ("batch", "head", "key"), {"head": ["L0H0", "L0H1", "L0H2"], "key": TOKENS}, of="a test")
ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"]
OF_TWO = [
    "atan2",
    "fmod",
    "logaddexp",
    "maximum",
    "minimum",
    "remainder",
    "true_divide",
    "isclose",
    "floor_divide",
    "div",
    "rsub",
]


def padded() -> Labelled:
    rows: dict[str, RowLabels] = {"pos": [["0:x", "1:y", None], ["0:u", "1:v", "2:w"]]}
    values = torch.tensor([[1.0, 2.0, 99.0], [3.0, 4.0, 5.0]])
    return Labelled(values, ("batch", "pos"), rows=rows)


def same(found: object, values: torch.Tensor, like: Labelled) -> None:
    assert isinstance(found, Labelled) and found.values.dtype == values.dtype
    # dividing a number multiplies by the reciprocal, dividing a tensor of one does not
    assert torch.allclose(found.values, values, rtol=1e-14, atol=0)
    assert (found.axes, dict(found.coords), dict(found.rows)) == (like.axes, dict(like.coords), dict(like.rows))


def test_indexing_picks_what_the_bare_tensor_gives_and_keeps_the_labels_of_axes_that_remain():
    for place in (0, -1, (0, 0), (1, -1, 2), (..., -1), (0, ..., 1), slice(1, None), (slice(None), [2, 0]), ..., ()):
        found = PATTERN[place]
        assert torch.equal(found.values, VALUES[place])
        assert all(found.coords[axis] in (TOKENS, ["L0H0", "L0H1", "L0H2"], ["L0H2", "L0H0"]) for axis in found.coords)
    assert PATTERN[0, -1].axes == ("key",) and PATTERN[:, [2, 0]].labels("head") == ["L0H2", "L0H0"]
    assert PATTERN[..., "2:c"].axes == ("batch", "head") and float(PATTERN[1, 2, 3]) == float(VALUES[1, 2, 3])
    # places on two axes are a grid, as in `select` and in xarray
    assert torch.equal(PATTERN[:, [0, 1], [0, 1]].values, VALUES[:, :2, :2])
    late = PATTERN.select(batch=0, head=0) > 0.1
    assert PATTERN[..., late.values].labels("key") == [t for t, kept in zip(TOKENS, late.values.tolist()) if kept]
    assert PATTERN[0, 0][late].labels("key") == PATTERN[..., late.values].labels("key")
    for wrong in ((0, 0, 0, 0), None, (..., ...), 7, PATTERN > 0.5):
        with pytest.raises(ShapeMismatch):
            PATTERN[wrong]
    with pytest.raises(UnknownAxis, match="2:c"):
        PATTERN[..., "2:x"]


def test_rows_of_unequal_length_are_indexed_as_select_does():
    found = padded()
    assert found[0].values.tolist() == [1.0, 2.0] and found[0].labels("pos") == ["0:x", "1:y"]
    assert found[:, -1].values.tolist() == [2.0, 5.0]
    assert [row.values.tolist() for row in found] == [[1.0, 2.0], [3.0, 4.0, 5.0]]


def test_length_iteration_and_truth_are_those_of_an_array():
    assert len(PATTERN) == 2 and [one.axes for one in PATTERN] == [("head", "key")] * 2
    assert bool(PATTERN[0, 0, 0] > 0) and not bool(PATTERN[0, 0, 0] > 1)
    with pytest.raises(ShapeMismatch, match="batch head key"):
        bool(PATTERN)
    for of_one in (len, list):
        with pytest.raises(WrongArgument, match="single number"):
            of_one(PATTERN[0, 0, 0])


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_is_that_of_the_numbers_and_keeps_labels(name: str):
    function = getattr(operator, name)
    other = VALUES.flip(0) + 0.5
    labelled = Labelled(other.permute(2, 0, 1), ("key", "batch", "head"), {"key": TOKENS})
    by_key = Labelled(other[0, 0], ("key",))
    for operand, bare in (
        (0.3, 0.3), (2, 2), (numpy.float64(0.3), 0.3), (other, other), (other.numpy(), other), (other[0], other[0]),
        (labelled, other), (by_key, other[0, 0]), (Labelled(torch.tensor(0.3), ()), torch.tensor(0.3)),
    ):  # fmt: skip
        same(function(PATTERN, operand), function(VALUES, bare), PATTERN)
        turned = function(operand, PATTERN)
        # of two that are labelled the first says the order
        order = [turned.axes.index(axis) for axis in PATTERN.axes]
        same(Labelled(turned.values.permute(order), PATTERN.axes, turned.coords), function(bare, VALUES), PATTERN)
    assert (PATTERN == None) is False and (PATTERN != "a") is True  # noqa: E711  # what is no number is another thing


def test_signs_and_masks_keep_labels_and_products_of_matrices_are_bare():
    same(-PATTERN, -VALUES, PATTERN)
    same(abs(-PATTERN), VALUES, PATTERN)
    same(~(PATTERN > 0.5), VALUES <= 0.5, PATTERN)
    same((PATTERN > 0.2) & (PATTERN < 0.5), (VALUES > 0.2) & (VALUES < 0.5), PATTERN)
    for matrix in (VALUES.mT, VALUES.mT.numpy(), Labelled(VALUES.mT, ("batch", "key", "head"))):
        assert torch.equal(PATTERN @ matrix, VALUES @ VALUES.mT) and torch.equal(matrix @ PATTERN, VALUES.mT @ VALUES)


def test_labels_stay_as_far_as_operands_agree_on_them():
    other = Labelled(VALUES, PATTERN.axes, {"head": ["L1H0", "L1H1", "L1H2"], "key": TOKENS}, of="another")
    found = PATTERN - other
    assert dict(found.coords) == {"key": TOKENS} and found.of == ""
    a, b = padded(), Labelled(padded().values, ("batch", "pos"), rows={"pos": [["p", "q", None], ["r", "s", "t"]]})
    assert (a + b).rows == {"pos": [[0, 1, None], [0, 1, 2]]} and (a * 2).rows == a.rows
    with pytest.raises(ShapeMismatch, match='"pos": padding stands elsewhere'):
        a + Labelled(a.values, a.axes, rows={"pos": [["p", None, None], ["r", "s", "t"]]})


def test_axes_that_do_not_match_are_named():
    for other, named in (
        (Labelled(torch.zeros(5), ("key",)), "no key=5"),
        (Labelled(torch.zeros(3, 4, 2), ("head", "query", "batch")), "no query=4"),
        (torch.zeros(3), r"\(3,\) does not fit Labelled\(batch=2 head=3 key=4"),
        (torch.zeros(1, 2, 3, 4), r"\(1, 2, 3, 4\) does not fit"),
    ):
        with pytest.raises(ShapeMismatch, match=named):
            PATTERN + other
    with pytest.raises(TypeError):
        PATTERN + "1"  # type: ignore[operator]


def test_numpy_and_matplotlib_take_them_as_arrays():
    assert numpy.array_equal(numpy.asarray(PATTERN), VALUES.numpy()) and numpy.asarray(PATTERN, "float32").dtype == "f4"
    half = Labelled(torch.ones(2, dtype=torch.bfloat16), ("key",))
    assert numpy.asarray(half).tolist() == [1.0, 1.0] and numpy.array(PATTERN[0, 0], copy=True).shape == (4,)
    assert numpy.allclose(numpy.exp(PATTERN), VALUES.exp().numpy())
    # padding is no number
    assert numpy.isnan(numpy.asarray(padded())).tolist() == [[False, False, True], [False, False, False]]
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    assert axes.imshow(PATTERN[0]).get_array().shape == (3, 4)
    assert axes.plot(PATTERN[0, 0])[0].get_ydata().tolist() == VALUES[0, 0].tolist()


def test_torch_makes_a_tensor_of_them_and_what_only_tensors_have_is_said_to_be_there():
    for found in (torch.as_tensor(PATTERN), torch.tensor(PATTERN), torch.from_dlpack(PATTERN)):
        assert type(found) is torch.Tensor and torch.equal(found, VALUES)
    assert torch.as_tensor(padded()).isnan().tolist() == [[False, False, True], [False, False, False]]
    with pytest.raises(AttributeError, match=r'no "mean": take it of the numbers, \.values\.mean'):
        PATTERN.mean("head")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r'no "meen"\.'):
        PATTERN.meen  # type: ignore[attr-defined]  # noqa: B018


def test_functions_of_torch_keep_labels_where_entries_stay_and_give_bare_numbers_otherwise():
    for name in ["abs", "exp", "log", "sigmoid", "relu", "sqrt", "neg", "isnan", "square", "round"]:
        same(getattr(torch, name)(PATTERN), getattr(torch, name)(VALUES), PATTERN)
    for name in OF_TWO:
        same(getattr(torch, name)(PATTERN, 2 * PATTERN), getattr(torch, name)(VALUES, 2 * VALUES), PATTERN)
    same(torch.softmax(PATTERN, PATTERN.dim("key")), torch.softmax(VALUES, -1), PATTERN)
    same(torch.nn.functional.log_softmax(PATTERN, dim=1), VALUES.log_softmax(1), PATTERN)
    same(torch.where(PATTERN > 0.5, PATTERN, 0.0), torch.where(VALUES > 0.5, VALUES, 0.0), PATTERN)
    same(VALUES + PATTERN, 2 * VALUES, PATTERN)
    for found, values in (
        (torch.mean(PATTERN, dim=1), VALUES.mean(1)),
        (torch.stack([PATTERN, PATTERN]), torch.stack([VALUES, VALUES])),
        (torch.einsum("bhk,bhk->b", PATTERN, VALUES), (VALUES * VALUES).sum((1, 2))),
        (torch.flip(PATTERN, [0]), VALUES.flip(0)),
        (torch.matmul(PATTERN, VALUES.mT), VALUES @ VALUES.mT),
    ):
        assert type(found) is torch.Tensor and torch.equal(found, values)
    assert torch.allclose(PATTERN, VALUES)


def test_padding_is_not_taken_for_numbers():
    found = padded()
    assert torch.mean(found).isnan() and torch.softmax(found, -1).values[0].isnan().all()
    # what is edited with such values goes through padding as it was
    assert (2 * found).values.tolist() == (2 * found.values).tolist()


def test_gradients_flow_through_them():
    run = gf.run(gf.load("attn-only-2l"), "a b", read=["blocks.0.attn.z"], grad=True)
    total = torch.sum(2 * run["z", 0])
    found = torch.autograd.grad(total, run["z", 0].values)[0]
    assert (found == 2).all()


def test_they_are_keys_of_their_own():
    assert len({PATTERN, PATTERN, padded()}) == 2
