"""What the packages offer by name: what tab completion shows, all of it there and nothing else."""

import subprocess
import sys

import pytest

import glassformer as gf
from glassformer import analysis, checkpoints, lazy
from one_pass import first_of


def offered(package: object) -> list[str]:
    return [name for name in dir(package) if not name.startswith("_")]


@pytest.mark.parametrize("package", [gf, checkpoints], ids=lambda package: package.__name__)
def test_a_lazy_package_offers_what_it_is_for_and_nothing_that_it_imports(package: object) -> None:
    names = offered(package)
    assert set(package.__all__) <= set(names)  # type: ignore[attr-defined]
    assert not {"TYPE_CHECKING", "lazily", "lazy", "viewers", "figures", "files", "words"} & set(names)
    assert all(hasattr(package, name) for name in names)


def test_the_analyses_offer_their_rooms() -> None:
    assert offered(analysis) == sorted(["Run", "activations", "losses", "run", *analysis.ROOMS])


@pytest.mark.full
@pytest.mark.parametrize("name", first_of(["weights", "study", "analysis"]))
def test_packages_are_there_without_an_import_of_their_own(name: str) -> None:
    # in a process where nothing else has imported them
    code = f"import sys; sys.path[:0] = {sys.path!r}; import glassformer as gf; gf.{name}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_no_name_of_a_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match='module "glassformer" has no attribute "wights"'):
        lazy.lazily("glassformer", {})[0]("wights")
