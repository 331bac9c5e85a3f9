"""Kept runs: records of finished runs of a study in one file beside its code, to be committed while it goes on.

    src/glassformer/studies/kept/long-needle-small.json     of a study of the package
    kept/noise-small.json                                   beside the file of a study of one's own

    {"format": "glassformer.runs", "version": 1, "study": …, "scale": …,
     "code": [{"module:name": digest}],
     "runs": [{"point", "settings", "seed", "measures", "undefined", "cpu_seconds", "wall_seconds", "trained", "found",
               "machine", "code": [which parts of the code]}],
     "sha256": of all the rest}

A run that another machine or another day made is taken from here where the folder of runs has none that is current. Its
record is all that is needed: models that were trained for it stay where they are. Hundreds of functions run for each
case, most of them for all, so those that ran for the same cases stand together, once.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassformer.errors import CheckpointError
from glassformer.study.definition import Study
from glassformer.study.records import TIME, Record, key
from glassformer.study.sealed import NUMBER, read_sealed, seal

FORMAT, VERSION, KEPT = "glassformer.runs", 1, "kept"
_RUN = {
    "point": {}, "settings": {}, "seed": int, "measures": {str: NUMBER}, "undefined": {str: str},
    "machine": {str: str}, "code": [int],
}  # fmt: skip
SHAPE = {
    "format": str, "version": int, "study": str, "scale": str, "code": [{str: str}], "runs": [_RUN | TIME],
}  # fmt: skip


def kept_at(study: Study, scale: str) -> Path | None:
    """Return the file of the kept runs of a study, whether it is there or not; None for a study that no file holds."""
    try:
        source = Path(inspect.getfile(inspect.unwrap(study.run)))
    except TypeError:
        return None
    return source.parent / KEPT / f"{study.name}-{scale}.json" if source.is_file() else None


def read_kept(study: Study, scale: str) -> dict[str, Record]:
    """Return the kept runs of a study by the key of their case; none if there is no file.

    Raises:
        CheckpointError: The file was changed or damaged, is of another study or scale, or is no regular file.
    """
    path = kept_at(study, scale)
    if path is None:
        return {}
    way_on = (
        "Take it from the repository once more, or remove it: what no folder of runs has is made again, and "
        f"glassformer study keep {study.name} --scale {scale} writes it anew."
    )
    data = read_sealed(path, f"kept runs of {study.name} at scale {scale}", SHAPE, way_on)
    if data is None:
        return {}
    if (data["format"], data["version"]) != (FORMAT, VERSION):
        raise CheckpointError(
            f'"{path}" is in format {data["format"]!r}, version {data["version"]}; this version reads {FORMAT!r}, '
            f"version {VERSION}.\n    {way_on}"
        )
    if (data["study"], data["scale"]) != (study.name, scale):
        raise CheckpointError(f'"{path}" is of {data["study"]} at scale {data["scale"]}.\n    {way_on}')
    parts = dict(enumerate(data["code"]))
    if missing := {i for run in data["runs"] for i in run["code"]} - parts.keys():
        raise CheckpointError(f'"{path}" has no part {min(missing)} of the code of a run.\n    {way_on}')
    return {_key(study, run): _record(study, run, parts) for run in data["runs"]}


def write_kept(study: Study, scale: str, path: Path, records: Sequence[Record]) -> None:
    """Write records of finished runs of a study into a file, whole or not at all."""
    runs = [record.to_dict() for record in records]
    ran: dict[tuple[str, str], list[int]] = {}
    for i, run in enumerate(runs):
        for function in run["code"].items():
            ran.setdefault(function, []).append(i)
    # what ran for the same runs is a part
    parts: dict[tuple[int, ...], dict[str, str]] = {}
    for (name, digest), which in sorted(ran.items()):
        parts.setdefault(tuple(which), {})[name] = digest
    for i, run in enumerate(runs):
        run["code"] = [j for j, which in enumerate(parts) if i in which]
    told = [{name: run[name] for name in _RUN | TIME} for run in runs]
    seal(path, {
        "format": FORMAT, "version": VERSION, "study": study.name, "scale": scale, "code": list(parts.values()),
        "runs": told,
    })  # fmt: skip


def _record(study: Study, run: Mapping[str, Any], parts: Mapping[int, Mapping[str, str]]) -> Record:
    code = {name: digest for i in run["code"] for name, digest in parts[i].items()}
    return Record.from_dict({**run, "study": study.name, "error": "", "code": dict(sorted(code.items()))})


def _key(study: Study, run: Mapping[str, Any]) -> str:
    return key(study.name, {name: run[name] for name in ("point", "settings", "seed")})
