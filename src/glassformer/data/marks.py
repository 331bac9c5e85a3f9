"""Tokens that a reader must not take at face value: words a vocabulary lacks, and characters spelled byte by byte."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from glassformer.data.tokenizer import Tokenizer

# UTF-8 gives no character more bytes
LONGEST = 4


@dataclass(frozen=True)
class Spelled:
    """One character that takes several tokens.

    Args:
        first: Index of its first token.
        end: Index behind its last one.
        character: The character.
        raw: Every one of these tokens is a single byte: no merge holds two of them.
    """

    first: int
    end: int
    character: str
    raw: bool


@dataclass(frozen=True)
class Marks:
    """What is odd about the tokens of one row.

    Args:
        unknown: Indices of tokens that stand for words outside the vocabulary.
        spelled: Characters that take several tokens, in order.
        words: Tokens that stand for a piece of the text, specials aside; unknown ones count.
        learnt: The tokenizer is not bytes by design, so what is spelled byte by byte is what it did not learn.
        text: What the tokens spell, specials aside.
    """

    unknown: tuple[int, ...] = ()
    spelled: tuple[Spelled, ...] = ()
    words: int = 0
    learnt: bool = False
    text: str = ""

    @property
    def mostly_unknown(self) -> bool:
        """Whether more than half of the text is lost."""
        return 2 * len(self.unknown) > self.words

    @property
    def mostly_bytes(self) -> bool:
        """Whether more than half of the tokens are single bytes of characters that the vocabulary did not learn."""
        return 2 * self.byte_tokens > self.words

    @property
    def byte_tokens(self) -> int:
        """How many tokens the characters take of which the vocabulary holds nothing but their single bytes."""
        return sum(one.end - one.first for one in self.by_bytes)

    @property
    def by_bytes(self) -> tuple[Spelled, ...]:
        """Characters of which the vocabulary holds nothing but their single bytes."""
        return tuple(one for one in self.spelled if one.raw) if self.learnt else ()

    def of(self, index: int) -> dict[str, Any]:
        """Return JSON data on one token, empty if nothing is odd: `unknown`, or `character` and the token's `part`."""
        if index in self.unknown:
            return {"unknown": True}
        for one in self.spelled:
            if one.first <= index < one.end:
                return {"character": one.character, "part": index - one.first}
        return {}

    def to_list(self) -> list[dict[str, Any]]:
        """Return JSON data: `index` and what is odd, for each token of which something is."""
        odd = {*self.unknown, *(i for one in self.spelled for i in range(one.first, one.end))}
        return [{"index": i} | self.of(i) for i in sorted(odd)]


UNMARKED = Marks()


def marks(tokenizer: Tokenizer | None, ids: Sequence[int], texts: Sequence[str]) -> Marks:
    """Return what is odd about a row of tokens.

    Args:
        tokenizer: Of the model; without one nothing is known.
        ids: The tokens.
        texts: The same as readable text.
    """
    if tokenizer is None:
        return UNMARKED
    unknown = () if tokenizer.unk is None else tuple(i for i, id in enumerate(ids) if id == tokenizer.unk)
    # bytes that are no text by themselves read as <0xHH>
    broken = [i for i, text in enumerate(texts) if "<0x" in text]
    if not unknown and not broken:
        return UNMARKED
    words = [id for id in ids if id not in tokenizer.specials or id == tokenizer.unk]
    spelled = tuple(_spelled(tokenizer, ids, broken))
    return Marks(unknown, spelled, len(words), not tokenizer.is_bytes, tokenizer.decode(words))


def _spelled(tokenizer: Tokenizer, ids: Sequence[int], broken: Sequence[int]) -> list[Spelled]:
    found: list[Spelled] = []
    for first in broken:
        if found and first < found[-1].end:
            continue
        pieces: list[bytes] = []
        for id in ids[first : first + LONGEST]:
            pieces.append(tokenizer.bytes_of(id))
            # bytes that are no text decode to nothing
            character = b"".join(pieces).decode("utf-8", "ignore")
            if len(character) == 1 and character.encode() == b"".join(pieces):
                found.append(Spelled(first, first + len(pieces), character, all(len(piece) == 1 for piece in pieces)))
                break
    return found
