"""Runs of tokens that documents share: what is cut from training text so that held-out text stays new, and near copies.

A *run* is `RUN` consecutive tokens of one document. Held-out text stays new if no run of it is left in training text.
"""

from collections.abc import Iterable, Sequence

import numpy as np

RUN = 13
NEAR_COPY = 0.5  # share of runs that occurred before, from which on a document is a near copy
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SAMPLED = np.uint64(8)


class Runs:
    """The runs of some documents, to find again in others."""

    def __init__(self, documents: Iterable[np.ndarray]) -> None:
        self.known = np.unique(np.concatenate([np.empty(0, np.uint64), *map(hashed_runs, documents)]))

    def begin(self, ids: np.ndarray) -> np.ndarray:
        """Return where a run begins that is among these, as indices."""
        found = hashed_runs(ids)
        at = np.searchsorted(self.known, found)
        inside = at < len(self.known)
        return np.flatnonzero(inside)[self.known[at[inside]] == found[inside]]

    def new(self, ids: np.ndarray) -> np.ndarray:
        """Return for each token of a document whether it lies in no run among these."""
        edges, begin = np.zeros(len(ids) + 1, np.int64), self.begin(ids)
        np.add.at(edges, begin, 1)
        np.add.at(edges, begin + RUN, -1)
        return np.cumsum(edges)[:-1] == 0

    def outside(self, ids: np.ndarray) -> list[np.ndarray]:
        """Return the pieces of a document that lie in no run among these; a piece shorter than a run goes too."""
        kept = self.new(ids)
        if kept.all():
            return [ids]
        turns = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]])))
        return [ids[start:stop] for start, stop in zip(turns[::2], turns[1::2]) if stop - start >= RUN]


def near_copies(documents: Sequence[np.ndarray]) -> list[bool]:
    """Return for each document whether at least `NEAR_COPY` of its runs occurred in the documents before it.

    One run in eight is looked at, chosen by its hash; a document in which that leaves none is no copy.
    """
    sampled = [found[found % _SAMPLED == 0] for found in map(hashed_runs, documents)]
    owners = np.repeat(np.arange(len(documents)), [len(found) for found in sampled])
    _, first, which = np.unique(
        np.concatenate([np.empty(0, np.uint64), *sampled]), return_index=True, return_inverse=True
    )
    before = owners[first][which] < owners
    counts = np.bincount(owners, minlength=len(documents))
    again = np.bincount(owners, weights=before, minlength=len(documents))
    return (again >= np.maximum(counts * NEAR_COPY, 1e-9)).tolist()


def hashed_runs(ids: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each run of a document, in order; none if it is shorter than one."""
    count = max(0, len(ids) - RUN + 1)
    wide = ids.astype(np.uint64) + np.uint64(1)
    found = np.zeros(count, np.uint64)
    for i in range(RUN):
        found = found * _MULTIPLIER + wide[i : i + count]
    # products alone would leave the low bits to the low bits of the ids
    return found ^ (found >> np.uint64(29))
