"""Recording: passes over a corpus, and the rows of every site written as they come.

    store = record_activations(model, texts, ["blocks.*.resid_post"], "activations")
    store = record_activations(model, texts, ["blocks.*.resid_post"], "activations")     goes on, or finds all done

Nothing depends on where a recording was stopped: files end at passes, a new one begins when the last is full, and what
was not yet in a file is read again. A store made in one go and one that was killed and continued are the same bytes.

Source of what is called a sink: Sun et al. 2024, "Massive Activations in Large Language Models".
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glassformer import files
from glassformer.analysis.activations._columns import passed, rows_at
from glassformer.analysis.activations._corpus import ActivationSize, Corpus, recorded_rows
from glassformer.analysis.activations._manifest import (
    ABOUT,
    DTYPES,
    MANIFEST,
    SIDES,
    Manifest,
    Plan,
    commit,
    read_manifest,
    read_moments,
    sweep,
)
from glassformer.analysis.activations._moments import Moments
from glassformer.analysis.activations._passes import SideRows, read_pass, rows_of
from glassformer.analysis.activations._store import ActivationStore
from glassformer.arguments import Count, checked
from glassformer.errors import AnalysisUnavailable, CheckpointError, SaveError
from glassformer.fitting.interrupts import Interrupts
from glassformer.models import ModuleLike
from glassformer.provenance import Binding
from glassformer.provenance.digest import digest
from glassformer.trace import Tape

Kind = Literal["float32", "float16", "bfloat16"]
Drop = Literal["begin", "sinks"]
# how many times the median norm of a pass a sink's vector is long
SINK = 10.0


@checked
def activation_size(
    model: ModuleLike,
    texts: Any,
    sites: str | Sequence[str],
    *,
    dtype: Kind = "float32",
    drop: Sequence[Drop] = (),
    second_moment: bool = False,
    rows: Count = 16,
) -> ActivationSize:
    """Size of a store before it is made; see `record_activations`.

    The texts are read and the model does not run, but for one pass of a module whose spec leaves widths open.

    Args:
        model: What would be recorded.
        texts: What it would read.
        sites: Sites that would be stored.
        dtype: Of the stored numbers.
        drop: Positions left out.
        second_moment: Whether products of all pairs of coordinates would be summed.
        rows: Texts in one pass.

    Raises:
        UnknownSite: A name that no site has.
        ShapeMismatch: A site has no vector at each position.
        AnalysisUnavailable: There are no texts, or which tokens a module reads is not known.
    """
    return Corpus.of(model, texts, sites, drop, rows).size(dtype, second_moment)


@checked
def record_activations(
    model: ModuleLike,
    texts: Any,
    sites: str | Sequence[str],
    folder: str | Path,
    *,
    dtype: Kind = "float32",
    drop: Sequence[Drop] = (),
    second_moment: bool = False,
    rows: Count = 16,
    shard: Count = 2**26,
    report: Callable[[int, int], None] | None = None,
) -> ActivationStore:
    """Record what a model holds at some sites over a corpus, in a folder that can be read in any order.

    One pass serves all sites. A recording that was stopped goes on where the last file ends; the folder of another one
    is refused. Ctrl-C ends it between two passes.

    Args:
        model: One of ours, or a module whose sites a spec names (`glassformer.foreign`).
        texts: What it reads: texts or rows of ids, each a document; ids `batch pos`; batches, whose packed documents
            are told apart; labelled text; of a model that reads pairs `(source, target)` or batches.
        sites: Names, globs, short names (`resid_post`, of all layers) and heads (`L1H6.z`), of single positions. Axes
            beside batch and position are laid out flat in their order: rows of `z` have all of head 0 first.
        folder: Made if missing.
        dtype: Of the stored numbers.
        drop: Positions left out: `begin`, special tokens that open a document; `sinks`, positions where the stream,
            at one of the sites, is more than ten times as long as the median of the pass.
        second_moment: Sum products of all pairs of coordinates too: `second_moment` and `covariance` of each site.
        rows: Texts, or rows of ids, in one pass.
        shard: Bytes from which a file is full; what is held in memory is twice that.
        report: Called with (done, total) passes, before the first and after each.

    Raises:
        UnknownSite: A name that no site has.
        ShapeMismatch: A site has no vector at each position, or texts are no sequence.
        AnalysisUnavailable: There are no texts, which tokens a module reads is not known, sinks are to be told without
            a site of the stream, or numbers are not finite in the store's type.
        CheckpointError: The folder holds another recording, or is damaged.
        SaveError: It cannot be written to, or has too little room for all that is missing.
    """
    corpus, folder = Corpus.of(model, texts, sites, drop, rows), Path(folder)
    plan = Plan(
        name=str(getattr(model, "name", "") or type(model).__name__), model=digest(model), texts=corpus.digest,
        columns=tuple(corpus.columns.values()), dtype=dtype, drop=tuple(sorted(set(drop))),
        second_moment=second_moment, shard=shard, passes=len(corpus.passes), documents=corpus.starts[-1],
    )  # fmt: skip
    known = read_manifest(folder)
    difference = "" if known is None else known.plan.difference(plan)
    if known is not None and known.shards and difference:
        raise CheckpointError(
            f'"{folder}" holds another recording: {difference}.\n    Give another folder, or delete that one.'
        )
    # one that stopped before its first file is begun anew
    begun = None if difference else known
    manifest = begun or Manifest(plan, Binding("record_activations", model, [corpus.passes]).said().to_dict())
    if not manifest.is_complete:
        _require_room(folder, corpus.size(dtype, second_moment).bytes, manifest)
    if begun is None:
        files.write(folder / MANIFEST, manifest.text())
    sweep(folder, manifest)
    if not manifest.is_complete:
        _Recording(corpus, folder, manifest).go_on(report or (lambda done, total: None))
    return ActivationStore.open(folder)


def _require_room(folder: Path, size: int, manifest: Manifest) -> None:
    """Raise `SaveError` if what is missing does not fit on the disk."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    missing = size - sum(shard.size for shard in manifest.shards)
    if missing > (free := shutil.disk_usage(there).free):
        raise SaveError(
            f'"{folder}" would take {missing / 2**20:,.0f} MiB more, and its disk has {free / 2**20:,.0f} MiB free.\n'
            "    Record fewer sites or texts, or dtype='float16'."
        )


class _Recording:
    """A recording under way: rows that wait for a file to be full, and moments up to the last pass."""

    def __init__(self, corpus: Corpus, folder: Path, manifest: Manifest) -> None:
        self.corpus, self.folder, self.manifest = corpus, folder, manifest
        self.dtype = DTYPES[manifest.plan.dtype]
        self.sides = sorted({column.source for column in corpus.columns.values()})
        self.waiting: dict[str, list[Tensor]] = defaultdict(list)
        self.held = 0
        known, second = read_moments(folder, manifest), manifest.plan.second_moment
        self.moments = {
            name: Moments.read(name, known) if known else Moments(column.width, second)
            for name, column in corpus.columns.items()
        }

    def go_on(self, report: Callable[[int, int], None]) -> None:
        """Make the passes that are missing."""
        passes, first = self.corpus.passes, self.manifest.passes
        report(first, len(passes))
        with Interrupts() as interrupts:
            for i in range(first, len(passes)):
                self.add(i)
                if self.held >= self.manifest.plan.shard or i + 1 == len(passes):
                    self.write()
                report(i + 1, len(passes))
                interrupts.check()

    def add(self, i: int) -> None:
        """Make one pass and take its rows."""
        model, columns = self.corpus.model, self.corpus.columns
        inputs = read_pass(model, self.corpus.passes[i])
        tape = passed(model, columns, inputs)
        sides = recorded_rows(model, inputs, rows_of(inputs, self.corpus.starts[i]), self.corpus.drop)
        if "sinks" in self.corpus.drop:
            sides = {source: rows.only(~self._sinks(tape, source, rows)) for source, rows in sides.items()}
        for name, column in columns.items():
            rows = rows_at(tape, column, sides[column.source].mask, self.dtype)
            try:
                self.moments[name].add(rows)
            except AnalysisUnavailable as error:
                raise AnalysisUnavailable(f'record_activations: "{name}" in pass {i}: {error}') from error
            self._hold(name, rows)
        for source in self.sides:
            for about in ABOUT:
                self._hold(SIDES[source] + about, getattr(sides[source], about).int())
        counts = [[len(sides[source].tokens) if source in self.sides else 0 for source in SIDES]]
        self.waiting["passes"].append(torch.tensor(counts, dtype=torch.int32))

    def write(self) -> None:
        """Write what waits as one file."""
        moments: dict[str, Tensor] = {}
        for name, one in self.moments.items():
            moments |= one.tensors(name)
        self.manifest = commit(self.folder, self.manifest, self.waiting, moments)
        self.waiting.clear()
        self.held = 0

    def _hold(self, name: str, rows: Tensor) -> None:
        self.waiting[name].append(rows)
        self.held += rows.nbytes

    def _sinks(self, tape: Tape, source: bool, rows: SideRows) -> Tensor:
        """Return which rows are sinks: much longer than the median, at one site of the stream or more."""
        found = torch.zeros_like(rows.tokens, dtype=torch.bool)
        for column in self.corpus.columns.values():
            if column.is_stream and column.source == source and len(found):
                norms = rows_at(tape, column, rows.mask, torch.float64).norm(dim=1)
                found |= norms > SINK * norms.median()
        return found
