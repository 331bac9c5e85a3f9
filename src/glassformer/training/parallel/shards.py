"""Which rank holds which positions of a sequence: it is cut into chunks, and each chunk has an owner.

    contiguous   rank p holds chunk p of P
    zigzag       rank p holds chunks p and 2P - 1 - p of 2P, so that under a causal mask all ranks meet as many keys

Chunks differ by one position at most where a length does not divide; a cut may fall anywhere in a document.
Source: zigzag of zhuzilin/ring-flash-attention (`zigzag_ring_flash_attn_varlen.py`); cuts anywhere of MiniMax 2025,
"MiniMax-01" (2501.08313), section 3.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from glassformer.arguments import Count, Natural, checked
from glassformer.config import require


@dataclass(frozen=True)
class SequenceShards:
    """Chunks of a sequence, and the rank that owns each.

    Args:
        bounds: Where chunks begin and end: 0, …, the length of the sequence.
        owners: The rank of each chunk.
        ranks: How many ranks there are; each owns a chunk, which may be empty.

    Raises:
        ConfigError: Bounds fall or do not begin at 0, or a chunk has no owner, or a rank no chunk.
    """

    bounds: tuple[int, ...]
    owners: tuple[int, ...]
    ranks: int

    def __post_init__(self) -> None:
        rising = all(start <= stop for start, stop in pairwise(self.bounds))
        require(self.bounds[:1] == (0,) and rising, f"shards: bounds begin at 0 and rise, found {self.bounds}.")
        n_chunks = len(self.bounds) - 1
        require(len(self.owners) == n_chunks, f"shards: {n_chunks} chunks have {len(self.owners)} owners.")
        # who owns nothing would be missing where all ranks exchange
        owned = {*self.owners} == {*range(self.ranks)}
        require(owned, f"shards: each of {self.ranks} ranks owns a chunk, if an empty one; found {self.owners}.")

    @classmethod
    @checked
    def contiguous(cls, length: Natural, ranks: Count) -> Self:
        """One chunk a rank, in order.

        Args:
            length: Positions of the sequence.
            ranks: How many ranks there are.
        """
        return cls(_even(length, ranks), tuple(range(ranks)), ranks)

    @classmethod
    @checked
    def zigzag(cls, length: Natural, ranks: Count) -> Self:
        """Two chunks a rank, one from either end, so that causal attention costs every rank the same.

        Args:
            length: Positions of the sequence.
            ranks: How many ranks there are.
        """
        return cls(_even(length, 2 * ranks), (*range(ranks), *reversed(range(ranks))), ranks)

    @property
    def length(self) -> int:
        """Positions of the whole sequence."""
        return self.bounds[-1]

    @property
    def n_chunks(self) -> int:
        """How many chunks there are, empty ones included."""
        return len(self.owners)

    @cached_property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """The chunks of each rank, in the order of positions."""
        return tuple(tuple(c for c, owner in enumerate(self.owners) if owner == rank) for rank in range(self.ranks))

    def span(self, chunk: int) -> tuple[int, int]:
        """Where a chunk begins and ends in the sequence."""
        return self.bounds[chunk], self.bounds[chunk + 1]

    def lengths(self, rank: int) -> list[int]:
        """How many positions each chunk of a rank has."""
        return [stop - start for start, stop in map(self.span, self.chunks[rank])]

    def starts(self, rank: int) -> dict[int, int]:
        """Where each chunk of a rank begins among the positions that the rank holds."""
        found, start = dict[int, int](), 0
        for chunk, length in zip(self.chunks[rank], self.lengths(rank), strict=True):
            found[chunk], start = start, start + length
        return found

    def positions(self, rank: int) -> list[int]:
        """The positions that a rank holds, in order."""
        return [t for chunk in self.chunks[rank] for t in range(*self.span(chunk))]

    def shard(self, x: Tensor, rank: int, axis: int = -2) -> Tensor:
        """Return what a rank holds of a tensor that has all positions on an axis."""
        spans = [(0, 0), *map(self.span, self.chunks[rank])]
        return torch.cat([x.narrow(axis, start, stop - start) for start, stop in spans], axis)

    def whole(self, shards: list[Tensor], axis: int = -2) -> Tensor:
        """Return the tensor of all positions, given what each rank holds: the inverse of `shard`."""
        split = [iter(x.split(self.lengths(rank), axis)) for rank, x in enumerate(shards)]
        return torch.cat([next(split[owner]) for owner in self.owners], axis)


def _even(length: int, chunks: int) -> tuple[int, ...]:
    return tuple(length * i // chunks for i in range(chunks + 1))
