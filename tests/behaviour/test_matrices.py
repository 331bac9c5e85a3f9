"""Matrices as text: `glassformer.render.terminal.matrix`."""

import math

import pytest
import torch
from rich.console import Console, Group

from glassformer.labelled import Labelled
from glassformer.render.terminal.matrix import matrix, short
from one_pass import in_one_pass


def shown(
    values: torch.Tensor, axes: tuple[str, str] = ("layer", "head"), width: int = 200, **coords: list[str]
) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(Group(*matrix(Labelled(values, axes, coords), "layer")))
    return capture.get()


@in_one_pass
@pytest.mark.parametrize("size", [0.01, 1.0, 400.0])
@pytest.mark.parametrize("columns", [1, 8, 12, 20, 21, 56, 57, 300])
def test_a_matrix_fits_the_terminal(columns: int, size: float) -> None:
    torch.manual_seed(0)
    whole = shown(size * torch.randn(40, columns))
    assert max(len(line.rstrip()) for line in whole.splitlines()) <= 80
    assert "…" not in whole


def test_numbers_stand_in_their_columns_and_what_is_not_defined_is_empty() -> None:
    lines = shown(torch.tensor([[0.5, math.nan], [-1.25, 0.004]])).splitlines()
    assert [line.split() for line in lines] == [["layer", "0", "1"], ["0", ".50"], ["1", "-1.25", ".00"]]


def test_small_numbers_keep_three_digits() -> None:
    assert ".012" in shown(torch.tensor([[0.0123, 0.05]]))


def test_rows_with_nothing_in_them_are_counted_and_bounded() -> None:
    values = torch.full((30, 2), 1e-4)
    values[[3, 17]] = 1.0
    lines = shown(values).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["3", "17"]
    assert lines[3] == "28 more rows, nowhere above 0.0001 in size"


def test_of_neighbours_that_share_a_sign_the_largest_shows() -> None:
    values = torch.zeros(1, 560)
    values[0, 105] = -1.0
    row = shown(values).splitlines()[1]
    assert row.split()[-1] == "█" and row.index("█") == len("layer  ") + 10


def test_a_matrix_without_numbers_has_no_rows() -> None:
    assert shown(torch.full((3, 2), math.nan)).split() == ["layer", "0", "1"]


def test_tokens_cannot_move_the_cursor() -> None:
    whole = shown(torch.ones(1, 2), ("pos", "layer"), pos=["0:\n\x1b[2J"])
    assert "\x1b" not in whole and "⏎" in whole


def test_labels_of_rows_and_columns_show_spaces_of_tokens_alone() -> None:
    for axes in (("role", "key"), ("key", "role")):
        whole = shown(torch.ones(1, 1), axes, role=["on top"], key=["0: a"])
        assert "on top" in whole and "0:·a" in whole


@in_one_pass
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.834, ".83"),
        (-0.834, "-.83"),
        (1.2, "1.20"),
        (12.34, "12.3"),
        (-0.0001, ".00"),
        (54321.0, "5e+04"),
        (math.nan, "-"),
    ],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short(number) == text
