"""Rows that lie in pages of a store, which many texts share; to a mechanism they are a state's rows like any others.

    token t of a text      slot table[t // s] s + t % s of the store, s slots a page
    append                 new rows are written to their slots, then all of the text's are gathered

Which page is whose, and that no slot is written that another text reads, is for the owner of the store to see to. Rows
of texts of unequal length end at the same column; what stands before them is one slot that belongs to no text.

Source: Kwon et al. 2023, Efficient memory management for large language model serving with PagedAttention.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Places:
    """Where the rows of a pass lie, in all layers alike.

    Args:
        slots: Of all positions that the pass reaches over, the new ones last.
        n_new: How many those are.
        memo: What layers have asked for already.
    """

    slots: Int[Tensor, "batch pos"]
    n_new: int
    memo: dict[int, Tensor] = field(default_factory=dict)

    @property
    def n_earlier(self) -> int:
        return self.slots.shape[1] - self.n_new

    @property
    def new(self) -> Int[Tensor, " batch_and_new"]:
        """The slots of the new positions, text by text."""
        return self.last(self.n_new)

    def last(self, n: int) -> Int[Tensor, " batch_and_n"]:
        """Return the slots of the last `n` positions, text by text."""
        if n not in self.memo:
            self.memo[n] = self.slots[:, self.slots.shape[1] - n :].flatten()
        return self.memo[n]


@dataclass(frozen=True, eq=False)
class PagedRows:
    """The rows of a state before a pass: a store of all texts, and where the rows of these lie in it."""

    store: Float[Tensor, "*lead slot width"]
    places: Places

    @property
    def shape(self) -> torch.Size:
        """The shape that the rows would have as one tensor: `batch *lead pos width`."""
        *lead, _, width = self.store.shape
        return torch.Size((len(self.places.slots), *lead, self.places.n_earlier, width))

    @property
    def dtype(self) -> torch.dtype:
        return self.store.dtype

    def append(
        self, new: Float[Tensor, "batch *lead new width"], keep: int | None = None
    ) -> tuple[Float[Tensor, "batch *lead all width"], "PagedRows"]:
        """Write new rows to their slots; return them behind the earlier ones, the last `keep` of these if given."""
        places = self.places
        self.store.index_copy_(-2, places.new, new.movedim(0, -3).flatten(-3, -2))
        earlier = places.n_earlier if keep is None else min(keep, places.n_earlier)
        n = earlier + places.n_new
        rows = self.store.index_select(-2, places.last(n)).unflatten(-2, (-1, n))
        return rows.movedim(-3, 0), self
