"""What is recorded of a text that grows while it is read: the values of each pass, joined into those of one.

Values are kept on the CPU. Rows are laid out as `gf.run` lays them out: real tokens first, padding behind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.errors import AnalysisUnavailable
from glassformer.labelled import Coordinate, Labelled
from glassformer.models.padding import Padding
from glassformer.models.readable import PositionLabels, with_coordinates
from glassformer.trace import At, Columns, Read, Request, Site, SiteTable, Tape, growing_axes, require_there

# what a pass says of keys behind its queries, or beyond a window, which it does not look at
_UNSEEN = {"pattern": 0.0, "patterns": 0.0, "scores": float("-inf")}


class RecordedPart(NamedTuple):
    """What one pass said at a site, and which columns it read."""

    value: Tensor
    columns: Columns


class Recording:
    """Collects what was asked for from pass to pass.

    Args:
        tape: Made with all that is to be read; its passes have others.
        names: What the coordinates of the stream are called.
        batch: How many rows the text has.

    Raises:
        AnalysisUnavailable: A part of the positions is asked for, or a function of all of them.
        ShapeMismatch: There is no such head, coordinate or row.
    """

    def __init__(self, tape: Tape, names: Sequence[str], batch: int) -> None:
        self.table: SiteTable = tape.table
        self.names = names
        order = {name: place for place, name in enumerate(tape.table)}
        # in the order in which a pass comes by, as in a run
        self.requests = dict(sorted(tape.requests.items(), key=lambda asked: order[asked[1].read.site]))
        self.reads = {name: _of_pass(request, tape.table, batch) for name, request in self.requests.items()}
        self.parts: dict[Read, list[RecordedPart]] = {}

    def of_pass(self, of_source: bool) -> list[Read]:
        """Return what a pass is to record: of the encoder, or of everything else."""
        found = dict.fromkeys(self.reads.values())
        return [read for read in found if (self.table[read.site].stack == "encoder") == of_source]

    def keep(self, tape: Tape, columns: Columns) -> None:
        """Take what a pass recorded; one that begins at the first column says again what earlier ones said."""
        for request in tape.requests.values():
            value = tape.values[request.name].cpu()
            parts = self.parts.setdefault(request.read, [])
            if columns.first == 0 or not growing_axes(self.table[request.read.site]):
                parts.clear()
            parts.append(RecordedPart(value, columns))

    def forget(self) -> None:
        """Let go of what was recorded so far."""
        self.parts.clear()

    def labelled(self, rows: Sequence[Sequence[str]], sources: Sequence[Sequence[str]]) -> dict[str, Labelled]:
        """Return everything by name, with the tokens of each row along its axes.

        Args:
            rows: Readable tokens of the text, as far as each row was read.
            sources: Those of the encoder.
        """
        found: dict[str, Labelled] = {}
        for name, request in self.requests.items():
            read = self.reads[name]
            if (parts := self.parts.get(read)) is None:
                continue
            site, batch = self.table[read.site], request.read.at.where.get("batch")
            value = Labelled(self._joined(read, site, parts, rows), _axes(read, site), of=request.of)
            labels = _Labels(rows, sources, parts[0].columns)
            value = with_coordinates(value, replace(request, read=read), self.table, labels, self.names)
            found[name] = value if batch is None else value.select(batch=batch)
        return found

    def _joined(self, read: Read, site: Site, parts: Sequence[RecordedPart], rows: Sequence[Sequence[str]]) -> Tensor:
        """Return the values of all passes as one, each row's real tokens first."""
        grows, axes = growing_axes(site), _axes(read, site)
        if not grows:
            return parts[-1].value
        along, last = axes.index("query" if "query" in grows else grows[0]), parts[-1].columns.last
        values = [_of_columns(part, site, axes, along, last) for part in parts]
        value, first = values[0] if len(values) == 1 else torch.cat(values, along), parts[0].columns.first
        padding = Padding(None, torch.tensor(parts[0].columns.padding))
        longest = max(map(len, rows))
        for axis in grows:
            dim = axes.index(axis)
            if first == 0 or dim != along:
                value = padding.aligned(value, dim).narrow(dim, 0, min(longest, value.shape[dim]))
        return value


class _Labels(PositionLabels):
    """Names of positions of a text, from some column on along what each pass adds to."""

    def __init__(self, rows: Sequence[Sequence[str]], sources: Sequence[Sequence[str]], columns: Columns) -> None:
        self._sources, self._first = _numbered(sources), columns.first
        self._rows, self._before = _numbered(rows), columns.padding
        self._new = columns.last - columns.first

    def along(self, site: Site, axis: str) -> list[list[Coordinate | None]]:
        if site.reads_source(axis):
            return self._sources
        if self._first == 0 or (axis == "key" and "query" in site.axes):
            return self._rows
        at = [self._first - before for before in self._before]
        return [
            [row[i] if i < len(row) else None for i in range(place, place + self._new)]
            for place, row in zip(at, self._rows)
        ]


def _of_pass(request: Request, table: Mapping[str, Site], batch: int) -> Read:
    """Return what a pass is to record for a request: all rows, and the positions that it reads."""
    site, at = table[request.read.site], request.read.at.where
    if part := [axis for axis in growing_axes(site) if axis in at]:
        raise AnalysisUnavailable(
            f'Read of "{site.name}": At({part[0]}={at[part[0]]!r}) is a part of a text that is not there yet.\n'
            f"    Read all positions, and select afterwards: .select({part[0]}={at[part[0]]!r})."
        )
    if request.read.reduce is not None:
        raise AnalysisUnavailable(
            f'Read of "{site.name}": reduce= takes a function of all positions, which come one by one.\n'
            "    Read the site, or heads and coordinates of it with at=, and reduce what was recorded."
        )
    require_there(request.read.at, site, batch)
    return Read(site.name, At(**{axis: where for axis, where in at.items() if axis != "batch"}))


def _axes(read: Read, site: Site) -> tuple[str, ...]:
    return tuple(read.at.remaining(site.axes))


def _of_columns(part: RecordedPart, site: Site, axes: Sequence[str], along: int, last: int) -> Tensor:
    """Return what a pass said of the columns it read: rows of a pattern over all keys there are in the end."""
    value, (first, end, _) = part.value, part.columns
    if {"query", "key"} <= {*growing_axes(site)}:
        assert axes[-1] == "key", "of queries and keys, keys come last"
        left = end - value.shape[-1]
        return F.pad(value, (left, last - end), value=_UNSEEN.get(site.quantity, float("nan")))
    # keys that are made of latents are all there in every pass
    new = end - first
    return value.narrow(along, value.shape[along] - new, new)


def _numbered(rows: Sequence[Sequence[str]]) -> list[list[Coordinate | None]]:
    """Return tokens behind their index, and None behind the end of shorter rows."""
    longest = max(map(len, rows), default=0)
    return [[*(f"{i}:{token}" for i, token in enumerate(row)), *[None] * (longest - len(row))] for row in rows]
