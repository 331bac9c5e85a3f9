"""The test scaffolding itself: a comparison that cannot fail, or poison that does not poison, would hide every bug."""

from typing import Self

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from glassformer.numerics.distributions import entropy_bits
from glassformer.testing import close
from runtime_checks import check


def test_fresh_memory_is_poisoned() -> None:
    assert torch.empty(1000).isnan().all()


@pytest.mark.parametrize("wrong", [torch.tensor([1.0, 2.1]), torch.tensor([1.0, torch.nan]), torch.tensor([0.9, 2.0])])
def test_close_rejects_what_differs(wrong: Tensor) -> None:
    with pytest.raises(AssertionError, match="of the reference's RMS"):
        close(wrong, torch.tensor([1.0, 2.0]), tolerance=1e-3)


def test_close_measures_errors_against_the_size_of_the_reference() -> None:
    reference = torch.tensor([1e6, 2e6])
    close(reference + 1, reference)
    with pytest.raises(AssertionError):
        close(torch.tensor([1e-6]), torch.tensor([2e-6]))


def test_annotations_are_checked_at_run_time() -> None:
    with pytest.raises(TypeCheckError, match="Float"):
        entropy_bits(torch.zeros(2, dtype=torch.long))


def rows_of(x: Float[Tensor, "row column"], *others: Float[Tensor, "row _"]) -> Float[Tensor, " row"]:
    return x[0] if x[0, 0] > 0 else x[:, 0]


@pytest.mark.parametrize("nested", [False, True])
def test_an_axis_has_one_size_in_all_arguments_and_the_result(nested: bool) -> None:
    def inside(x: Float[Tensor, "row column"], *others: Float[Tensor, "row _"]) -> Float[Tensor, " row"]:
        return rows_of(x, *others)

    checked = check(inside if nested else rows_of)
    x = torch.zeros(2, 3)
    for _ in range(2):
        assert checked(x, torch.zeros(2, 5)).shape == (2,)
    for wrong in ((x, torch.zeros(3, 5)), (x + 1,), (x.long(),), (x, 5)):
        with pytest.raises(TypeCheckError) as error:
            checked(*wrong)
    assert "row=2" in "".join(error.value.__notes__)


class Later:
    pass


def of_later(x: Float[Tensor, " row"], others: list["Later"]) -> None:
    """The name stands in quotes inside the hint."""


@pytest.mark.parametrize("nested", [False, True])
def test_a_name_in_quotes_inside_a_hint_is_looked_up_where_the_function_stands(nested: bool) -> None:
    def inside(x: Float[Tensor, " row"], others: list["Later"]) -> None: ...

    checked = check(inside if nested else of_later)
    checked(torch.zeros(2), [Later()])
    with pytest.raises(TypeCheckError):
        checked(torch.zeros(2), [3])


class Rows:
    @check
    def shown(self, x: Float[Tensor, "row column"]) -> Self:
        return self


def test_a_method_that_returns_self_is_checked_too() -> None:
    rows = Rows()
    assert rows.shown(torch.zeros(2, 3)) is rows
    with pytest.raises(TypeCheckError, match="row"):
        rows.shown(torch.zeros(3))
