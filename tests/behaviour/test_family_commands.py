"""Every command on every family: what works is listed, so that nothing stops working unnoticed."""

from pathlib import Path

import pytest
import torch

from families import all_cases, reference_folder
from family_commands import COMMANDS, WORKS, outcomes, with_tokenizer

CASES = all_cases()
# the first case of a family stands for it; the others are walked in the full sweep
FIRST = {case.family: name for name, case in reversed(CASES.items())}

# whatever is not listed works, with every analysis that it consists of
EXCEPTIONS: dict[str, dict[str, str]] = {}


@pytest.mark.parametrize("name", [n if n in FIRST.values() else pytest.param(n, marks=pytest.mark.full) for n in CASES])
def test_commands_work_or_say_in_a_typed_error_why_not(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = reference_folder(*case.make(), tmp_path, torch.float32)
    found = outcomes(with_tokenizer(tmp_path), reads_pairs=bool(theirs.config.is_encoder_decoder))
    assert found == dict.fromkeys(COMMANDS, WORKS) | EXCEPTIONS.get(case.family, {})


def test_exceptions_are_of_families_that_exist() -> None:
    assert set(EXCEPTIONS) <= set(FIRST)
