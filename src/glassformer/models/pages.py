"""Who holds which page: reference counts, full pages known by what they hold, and pages that are free.

A page has room for the same number of tokens, in all layers. A text holds its pages in order; a page may be part of
several texts, and is written by none of them then. A full page is known by a digest of its tokens and of the page
before it, so by the whole text up to its end. One that no text holds is free, and still known until it is taken for
another.

Source: Kwon et al. 2023, Efficient memory management for large language model serving with PagedAttention.
"""

import hashlib
from collections.abc import Sequence


class Pages:
    """A fixed number of pages; no tensor is here.

    Args:
        n: How many there are.
        size: Tokens on each.
    """

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size = n, size
        self.references = [0] * n
        # in the order they came free: what was held last stays known longest
        self.free: dict[int, None] = dict.fromkeys(range(n))
        self.known: dict[bytes, int] = {}
        self.digests: dict[int, bytes] = {}

    @property
    def n_held(self) -> int:
        """How many pages texts hold."""
        return self.n - len(self.free)

    def needed(self, length: int) -> int:
        """Return how many pages a text of so many tokens fills, the last one in part."""
        return -(-length // self.size)

    def take(self) -> int:
        """Return a free page, which is known no longer for what it held."""
        page = next(iter(self.free))
        del self.free[page]
        if (digest := self.digests.pop(page, None)) is not None:
            del self.known[digest]
        self.references[page] = 1
        return page

    def share(self, page: int) -> int:
        """Count one more text that holds a page, or the first again."""
        self.free.pop(page, None)
        self.references[page] += 1
        return page

    def release(self, page: int) -> None:
        """Count one text less; a page of none is free."""
        self.references[page] -= 1
        if not self.references[page]:
            self.free[page] = None

    def name(self, page: int, digest: bytes) -> None:
        """Let a full page be found by what it holds, unless another one is."""
        if digest not in self.known and page not in self.digests:
            self.known[digest], self.digests[page] = page, digest

    def matching(self, digests: Sequence[bytes]) -> list[int]:
        """Return the pages that hold the beginning of a text, as far as they are known."""
        found: list[int] = []
        for digest in digests:
            if digest not in self.known:
                break
            found.append(self.known[digest])
        return found


def extend_digests(digests: list[bytes], ids: Sequence[int], size: int) -> None:
    """Add the digests of further full pages of a text to those that are there."""
    for page in range(len(digests), len(ids) // size):
        before = digests[-1] if digests else b""
        held = ",".join(map(str, ids[page * size : (page + 1) * size]))
        digests.append(hashlib.blake2b(before + held.encode(), digest_size=16).digest())
