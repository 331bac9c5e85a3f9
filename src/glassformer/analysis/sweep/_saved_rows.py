"""Finished rows of a sweep on disk, so that a long one can go on where it was interrupted."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from glassformer.errors import CheckpointError
from glassformer.files import json_text, tensors_in, write
from glassformer.provenance import Binding
from glassformer.trace import Edit, Site

SECONDS = 10.0


class SavedRows:
    """A file of rows and their values `metric batch …`; nothing without a path.

    Args:
        path: The file. Rows that it holds already are not run again.
        base: Values of the base run: of another model or text they differ.
        rows: Edits of every row of the plan.
        bound: What the sweep is of, written beside the rows.

    Raises:
        CheckpointError: The file is damaged, or of another sweep.
    """

    def __init__(
        self, path: Path | None, base: Tensor, rows: Sequence[Sequence[tuple[Site, Edit]]], bound: Binding
    ) -> None:
        self.path, self.done, self.bound = path, dict[int, Tensor](), bound
        self.saved = time.monotonic()
        if path is None:
            return
        edits = [[(site.name, repr(edit.at), type(edit).__name__) for site, edit in row] for row in rows]
        told = json_text(edits).encode() + base.detach().double().cpu().numpy().tobytes()
        self.identity = hashlib.sha256(told).hexdigest()
        if path.exists():
            self._read(path)

    def holds(self, rows: Sequence[int]) -> bool:
        return all(row in self.done for row in rows)

    def add(self, rows: Sequence[int], values: Tensor) -> None:
        if self.path is None:
            return
        self.done |= {row: values[:, i].detach().cpu() for i, row in enumerate(rows)}
        if time.monotonic() - self.saved > SECONDS:
            self._save(self.path)

    def merged(self, found: list[tuple[tuple[int, ...], Tensor]]) -> list[tuple[tuple[int, ...], Tensor]]:
        """Return what was run in this call and, from the file, what was not."""
        ran = {row for rows, _ in found for row in rows}
        return found + [((row,), values[:, None]) for row, values in self.done.items() if row not in ran]

    def __enter__(self) -> "SavedRows":
        return self

    def __exit__(self, *_: object) -> None:
        if self.path is not None and self.done:
            self._save(self.path)

    def _read(self, path: Path) -> None:
        from safetensors import SafetensorError

        try:
            with tensors_in(path) as file:
                identity = (file.metadata() or {}).get("sweep")
                rows, values = file.get_tensor("rows"), file.get_tensor("values")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f'cannot read a sweep from "{path}": {error}') from error
        if identity != self.identity:
            raise CheckpointError(
                f'"{path}" holds rows of another sweep: another model, text, plan or metric.\n'
                "    Give another file, or delete that one."
            )
        self.done = dict(zip(rows.tolist(), values.unbind(1)))

    def _save(self, path: Path) -> None:
        from safetensors.torch import save

        tensors = {"rows": torch.tensor(list(self.done)), "values": torch.stack(list(self.done.values()), 1)}
        said = json_text(self.bound.said().to_dict())
        write(path, save(tensors, {"sweep": self.identity, "provenance": said}))
        self.saved = time.monotonic()
