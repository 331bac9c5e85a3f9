"""The shelf: which studies there are, where they come from, and what those of the package found.

Those of the package are the modules that `glassformer.studies` names, a study each, under the name `STUDY`. Others
announce theirs by entry points of the group `glassformer.studies`, or are Python files of one's own.

    glassformer/studies/found/rank-collapse.json        a report of the small scale, as it ships
    glassformer/studies/replays.json                    what came of one run of each if it was made again
"""

import importlib
import importlib.util
import sys
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from glassformer.errors import AnalysisUnavailable, nearest
from glassformer.files import read_json
from glassformer.study.definition import Study

GROUP = "glassformer.studies"
VARIABLE = "STUDY"
FOUND = "found"


def names() -> list[str]:
    """The names of all studies that are installed, sorted."""
    return sorted({*_own(), *(point.name for point in entry_points(group=GROUP))})


@cache
def find(name: str) -> Study:
    """Return a study by its name, or from a Python file.

    Raises:
        AnalysisUnavailable: There is no such study, or what is there is none.
    """
    if name.endswith(".py") or "/" in name:
        return _study(_loaded(Path(name)), f'the file "{name}"')
    own = _own()
    if name in own:
        return _study(importlib.import_module(own[name]), own[name])
    for point in entry_points(group=GROUP):
        if point.name == name:
            found = point.load()
            return found if isinstance(found, Study) else _study(found, point.value)
    raise AnalysisUnavailable(
        f'no study "{name}".{nearest(name, names())} Studies: {", ".join(names())}; or name a Python file.'
    )


def shipped(name: str) -> dict[str, Any] | None:
    """The report of a study that came with the package, or None if none did."""
    path = shipped_at(name)
    return read_json(path) if path.is_file() else None


def shipped_at(name: str) -> Path:
    """Return the file of the report of a study that comes with the package."""
    return _home() / FOUND / f"{name}.json"


def shipped_replays_at() -> Path:
    """Return the file of the replays that come with the package."""
    return _home() / "replays.json"


def _home() -> Path:
    spec = find_spec(GROUP)
    assert spec is not None and spec.origin is not None, "the package has studies"
    return Path(spec.origin).parent


def _own() -> dict[str, str]:
    """Return the modules of the package's studies by the names of the studies."""
    modules = importlib.import_module(GROUP).STUDIES
    return {name.replace("_", "-"): f"{GROUP}.{name}" for name in modules}


def _study(module: ModuleType, where: str) -> Study:
    found = getattr(module, VARIABLE, None)
    if not isinstance(found, Study):
        raise AnalysisUnavailable(f"{where} holds no study: there is no Study under the name {VARIABLE}.")
    return found


def _loaded(path: Path) -> ModuleType:
    """Return the module of a file, under a name by which what ran of it is found again."""
    if path.suffix != ".py" or not path.is_file():
        raise AnalysisUnavailable(
            f'no Python file "{path}". A study is a name (glassformer study list) or a file that ends in .py.'
        )
    name = f"study_in_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None, "a file that ends in .py is a module"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
