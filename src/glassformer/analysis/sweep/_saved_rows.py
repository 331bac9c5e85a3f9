"""Finished rows of a sweep on disk, so that a long one can go on where it was interrupted."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from glassformer.analysis.saved import SavedWork
from glassformer.files import json_text
from glassformer.provenance import Binding
from glassformer.trace import Edit, Site


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
        self.path, self.done = path, dict[int, Tensor]()
        if path is None:
            return
        edits = [[(site.name, repr(edit.at), type(edit).__name__) for site, edit in row] for row in rows]
        told = json_text(edits).encode() + base.detach().double().cpu().numpy().tobytes()
        other = "rows of another sweep: another model, text, plan or metric"
        self.work = SavedWork(path, "sweep", told, other, bound)
        if self.work.tensors:
            self.done = dict(zip(self.work.tensors["rows"].tolist(), self.work.tensors["values"].unbind(1)))

    def holds(self, rows: Sequence[int]) -> bool:
        return all(row in self.done for row in rows)

    def add(self, rows: Sequence[int], values: Tensor) -> None:
        if self.path is None:
            return
        self.done |= {row: values[:, i].detach().cpu() for i, row in enumerate(rows)}
        if self.work.is_due():
            self._save()

    def merged(self, found: list[tuple[tuple[int, ...], Tensor]]) -> list[tuple[tuple[int, ...], Tensor]]:
        """Return what was run in this call and, from the file, what was not."""
        ran = {row for rows, _ in found for row in rows}
        return found + [((row,), values[:, None]) for row, values in self.done.items() if row not in ran]

    def __enter__(self) -> "SavedRows":
        return self

    def __exit__(self, *_: object) -> None:
        if self.path is not None and self.done:
            self._save()

    def _save(self) -> None:
        self.work.save({"rows": torch.tensor(list(self.done)), "values": torch.stack(list(self.done.values()), 1)})
