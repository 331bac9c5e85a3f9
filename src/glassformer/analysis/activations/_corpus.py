"""A corpus before a model runs on it: its passes, the sites that are recorded in them, and how much that will be."""

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from glassformer.analysis.activations._columns import Column, columns_of, measured
from glassformer.analysis.activations._manifest import ABOUT, DTYPES, SIDES
from glassformer.analysis.activations._passes import (
    SideRows,
    digest_of_pass,
    documents_in,
    in_passes,
    read_pass,
    rows_of,
    tokenizers_of,
    without_begin,
)
from glassformer.errors import AnalysisUnavailable
from glassformer.models import ModuleLike, require_module
from glassformer.models.reading import Inputs
from glassformer.trace import Foreign

# tokens, documents and positions are 32-bit integers
_ABOUT_BYTES = 4 * len(ABOUT)


@dataclasses.dataclass(frozen=True)
class ActivationSize:
    """How much a store will hold.

    Args:
        rows: Rows of the side that ends in the logits; with sinks left out, at most.
        source_rows: Rows of the encoder's side, in a model that reads pairs.
        documents: Documents they are of.
        bytes: On disk, but for the headers of files; at most, likewise.
    """

    rows: int
    source_rows: int
    documents: int
    bytes: int

    def __str__(self) -> str:
        rows = self.rows + self.source_rows
        return f"{rows:,} rows of {self.documents:,} documents, {self.bytes / 2**20:,.1f} MiB"


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Passes over a corpus and the sites that are recorded in them, before any of them runs.

    Args:
        model: What runs, with its sites.
        passes: What each pass reads.
        columns: Sites by name.
        drop: Which positions are left out.
        starts: Documents before each pass, and in all.
        rows: Rows of each side, sinks among them.
        digest: Of all that is read.
    """

    model: Any
    passes: list[Any]
    columns: dict[str, Column]
    drop: frozenset[str]
    starts: list[int]
    rows: dict[bool, int]
    digest: str

    @classmethod
    def of(cls, model: ModuleLike, texts: Any, sites: str | Sequence[str], drop: Sequence[str], rows: int) -> "Corpus":
        """Read texts without running the model on them."""
        require_module(model, "record_activations")
        view: Any = model if hasattr(model, "sites") else Foreign(model)
        columns = columns_of(view, sites)
        if not columns:
            raise AnalysisUnavailable("record_activations: there are no sites to record; give one at least.")
        if "sinks" in drop:
            _require_streams(columns)
        passes, starts, counts, found = (
            in_passes(model, texts, rows),
            [0],
            defaultdict[bool, int](int),
            hashlib.sha256(),
        )
        for one in passes:
            inputs = read_pass(view, one)
            columns = measured(view, columns, inputs)
            found.update(digest_of_pass(inputs))
            sides = rows_of(inputs, starts[-1])
            starts.append(starts[-1] + documents_in(sides, starts[-1]))
            for source, side in recorded_rows(view, inputs, sides, drop).items():
                counts[source] += len(side.tokens)
        return cls(
            model=view,
            passes=passes,
            columns=columns,
            drop=frozenset(drop),
            starts=starts,
            rows=dict(counts),
            digest=found.hexdigest(),
        )

    def size(self, dtype: str, second_moment: bool) -> ActivationSize:
        """Return how much a store of it holds."""
        wide, sides = DTYPES[dtype].itemsize, {column.source for column in self.columns.values()}
        rows = {source: self.rows[source] if source in sides else 0 for source in SIDES}
        numbers = sum(rows[column.source] * column.width for column in self.columns.values())
        widths = [column.width for column in self.columns.values()]
        moments = sum(8 * (2 + w + (w * w if second_moment else w)) for w in widths)
        size = numbers * wide + sum(rows.values()) * _ABOUT_BYTES + moments
        return ActivationSize(rows[False], rows[True], self.starts[-1], size)


def _require_streams(columns: Mapping[str, Column]) -> None:
    """Raise `AnalysisUnavailable` unless each side that is recorded has a site by which sinks are told."""
    for source in {column.source for column in columns.values()}:
        if not any(column.is_stream for column in columns.values() if column.source == source):
            raise AnalysisUnavailable(
                "record_activations: sinks are told by vectors as wide as the stream, and no such site is recorded of "
                f"the {'encoder' if source else 'rows that end in the logits'}.\n    Add one: 'blocks.*.resid_post'."
            )


def recorded_rows(
    model: Any, inputs: Inputs, sides: dict[bool, SideRows], drop: Collection[str]
) -> dict[bool, SideRows]:
    """Return rows of a pass but for those of opening tokens, if they are left out."""
    if "begin" not in drop:
        return sides
    tokenizers = tokenizers_of(model)
    return {source: without_begin(rows, inputs.sides[source], tokenizers[source]) for source, rows in sides.items()}
