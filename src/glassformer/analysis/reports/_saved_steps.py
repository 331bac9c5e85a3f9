"""Finished steps of a circuits report on disk, so that a report can go on where it was interrupted."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from glassformer.analysis.reports.circuits_document import (
    EdgeFacts,
    InductionFacts,
    LossFacts,
    OrderFacts,
    PairEntry,
    Spectrum,
    StrongestPairs,
    TrigramFacts,
)
from glassformer.analysis.saved import SavedWork
from glassformer.data import Batch
from glassformer.errors import CheckpointError
from glassformer.files import json_text
from glassformer.models import Model
from glassformer.provenance import Binding, ModelNote, Note, overheard, tell
from glassformer.version import __version__
from glassformer.words import Sentence, sentence

T = TypeVar("T")

FILE = "steps.safetensors"
# what is read back; nothing else that a file names is made
KINDS: Mapping[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (
        EdgeFacts,
        InductionFacts,
        LossFacts,
        ModelNote,
        Note,
        OrderFacts,
        PairEntry,
        Spectrum,
        StrongestPairs,
        TrigramFacts,
    )
}


class SavedSteps:
    """What steps of a report found, and what they told of it; nothing on disk without a folder.

    Args:
        folder: Where the file is.
        model: What the report is of.
        rows: What it reads.
        asked: Its other arguments.
        seed: Of what is drawn.

    Raises:
        CheckpointError: The file is damaged, or of another report.
    """

    def __init__(
        self, folder: Path | None, model: Model, rows: Sequence[Batch], asked: Mapping[str, Any], seed: int
    ) -> None:
        identity = b"" if folder is None else _identity(model, rows, {**asked, "seed": seed})
        other = "steps of another report: another model, text, seed, choice of heads or tokens, number of entries, "
        other += "or version of this package"
        path = None if folder is None else folder / FILE
        self.work = SavedWork(path, "steps", identity, other, Binding("circuits", model, rows, seed))
        self.done = dict(self.work.texts)

    def __call__(self, name: str, step: Callable[[], T]) -> T:
        """Return what a step finds: from the file if it says so, else the step is run and kept."""
        if name in self.done:
            try:
                found, notes = _read(json.loads(self.done[name]))
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f'cannot read the step "{name}" from "{self.work.path}": {error!r}') from error
            tell(notes)
            return found
        with overheard() as told:
            found = step()
        self.done[name] = json_text(_plain((found, list(told))))
        self.work.save({}, self.done)
        return found


def _identity(model: Model, rows: Sequence[Batch], asked: Mapping[str, Any]) -> bytes:
    tensors = [(name, value) for batch in rows for name, value in batch.tensors().items()]
    plain = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in asked.items()}
    said = [__version__, model.digest(), plain, [(name, list(value.shape)) for name, value in tensors]]
    return json_text(said, sort=True).encode() + b"".join(value.cpu().numpy().tobytes() for _, value in tensors)


def _plain(value: Any) -> Any:
    """Return facts as JSON data that says what they are."""
    if isinstance(value, Sentence):
        return {"is": "sentence", "template": value.template, "values": _each(value.values)}
    if type(value).__name__ in KINDS:
        return {"is": type(value).__name__, "values": _each({f.name: getattr(value, f.name) for f in _fields(value)})}
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no word for it
        return {"is": "number", "values": {"text": str(value)}}
    if isinstance(value, Mapping):
        return {"is": "mapping", "values": _each(value)}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _each(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(one) for name, one in values.items()}


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value)


def _read(data: Any) -> Any:
    """Inverse of `_plain`; lists become tuples."""
    if isinstance(data, list):
        return tuple(map(_read, data))
    if not isinstance(data, dict):
        return data
    values = {name: _read(one) for name, one in data["values"].items()}
    if data["is"] == "sentence":
        return sentence(data["template"], **values)
    if data["is"] == "number":
        return float(values["text"])
    return values if data["is"] == "mapping" else KINDS[data["is"]](**values)
