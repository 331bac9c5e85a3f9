"""Old names: each stands for what has it now, and says its new name."""

import importlib
import re
import subprocess
import sys

import pytest

import glassformer
from glassformer import study
from glassformer.lazy import renamed_names


def test_every_old_name_says_its_new_one_and_is_what_has_it() -> None:
    for old, new in renamed_names().items():
        if " " in new:
            continue
        home, _, name = f"glassformer.{old}".rpartition(".")
        package = importlib.import_module(home)
        assert name not in vars(package), f"{old} is offered again: it is no old name"
        with pytest.warns(FutureWarning, match=f'"glassformer.{old}" is renamed: use "glassformer.{new}"'):
            found = getattr(package, name)
        place, _, own = f"glassformer.{new}".rpartition(".")
        assert found is getattr(importlib.import_module(place), own)


def test_a_name_without_an_heir_says_what_stands_in_its_place_and_that_is_there() -> None:
    gone = {old: words for old, words in renamed_names().items() if " " in words}
    assert {"analysis.lens_sites", "analysis.lens.lens_sites", "analysis.six_arguments"} <= set(gone)
    for old, words in gone.items():
        home, _, name = f"glassformer.{old}".rpartition(".")
        told = re.escape(f'"glassformer.{old}" is gone: {words}')
        with pytest.warns(FutureWarning, match=told), pytest.raises(AttributeError, match=told):
            getattr(importlib.import_module(home), name)
        there = re.findall(r"analysis\.(\w+)\.(\w+)", words)
        assert all(hasattr(getattr(glassformer.analysis, room), own) for room, own in there)
        asked = re.findall(r"study report ([\w-]+)", words)
        assert there or (asked and set(asked) <= set(study.names()))


def test_an_import_of_a_name_that_is_gone_warns_of_what_stands_in_its_place() -> None:
    with pytest.warns(FutureWarning, match="lens_grid"), pytest.raises(ImportError, match="lens_sites"):
        exec("from glassformer.analysis.lens import lens_sites", {})


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
