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

from glassformer.errors import AnalysisUnavailable, CheckpointError, nearest
from glassformer.study.claims import held_by_chance
from glassformer.study.definition import Study
from glassformer.study.records import CLOCK, TIME, by_the_clock
from glassformer.study.sealed import NUMBER, read_sealed

GROUP = "glassformer.studies"
FORMAT, VERSION, REPORT = "glassformer.study", 2, "report.json"
_CLAIM = {
    "text": str, "quantity": str, "expected": str, "range": {"low": NUMBER, "high": NUMBER}, "verdict": str,
    "mean": NUMBER, "low": NUMBER, "high": NUMBER, "values": {str: NUMBER}, "why": str,
    "earlier": [{"expected": str, "verdict": str}],
}  # fmt: skip
_GIVEN = {"text": str, "quantity": str, "expected": str, "range": {}, "values": {str: NUMBER}, "met": bool}
_NAMED = _CLAIM | {
    "name": str, "counts": (dict, type(None)), "exact": str, "given": [_GIVEN], "near": bool,
}  # fmt: skip
_RUN = {
    "point": {}, "seed": int, "measures": {str: NUMBER}, "undefined": {str: str}, "error": str, "key": str,
}  # fmt: skip
_REPORT = {
    "format": str, "version": int, "study": str, "paper": str, "question": str, "scale": str, "settings": {},
    "grid": {}, "seeds": int, "differs": [str], "measures": [{"name": str, "about": str, "unit": str}],
    "machines": [{str: str}], "code": {str: str},
}  # fmt: skip
SHAPE = _REPORT | TIME | {
    "claims": [_NAMED], "chance": {"by_interval": int, "false_holds": NUMBER}, "runs": [_RUN | TIME],
}  # fmt: skip
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


def read_report(path: Path, study: str, scale: str, way_on: str = "") -> dict[str, Any] | None:
    """Return the report in a file as JSON data; None if there is none.

    Args:
        path: Of the file.
        study: That the report is to be of.
        scale: Likewise.
        way_on: What to do about a file that is refused, in words, if it is none of one's own.

    Raises:
        CheckpointError: The file was changed or damaged, is of another study or scale, or is no regular file.
    """
    way_on = way_on or (
        f"Remove it, and glassformer study run {study} --scale {scale} writes it anew from the runs; what earlier "
        "reports expected is known to it alone."
    )
    first = _REPORT | CLOCK | {"claims": [_CLAIM], "runs": [_RUN | CLOCK]}
    data = read_sealed(path, f"report of {study} at scale {scale}", SHAPE, way_on, older=(first, _renewed))
    if data is not None and (data["format"], data["version"]) != (FORMAT, VERSION):
        raise CheckpointError(
            f'"{path}" is in format {data["format"]!r}, version {data["version"]}; this version reads {FORMAT!r}, '
            f"version {VERSION}.\n    {way_on}"
        )
    if data is not None and (data["study"], data["scale"]) != (study, scale):
        raise CheckpointError(f'"{path}" is of {data["study"]} at scale {data["scale"]}.\n    {way_on}')
    return data


def _renewed(data: dict[str, Any]) -> dict[str, Any]:
    """Return a report of the first version as it is written now: by the clock, of claims named by their sentences."""
    if data["version"] != 1:
        return data
    bare = {"name": "", "counts": None, "exact": "", "given": [], "near": False}
    claims = [claim | bare for claim in data["claims"]]
    decided = sum(claim["low"] is not None and claim["low"] < claim["high"] for claim in claims)
    return by_the_clock(data) | {
        "version": VERSION,
        "claims": claims,
        "chance": {"by_interval": decided, "false_holds": round(held_by_chance(decided), 4)},
        "runs": [by_the_clock(run) for run in data["runs"]],
    }


def shipped(name: str) -> dict[str, Any] | None:
    """The report of a study that came with the package, or None if none did."""
    return read_report(shipped_at(name), name, "small", "It came with the package: install that again.")


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
