"""A store of activations: what a model held at some sites over a corpus, row by row, in a folder.

    store = ActivationStore.open("activations", model)      refused if it is of another model
    site = store.site("blocks.2.resid_post")
    site[:1000].values, site.tokens, site.mean, site.scale
    for batch in site.shuffled(4096): ...

Rows of sites of one side (a decoder's, an encoder's) go together: row 7 of each is the same position of the same text.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.activations._columns import Column
from glassformer.analysis.activations._manifest import (
    ABOUT,
    DTYPES,
    MANIFEST,
    SIDES,
    Manifest,
    read_manifest,
    read_moments,
    read_passes,
)
from glassformer.analysis.activations._moments import Moments
from glassformer.analysis.activations._shards import Shards
from glassformer.analysis.activations._shuffled import ActivationBatch, ShuffledRows, read_rows
from glassformer.arguments import Count, checked
from glassformer.errors import AnalysisUnavailable, CheckpointError, ShapeMismatch, UnknownSite, nearest
from glassformer.models import ModuleLike, require_module
from glassformer.provenance import Provenance
from glassformer.provenance.digest import digest
from glassformer.trace import unsplit


class ActivationStore:
    """What `record_activations` left in a folder, read as it is asked for.

    Args:
        folder: Where it lies.
        manifest: What it holds.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._columns = {column.name: column for column in manifest.plan.columns}
        self._shards = {source: Shards(folder, manifest.shards, source) for source in SIDES}

    @classmethod
    @checked
    def open(cls, folder: str | Path, model: ModuleLike | None = None) -> "ActivationStore":
        """Open a folder; nothing is read but its manifest.

        Args:
            folder: That `record_activations` wrote.
            model: The model it is to be of; without one it may be of any.

        Raises:
            CheckpointError: There is no store, it is damaged, was not finished, or is of another model.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if manifest is None:
            raise CheckpointError(f'"{folder}" holds no store of activations: there is no {MANIFEST} in it.')
        if not manifest.is_complete:
            raise CheckpointError(
                f'"{folder}" holds {manifest.passes:,} of {manifest.plan.passes:,} passes: its recording was stopped.\n'
                "    Go on with the same call of record_activations."
            )
        found = cls(folder, manifest)
        if model is not None:
            found.check(model)
        return found

    def check(self, model: ModuleLike) -> None:
        """Raise `CheckpointError` unless this is the model the store is of: its config, its weights and their type."""
        require_module(model, "a store of activations")
        plan, found = self.manifest.plan, digest(model)
        # sites that a dictionary adds are none of these
        if plan.model not in (found, digest(unsplit(model))):
            raise CheckpointError(
                f'"{self.folder}" holds activations of {plan.name!r} ({plan.model[:20]}…), and the model is '
                f"{str(getattr(model, 'name', '') or type(model).__name__)!r} ({found[:20]}…).\n"
                "    Record some of this one: record_activations(model, texts, sites, folder)."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Sites, in the order in which they were asked for."""
        return tuple(self._columns)

    @property
    def documents(self) -> int:
        """How many documents were read."""
        return self.manifest.plan.documents

    @property
    def dtype(self) -> torch.dtype:
        """Of the stored numbers."""
        return DTYPES[self.manifest.plan.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of its rows on disk."""
        return sum(shard.size for shard in self.manifest.shards)

    @property
    def provenance(self) -> Provenance:
        """What it is of: model and digest, texts, versions."""
        return Provenance.from_dict(self.manifest.provenance)

    def site(self, name: str) -> "StoredSite":
        """Return a site of the store; raises `UnknownSite` if it was not recorded."""
        if name not in self._columns:
            raise UnknownSite(
                f'"{name}" is not in this store.{nearest(name, self._columns)} It holds: {", ".join(self._columns)}.'
            )
        column = self._columns[name]
        return StoredSite(self, column, self._shards[column.source])

    def named(self, sites: str | Sequence[str]) -> tuple[str, ...]:
        """Return the recorded sites that names, globs or short names stand for; raises `UnknownSite` if none does."""
        found = list[str]()
        for asked in [sites] if isinstance(sites, str) else sites:
            of_asked = [name for name in self._columns if fnmatchcase(name, asked) or name.endswith(f".{asked}")]
            # which says what there is
            found += of_asked or [self.site(asked).name]
        return tuple(dict.fromkeys(found))

    @property
    def passes(self) -> "StoredPasses":
        """Its passes, in order: what an analysis that goes through batches takes in place of them."""
        return StoredPasses(self, range(self.manifest.plan.passes))

    @cached_property
    def moments(self) -> dict[str, Moments]:
        """Running moments of each site."""
        known = read_moments(self.folder, self.manifest)
        try:
            return {name: Moments.read(name, known) for name in self._columns}
        except (KeyError, ValueError) as error:
            raise CheckpointError(f'"{self.folder / self.manifest.moments}" lacks {error}.') from error

    @cached_property
    def bounds(self) -> Int[Tensor, "ends 2"]:
        """Where the rows of each pass begin, and where the last ends, of both sides: the source is the second."""
        counts = read_passes(self.folder, self.manifest)
        return torch.cat((counts.new_zeros(1, 2), counts.cumsum(0)))

    def __repr__(self) -> str:
        rows = " + ".join(f"{len(shards):,}" for shards in self._shards.values() if len(shards))
        return (
            f"ActivationStore({str(self.folder)!r}, {len(self.names)} sites of {self.manifest.plan.name!r}, "
            f"{rows} rows of {self.documents:,} documents, {self.manifest.plan.dtype})"
        )


class StoredSite:
    """One site of a store: a sequence of rows.

    Args:
        store: It is of.
        column: Which site.
        shards: Where its rows lie.
    """

    def __init__(self, store: ActivationStore, column: Column, shards: Shards) -> None:
        self.store, self.column, self.shards = store, column, shards

    @property
    def name(self) -> str:
        """Of the site."""
        return self.column.name

    @property
    def axes(self) -> tuple[str, ...]:
        """What is laid out flat in a row, in order; `shape` has their lengths: `rows.unflatten(1, site.shape)`."""
        return self.column.axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of `axes`."""
        return self.column.shape

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.column.width

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, rows: slice) -> ActivationBatch:
        """Return rows in order, `site[100:200]`; raises `ShapeMismatch` for steps other than one."""
        low, high, step = rows.indices(len(self))
        if step != 1:
            raise ShapeMismatch(f'"{self.name}": rows are read in order, site[{low}:{high}]; found a step of {step}.')
        return self._range(low, max(low, high))

    def _range(self, low: int, high: int) -> ActivationBatch:
        return read_rows(self, [(low, high)])

    @checked
    def batches(self, batch_size: Count) -> Iterator[ActivationBatch]:
        """Yield all rows in order, so many at a time."""
        return (self._range(low, min(low + batch_size, len(self))) for low in range(0, len(self), batch_size))

    @checked
    def shuffled(self, batch_size: Count, *, seed: int = 0, buffer: Count = 2**14) -> ShuffledRows:
        """Rows in random order, every one once an epoch.

        Args:
            batch_size: Rows in a batch.
            buffer: Rows mixed with each other; up to two buffers are held in memory.

        Raises:
            AnalysisUnavailable: There are no rows.
        """
        return ShuffledRows(self, batch_size, seed, buffer)

    @property
    def tokens(self) -> Int[Tensor, " row"]:
        """Token of every row; -1 of an image's patches."""
        return self._about(ABOUT[0])

    @property
    def documents(self) -> Int[Tensor, " row"]:
        """Document of every row, counted from 0 through the corpus: what train and test are split by."""
        return self._about(ABOUT[1])

    @property
    def positions(self) -> Int[Tensor, " row"]:
        """Place of every row within its document, from 0."""
        return self._about(ABOUT[2])

    def _about(self, name: str) -> Tensor:
        whole = SIDES[self.column.source] + name
        return self.shards.read([whole], [(0, len(self))])[whole][0].long()

    @property
    def mean(self) -> Float[Tensor, " width"]:
        """Mean over rows, in float64."""
        return self._moments().mean

    @property
    def variance(self) -> Float[Tensor, " width"]:
        """Variance of each coordinate over rows (divided by their number), in float64."""
        moments = self._moments()
        squares = moments.squares.diagonal() if moments.has_products else moments.squares
        return squares / moments.count

    @property
    def scale(self) -> float:
        """Mean norm of rows over the square root of their width: rows over `scale` have mean norm sqrt(width)."""
        return float(self._moments().norm) / self.width**0.5

    @property
    def covariance(self) -> Float[Tensor, "width width"]:
        """Covariance over rows (divided by their number), in float64; raises `AnalysisUnavailable` if not recorded."""
        moments = self._moments()
        if not moments.has_products:
            raise AnalysisUnavailable(
                f'"{self.name}": products of coordinates were not summed when this store was made.\n'
                "    Record with second_moment=True."
            )
        return moments.squares / moments.count

    @property
    def second_moment(self) -> Float[Tensor, "width width"]:
        """Mean over rows of x x^T, in float64; raises `AnalysisUnavailable` if not recorded."""
        return self.covariance + torch.outer(self.mean, self.mean)

    def _moments(self) -> Moments:
        found = self.store.moments[self.name]
        if not found.count:
            raise AnalysisUnavailable(f'"{self.name}" has no rows in this store, and so no mean.')
        return found

    def __repr__(self) -> str:
        shape = " ".join(f"{axis}={n}" for axis, n in zip(self.axes, self.shape))
        return f"StoredSite({self.name!r}, {len(self):,} rows of {shape or 'one number'})"


class StoredPass:
    """Rows that one pass gave; stands for a batch of texts where an analysis needs no more of it than stored sites.

    Args:
        store: It is of.
        index: Which pass.
    """

    def __init__(self, store: ActivationStore, index: int) -> None:
        self.store, self.index = store, index

    def values(self, name: str) -> Float[Tensor, "row width"]:
        """Return its rows of a site, as they are stored; raises `UnknownSite`."""
        site = self.store.site(name)
        low, high = self.store.bounds[self.index : self.index + 2, int(site.column.source)].tolist()
        return site[low:high].values


class StoredPasses(Sequence[StoredPass]):
    """Passes of a store, or some of them in order: `store.passes[:-10]`.

    Args:
        store: They are of.
        indices: Which.
    """

    def __init__(self, store: ActivationStore, indices: range) -> None:
        self.store, self.indices = store, indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> StoredPass: ...
    @overload
    def __getitem__(self, index: slice) -> "StoredPasses": ...
    def __getitem__(self, index: int | slice) -> Any:
        found = self.indices[index]
        return StoredPasses(self.store, found) if isinstance(found, range) else StoredPass(self.store, found)
