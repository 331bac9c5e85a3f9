"""Old names: each stands for what has it now, and says its new name."""

import importlib
import subprocess
import sys

import pytest

import glassformer
from glassformer.lazy import renamed_names


def test_every_old_name_says_its_new_one_and_is_what_has_it() -> None:
    for old, new in renamed_names().items():
        home, _, name = f"glassformer.{old}".rpartition(".")
        package = importlib.import_module(home)
        assert name not in vars(package), f"{old} is offered again: it is no old name"
        with pytest.warns(FutureWarning, match=f'"glassformer.{old}" is renamed: use "glassformer.{new}"'):
            found = getattr(package, name)
        place, _, own = f"glassformer.{new}".rpartition(".")
        assert found is getattr(importlib.import_module(place), own)


@pytest.mark.full
def test_an_import_of_an_old_name_says_where_it_is_asked_for() -> None:
    program = "from glassformer.analysis import rollout\nprint(rollout.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "rollout\n"
    assert '<string>:1: FutureWarning: "glassformer.analysis.rollout" is renamed: use' in done.stderr


def test_a_name_that_never_was_is_no_attribute_and_old_ones_are_not_listed() -> None:
    with pytest.raises(AttributeError, match=r'module "glassformer\.models" has no attribute "Stages"'):
        getattr(glassformer.models, "Stages")  # noqa: B009
    assert not hasattr(glassformer.analysis, "rollouts")
    assert {"rollout", "logit_lens"}.isdisjoint(dir(glassformer.analysis))
