"""Rows in random order across documents, in bounded memory: a function of seed and step, whatever the files are.

Rows are taken in blocks of 64, the blocks of an epoch are put in random order, and as many as a buffer holds are mixed
row by row. So every row comes once in an epoch, a buffer has blocks from all over the corpus, and no more is held than
two buffers and a number for each block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glassformer.analysis.activations._manifest import ABOUT, SIDES
from glassformer.arguments import Natural, checked
from glassformer.data.batch import generator
from glassformer.errors import AnalysisUnavailable

if TYPE_CHECKING:
    from glassformer.analysis.activations._store import StoredSite

BLOCK = 64


@dataclass(frozen=True, eq=False)
class ActivationBatch:
    """Rows of one site.

    Args:
        values: In the type that they are stored in.
        tokens: Token of each row; -1 of an image's patches.
        documents: Document of each, counted from 0 through the corpus.
        positions: Place of each within its document, from 0.
        rows: Which rows of the store they are.
    """

    values: Float[Tensor, "row width"]
    tokens: Int[Tensor, " row"]
    documents: Int[Tensor, " row"]
    positions: Int[Tensor, " row"]
    rows: Int[Tensor, " row"]

    def __len__(self) -> int:
        return len(self.values)

    def at(self, places: Tensor) -> "ActivationBatch":
        """Return rows of it."""
        return ActivationBatch(
            values=self.values[places],
            tokens=self.tokens[places],
            documents=self.documents[places],
            positions=self.positions[places],
            rows=self.rows[places],
        )


def joined(parts: list[ActivationBatch]) -> ActivationBatch:
    """Return batches of one site as one."""
    return ActivationBatch(
        values=torch.cat([part.values for part in parts]),
        tokens=torch.cat([part.tokens for part in parts]),
        documents=torch.cat([part.documents for part in parts]),
        positions=torch.cat([part.positions for part in parts]),
        rows=torch.cat([part.rows for part in parts]),
    )


class ShuffledRows:
    """Batches of one site in random order; `batch(step)` gives any of them, iterating those of the first epoch.

    Args:
        site: Whose rows.
        batch_size: Rows in each; the last of an epoch has what is left.
        seed: Source of the order. Sites of one side come in the same order.
        buffer: Rows that are mixed with each other, at least a batch; up to two buffers are held.
    """

    def __init__(self, site: "StoredSite", batch_size: int, seed: int, buffer: int) -> None:
        if not len(site):
            raise AnalysisUnavailable(f'"{site.name}" has no rows in this store: there is nothing to shuffle.')
        self.site, self.batch_size, self.seed = site, batch_size, seed
        self.blocks = -(-max(buffer, batch_size) // BLOCK)
        self._order: tuple[int, Tensor, Tensor] | None = None
        self._held: dict[tuple[int, int], ActivationBatch] = {}

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-len(self.site) // self.batch_size)

    def __iter__(self) -> Iterator[ActivationBatch]:
        return (self.batch(step) for step in range(len(self)))

    @checked
    def batch(self, step: Natural) -> ActivationBatch:
        """Return the batch of a step, counted from 0 on through all epochs.

        Raises:
            CheckpointError: A file of the store is missing or damaged.
        """
        epoch, within = divmod(step, len(self))
        low = within * self.batch_size
        high = min(low + self.batch_size, len(self.site))
        _, ends = self._epoch(epoch)
        first, last = (int(torch.searchsorted(ends, place, right=True)) for place in (low, high - 1))
        parts: list[ActivationBatch] = []
        for buffer in range(first, last + 1):
            begin = int(ends[buffer - 1]) if buffer else 0
            held = self._buffer(epoch, buffer)
            parts.append(held.at(torch.arange(max(low - begin, 0), min(high - begin, len(held)))))
        # steps go on from here: what lies behind is not asked for again
        self._held = {key: held for key, held in self._held.items() if (epoch, first) <= key <= (epoch, last)}
        return joined(parts)

    def _epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the blocks of an epoch in order, and where each buffer ends among its rows."""
        if self._order is None or self._order[0] != epoch:
            count = -(-len(self.site) // BLOCK)
            order = torch.randperm(count, generator=generator("activations", self.seed, epoch))
            sizes = torch.full((count,), BLOCK)
            sizes[order == count - 1] = len(self.site) - (count - 1) * BLOCK
            last = torch.arange(self.blocks - 1, count + self.blocks - 1, self.blocks).clamp_max(count - 1)
            self._order = epoch, order, sizes.cumsum(0)[last]
        return self._order[1], self._order[2]

    def _buffer(self, epoch: int, buffer: int) -> ActivationBatch:
        """Return the rows of a buffer, mixed."""
        key = epoch, buffer
        if key not in self._held:
            order, _ = self._epoch(epoch)
            blocks = order[buffer * self.blocks : (buffer + 1) * self.blocks].sort().values.tolist()
            ranges = [(block * BLOCK, min((block + 1) * BLOCK, len(self.site))) for block in blocks]
            found = read_rows(self.site, ranges)
            mixed = torch.randperm(len(found), generator=generator("buffer", self.seed, epoch, buffer))
            self._held[key] = found.at(mixed)
        return self._held[key]


def read_rows(site: "StoredSite", ranges: list[tuple[int, int]]) -> ActivationBatch:
    """Return ranges of rows of a site, one behind the other."""
    side = SIDES[site.column.source]
    names = [site.name, *(side + about for about in ABOUT)]
    found = site.shards.read(names, ranges)
    values, tokens, documents, positions = (torch.cat(found[name]) for name in names)
    return ActivationBatch(
        values=values,
        tokens=tokens.long(),
        documents=documents.long(),
        positions=positions.long(),
        rows=torch.cat([torch.arange(low, high) for low, high in ranges]),
    )
