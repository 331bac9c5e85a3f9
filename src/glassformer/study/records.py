"""Records of runs: what each gave, of which code, in a file of its own that is written whole.

    runs/studies/rank-collapse/5f0c….json       one run: case, measures, code, time, machine
    runs/studies/trained/81b2…/                 one trained model: a run folder, and code.json beside its checkpoints

A record stands for a case as long as no function that ran for it has changed; see `code`.
"""

import dataclasses
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self

import torch

from glassformer.errors import CheckpointError
from glassformer.files import json_text
from glassformer.study.code import changed
from glassformer.study.definition import Case
from glassformer.study.quantities import Measured
from glassformer.study.sealed import NUMBER, read_sealed, seal
from glassformer.version import __version__

FORMAT = 2
TIME = {"cpu_seconds": NUMBER, "wall_seconds": NUMBER, "trained": {str: NUMBER}, "found": {str: NUMBER}}
_RUN: dict[str, Any] = {
    "format": int, "study": str, "point": {}, "settings": {}, "seed": int, "measures": {str: NUMBER},
    "undefined": {str: str}, "error": str, "machine": {str: str}, "code": {str: str},
}  # fmt: skip
SHAPE = _RUN | TIME
CLOCK = {"seconds": (int, float)}  # in place of `TIME` before CPU time was measured
State = Literal["missing", "current", "outdated", "error"]


@dataclass(frozen=True)
class Record:
    """What one run gave.

    Args:
        study: Its name.
        point: Value of each axis.
        settings: Of the scale.
        seed: Of the run.
        measures: Numbers by name.
        undefined: Why a measure is not defined for the case, by name; "*" stands for all of them.
        error: What ended the run, with its traceback; empty if nothing did.
        cpu_seconds: CPU time that it took the process that ran it, training within it included; None in a record from
            before CPU time was measured.
        wall_seconds: Time it took by the clock; only of such a record.
        trained: CPU seconds of training, which are among its own, by model: those that were trained within it.
        found: CPU seconds of training, which are not among its own, by model: those that it found trained, or begun and
            went on with; None where that is not known.
        machine: Processor, and versions of Python, PyTorch and this package.
        code: Digest of each function that ran, by `module:name`.
    """

    study: str
    point: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int
    measures: Mapping[str, float]
    undefined: Mapping[str, str]
    error: str
    cpu_seconds: float | None
    wall_seconds: float | None
    trained: Mapping[str, float | None]
    found: Mapping[str, float | None]
    machine: Mapping[str, str]
    code: Mapping[str, str]

    def measured(self) -> Measured:
        """Return it as claims read it."""
        ended = self.error.strip().rsplit("\n", 1)[-1]
        return Measured(self.point, self.seed, self.measures, self.undefined, ended)

    def state(self) -> State:
        """Return whether it can stand for its case: it ended in an error, its code has changed, or it is current."""
        if self.error:
            return "error"
        return "outdated" if changed(self.code) else "current"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {"format": FORMAT} | dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return a record of JSON data of the shape that a record has."""
        # JSON has no word for a number that is none
        measures = {name: math.nan if measured is None else measured for name, measured in data["measures"].items()}
        told = {field.name: data[field.name] for field in dataclasses.fields(cls) if field.name != "measures"}
        return cls(measures=measures, **told)


def key(*told: Any) -> str:
    """Return the name of what is kept about something: a hash of its JSON."""
    return sha256(json_text(list(told), sort=True).encode()).hexdigest()[:20]


def place(folder: Path, study: str, case: Case) -> Path:
    """Return the file of a run."""
    return folder / study / f"{key(study, case.to_dict())}.json"


def read(folder: Path, study: str, case: Case) -> Record | None:
    """Return the record of a case; None if there is none.

    Raises:
        CheckpointError: The file was changed or damaged, is of another case, or is no regular file.
    """
    path = place(folder, study, case)
    way_on = f"Remove it, and glassformer study run {study} makes that run again."
    data = read_sealed(path, "record of a run", SHAPE, way_on, older=(_RUN | CLOCK, _renewed))
    if data is None:
        return None
    if data["format"] != FORMAT:
        raise CheckpointError(f'"{path}" is in format {data["format"]}; this version reads {FORMAT}.\n    {way_on}')
    if path.stem != key(data["study"], {name: data[name] for name in case.to_dict()}):
        raise CheckpointError(f'"{path}" is the record of another case than its name says.\n    {way_on}')
    return Record.from_dict(data)


def save(path: Path, record: Record) -> None:
    """Write a record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seal(path, record.to_dict())


def by_the_clock(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return data of a run from before CPU time was measured, of the shape `CLOCK`, as it is written now."""
    rest = {name: value for name, value in told.items() if name != "seconds"}
    return rest | {"cpu_seconds": None, "wall_seconds": told["seconds"], "trained": {}, "found": {}}


def _renewed(data: Mapping[str, Any]) -> dict[str, Any]:
    return by_the_clock(data) | ({"format": FORMAT} if data["format"] == 1 else {})


def machine() -> dict[str, str]:
    """Return what numbers may depend on besides code and seed."""
    return {
        "processor": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "glassformer": __version__,
    }
