"""Finished rows of a sweep on disk, so that a long one can go on where it was interrupted.

    FILE            all rows, in the end; one process writes there from the beginning
    FILE.rank-1     what a rank has run, as long as ranks share the rows

Whoever goes on reads all of these, one process or any number of ranks.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.analysis.saved import SavedWork
from glassformer.analysis.sweep._resolve import said
from glassformer.models.row_ranks import RowRanks
from glassformer.provenance import Binding
from glassformer.trace import Edit, Site

_OF_RANK = ".rank-"


class SavedRows:
    """A file of rows and their values `metric batch …`; nothing without a path.

    Args:
        path: The file. Rows that it holds already are not run again.
        base: Values of the base run: of another model or text they differ.
        rows: Edits of every row of the plan.
        bound: What the sweep is of, written beside the rows.
        ranks: Who shares the rows.

    Raises:
        CheckpointError: The file is damaged, or of another sweep.
    """

    def __init__(
        self,
        path: Path | None,
        base: Float[Tensor, "metric batch *axes"],
        rows: Sequence[Sequence[tuple[Site, Edit]]],
        bound: Binding,
        ranks: RowRanks,
    ) -> None:
        self.path, self.base, self.ranks, self.done, self.new = path, base, ranks, dict[int, Tensor](), False
        if path is None:
            return
        told = said(rows).encode() + base.detach().double().cpu().numpy().tobytes()
        other = "rows of another sweep: another model, text, plan or metric"
        self.whole = SavedWork(path, "sweep", told, other, bound)
        own = path.with_name(f"{path.name}{_OF_RANK}{ranks.rank}")
        self.work = self.whole if ranks.size == 1 else SavedWork(own, "sweep", told, other, bound)
        for work in (self.whole, *(SavedWork(part, "sweep", told, other, bound) for part in self._parts())):
            if work.tensors:
                self.done |= dict(zip(work.tensors["rows"].tolist(), work.tensors["values"].unbind(1)))

    def holds(self, rows: Sequence[int]) -> bool:
        return all(row in self.done for row in rows)

    def add(self, rows: Sequence[int], values: Tensor) -> None:
        if self.path is None:
            return
        self.done |= {row: values[:, i].detach().cpu() for i, row in enumerate(rows)}
        self.new = True
        if self.work.is_due():
            self._save(self.work)

    def merged(
        self, found: Sequence[tuple[Sequence[int], Tensor]], rows: Sequence[int]
    ) -> Float[Tensor, "metric row batch *axes"]:
        """Return the values of rows, in the order given: what was run in this call and, from the file, what was not.

        Args:
            found: Rows that were run, and their values.
            rows: Those that are wanted.
        """
        ran = {row for some, _ in found for row in some}
        read = [((row,), self.done[row][:, None].to(self.base.device)) for row in rows if row not in ran]
        values = [self.base[:, None][:, :0], *(values for _, values in (*found, *read))]
        place = {row: i for i, row in enumerate(row for some, _ in (*found, *read) for row in some)}
        return torch.cat(values, 1)[:, torch.tensor([place[row] for row in rows], dtype=torch.long)]

    def complete(self, rows: Sequence[int], values: Float[Tensor, "metric row batch *axes"]) -> None:
        """Keep all rows in the one file, in place of what ranks have written; the first rank does, once all are done.

        Args:
            rows: All of them.
            values: Theirs, in the same order.
        """
        if self.path is None or self.ranks.rank > 0 or not (self.ranks.size > 1 or self._parts()):
            return
        self.done = {row: values[:, i].detach().cpu() for i, row in enumerate(rows)}
        if self.done:
            self._save(self.whole)
        for part in self._parts():
            part.unlink(missing_ok=True)

    def __enter__(self) -> "SavedRows":
        return self

    def __exit__(self, *_: object) -> None:
        if self.new:
            self._save(self.work)

    def _parts(self) -> list[Path]:
        """Return the files that ranks have left."""
        assert self.path is not None, "nothing is left without a path"
        start = f"{self.path.name}{_OF_RANK}"
        folder = self.path.parent
        return sorted(file for file in folder.iterdir() if file.name.startswith(start)) if folder.is_dir() else []

    def _save(self, work: SavedWork) -> None:
        work.save({"rows": torch.tensor(list(self.done)), "values": torch.stack(list(self.done.values()), 1)})
