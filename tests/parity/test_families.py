"""Every family against the reference implementation, on tiny random checkpoints that are saved and loaded."""

import pytest
import torch

import glassformer as gf
from families import all_cases

CASES = all_cases()
# the first case of each family; the full sweep walks every case, in both precisions
FIRST = {case.family: name for name, case in reversed(CASES.items())}
NAMES = [name if name in FIRST.values() else pytest.param(name, marks=pytest.mark.full) for name in CASES]


@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.full)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_family_gives_the_references_numbers(name: str, dtype: torch.dtype, tmp_path) -> None:
    case = CASES[name]
    case.check(*case.make(), tmp_path, dtype)
    assert gf.load(tmp_path).origin.family == case.family
