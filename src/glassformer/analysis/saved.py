"""Work on disk, written whole every ten seconds, so that what takes long can go on where it was interrupted."""

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from glassformer.errors import CheckpointError
from glassformer.files import json_text, tensors_in, write
from glassformer.provenance import Bound

SECONDS = 10.0
PROVENANCE = "provenance"


class SavedWork:
    """Tensors and texts in a file that says what work they are of; nothing without a path.

    Args:
        path: The file.
        kind: What the work is called, `sweep`.
        identity: What tells it from other work of the kind.
        other: What a file of other work holds, and what is other then, for the error.
        bound: What it is of, written beside them.

    Raises:
        CheckpointError: The file is damaged, or of other work.
    """

    def __init__(self, path: Path | None, kind: str, identity: bytes, other: str, bound: Bound) -> None:
        self.path, self.kind, self.other, self.bound = path, kind, other, bound
        self.identity = hashlib.sha256(identity).hexdigest()
        self.tensors: dict[str, Tensor] = {}
        self.texts: dict[str, str] = {}
        self._saved = time.monotonic()
        if path is not None and path.exists():
            self._read(path)

    def is_due(self) -> bool:
        """Whether it is time to save."""
        return self.path is not None and time.monotonic() - self._saved > SECONDS

    def save(self, tensors: Mapping[str, Tensor], texts: Mapping[str, str] | None = None) -> None:
        """Write these tensors and texts in place of what the file has."""
        if self.path is None:
            return
        from safetensors.torch import save

        said = {self.kind: self.identity, PROVENANCE: json_text(self.bound.said().to_dict())}
        write(self.path, save(dict(tensors), {**(texts or {}), **said}))
        self._saved = time.monotonic()

    def _read(self, path: Path) -> None:
        from safetensors import SafetensorError

        try:
            with tensors_in(path) as file:
                texts = file.metadata() or {}
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f'cannot read a {self.kind} from "{path}": {error}') from error
        if texts.get(self.kind) != self.identity:
            raise CheckpointError(f'"{path}" holds {self.other}.\n    Give another file, or delete that one.')
        self.tensors = found
        self.texts = {name: text for name, text in texts.items() if name not in (self.kind, PROVENANCE)}
