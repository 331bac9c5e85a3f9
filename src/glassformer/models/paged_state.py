"""The states of many texts, for passes that continue any of them together: rows in pages, the rest text by text.

What a state has one row of per position (keys, values, latents, earlier scores) lies in a store of pages. What has the
same size at every length (memories of linear attention, of a recurrent layer, last inputs of a convolution) is `fixed`:
each text has its own, and those of a pass are stacked. Which is which, one token shows that is read behind nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.attention.kernels.paged import PagedRows, Places
from glassformer.models.decoder import Decoder
from glassformer.models.stack import State, mapped, tensors
from glassformer.numerics.placement import place_of
from glassformer.trace import Tape

Fixed = tuple[Tensor, ...]


@dataclass(frozen=True)
class Going:
    """One text of a pass: its pages, how many of its tokens they hold, what comes next, and its fixed part."""

    table: Sequence[int]
    stored: int
    new: Sequence[int]
    fixed: Fixed


class Read(NamedTuple):
    """What a pass leaves: the logits behind the last token of each text, and the fixed parts of their states."""

    logits: Float[Tensor, "batch vocab"]
    fixed: tuple[Fixed, ...]


class PagedState:
    """A store for the rows of a decoder's states.

    Args:
        model: The decoder that makes them.
        n_pages: How many pages there are.
        page_size: Tokens on each.
    """

    def __init__(self, model: Decoder, n_pages: int, page_size: int) -> None:
        self.model, self.page_size = model, page_size
        empty = model.begin(1)
        with torch.no_grad():
            after = tensors(model(torch.zeros(1, 1, dtype=torch.int64, device=place_of(model)), state=empty)[1].layers)
        self.template, before = empty.layers, tensors(empty.layers)
        self.grows = [(a.shape[-2:-1], b.shape[-2:-1]) == ((0,), (1,)) for a, b in zip(before, after)]
        self.empty: Fixed = tuple(a for a, grows in zip(before, self.grows) if not grows)
        # one slot behind the last page: what stands before texts shorter than others is there
        self.spare = n_pages * page_size
        self.stores = [
            row.new_zeros(*row.shape[1:-2], self.spare + 1, row.shape[-1])
            for row, grows in zip(after, self.grows)
            if grows
        ]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers together."""
        return sum(store[..., : self.page_size, :].nbytes for store in self.stores)

    @property
    def shareable(self) -> bool:
        """Whether the pages of a text are all that a longer one needs: fixed parts are of the text's end alone."""
        return not any(part.numel() for part in self.empty)

    def copy(self, page: int, to: int) -> None:
        """Copy what a page holds to another."""
        size = self.page_size
        for store in self.stores:
            store[..., to * size : (to + 1) * size, :] = store[..., page * size : (page + 1) * size, :]

    @torch.no_grad()
    def read(self, texts: Sequence[Going]) -> Read:
        """Read the new tokens of some texts in one pass; these are equally many, unless all texts begin here.

        Rows end at the same column, as they do when prompts of unequal lengths are generated from.
        """
        past, n = max(text.stored for text in texts), max(len(text.new) for text in texts)
        assert past == 0 or all(len(text.new) == n for text in texts), "columns between earlier and new tokens"
        ends = np.array([text.stored + len(text.new) for text in texts])
        at = np.arange(past + n) - (past + n - ends)[:, None]
        tokens = torch.tensor([[*[text.new[0]] * (n - len(text.new)), *text.new] for text in texts])
        padded = int(ends.min()) < past + n
        device = place_of(self.model)
        places = Places(torch.from_numpy(self._slots(texts, at)).to(device), n)
        start = torch.from_numpy(past + n - ends).to(device) if padded else None
        state = State(past, self._layers(texts, places), start)
        # the logits of every position of a long prompt would outweigh all else, so the stack's output is asked for
        tape = None if n == 1 else Tape(self.model, logits=False)
        out, state = self.model(tokens.to(device), state=state, tape=tape)
        last = out[:, -1] if tape is None else self.model.unembed.logits(out[:, -1])
        parts = [part.unbind(0) for part in tensors(state.layers)]
        return Read(last, tuple(tuple(part[row][None] for part in parts) for row in range(len(texts))))

    def _slots(self, texts: Sequence[Going], at: np.ndarray) -> np.ndarray:
        """Return where positions of each text lie; those before its first in the spare slot."""
        tables = np.zeros((len(texts), max(len(text.table) for text in texts)), dtype=np.int64)
        for row, text in zip(tables, texts):
            row[: len(text.table)] = text.table
        page, token = np.divmod(np.maximum(at, 0), self.page_size)
        return np.where(at < 0, self.spare, np.take_along_axis(tables, page, 1) * self.page_size + token)

    def _layers(self, texts: Sequence[Going], places: Places) -> tuple[object, ...]:
        """Return the state's layers before a pass over these texts."""
        grows, stores = iter(self.grows), iter(self.stores)
        fixed = iter([torch.cat(parts) for parts in zip(*(text.fixed for text in texts), strict=True)])
        return mapped(self.template, lambda _: PagedRows(next(stores), places) if next(grows) else next(fixed))
