"""Held-out text of a language model, and what of it is new: in no run of tokens that training text has, too.

Files come from one author's hands, and copies of a licence or a helper stand on both sides of a split. A model that
knows them by heart is no better a model of what it never read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from glassformer.data import Batch, Tokenizer
from glassformer.data.text.overlap import RUN, Runs


@dataclass(frozen=True)
class HeldOut:
    """Held-out documents, and which of their tokens are new to a model.

    Args:
        documents: Token ids without specials.
        new: For each document whether a token lies in no run of `RUN` tokens that training text has, too.
    """

    documents: list[list[int]]
    new: Sequence[np.ndarray]

    @classmethod
    def beside(cls, documents: Iterable[list[int]], trained: Iterable[list[int]]) -> "HeldOut":
        """Return held-out documents beside those that were trained on."""
        runs, kept = Runs(map(np.array, trained)), list(documents)
        return cls(kept, [runs.new(np.array(ids)) for ids in kept])

    @property
    def counted(self) -> Bool[Tensor, " token"]:
        """Whether each token is new, one document after the other."""
        return torch.from_numpy(np.concatenate(self.new))

    def text(self, tokenizer: Tokenizer) -> bytes:
        """Return what the new tokens spell."""
        pairs = zip(self.documents, self.new, strict=True)
        return b"".join(tokenizer.bytes_of(id) for ids, new in pairs for id, kept in zip(ids, new) if kept)

    def rows(self, length: int, count: int, batch_size: int) -> list[Batch]:
        """Return windows, each within one document, spread evenly over all there are; only new tokens count.

        Args:
            length: Tokens that are predicted in each.
            count: How many at most.
            batch_size: How many in a batch.
        """
        places = [(d, i) for d, ids in enumerate(self.documents) for i in range(0, len(ids) - length, length)]
        count = min(count, len(places))
        taken = [places[k * len(places) // count] for k in range(count)]
        ids = torch.tensor([self.documents[d][i : i + length + 1] for d, i in taken])
        weight = torch.from_numpy(np.stack([self.new[d][i + 1 : i + length + 1] for d, i in taken]))
        parts = [slice(start, start + batch_size) for start in range(0, count, batch_size)]
        return [Batch(ids[part, :-1], ids[part, 1:], weight[part]) for part in parts]

    def said(self) -> str:
        """Return in words what training text has of it."""
        new = self.counted
        n = int((~new).sum())
        return (
            f"overlap: {n:,} of {len(new):,} held-out tokens ({100 * n / len(new):.1f} %) lie in a run of {RUN} tokens "
            "that the text trained on has, too"
        )
