"""Phrase-structure rules as data, and the derivation of a sentence by them.

    {"NP": ("DET NOUN", "PRON"), "S": ("NP:subject V NP:object?",)}

A symbol with rules is a phrase, one with words a part of speech; `?` marks what may be absent, and what follows a
colon is the role of the phrase. Where several derivations fit, the first in the order of the rules is given.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from glassformer.data.labels.tree import Node, Tree


class Part(NamedTuple):
    """A part of a derivation: its symbol, its role, its first character, the one behind its last, and what it holds."""

    symbol: str
    role: str
    first: int
    end: int
    inside: "tuple[Part, ...]"


@dataclass(frozen=True, eq=False)
class Derivation:
    """A sentence's tree, and of each node its role, or that of what it stands in, and whether it is a phrase."""

    tree: Tree
    roles: tuple[str | None, ...]
    phrases: tuple[bool, ...]


@dataclass(frozen=True)
class Rules:
    """Rules of one language.

    Args:
        phrases: What each phrase may be made of, symbols in order.
        words: The words of each part of speech.
        spaced: Whether words stand apart.
    """

    phrases: Mapping[str, tuple[str, ...]]
    words: Mapping[str, frozenset[str]]
    spaced: bool

    def derive(self, sentence: str) -> Derivation | None:
        """The derivation of a whole sentence from `S`; None if there is none.

        Args:
            sentence: Without the stop at its end.
        """
        return next(self.readings(sentence), None)

    def readings(self, sentence: str) -> Iterator[Derivation]:
        """Yield every derivation of a whole sentence, in the order of the rules.

        Args:
            sentence: Without the stop at its end.
        """
        for part in self._phrase("S", "", sentence, 0):
            if part.end == len(sentence):
                yield _as_tree(part, self.phrases)

    def _phrase(self, symbol: str, role: str, sentence: str, first: int) -> Iterator[Part]:
        for alternative in self.phrases[symbol]:
            for inside in self._sequence(alternative.split(), sentence, first):
                if inside:
                    yield Part(symbol, role, first, inside[-1].end, inside)

    def _sequence(self, symbols: Sequence[str], sentence: str, first: int) -> Iterator[tuple[Part, ...]]:
        if not symbols:
            yield ()
            return
        told, *rest = symbols
        optional = told.endswith("?")
        symbol, _, role = told.removesuffix("?").partition(":")
        begin = first + (self.spaced and sentence[first : first + 1] == " ")
        for part in self._one(symbol, role, sentence, begin):
            for others in self._sequence(rest, sentence, part.end):
                yield (part, *others)
        if optional:
            yield from self._sequence(rest, sentence, first)

    def _one(self, symbol: str, role: str, sentence: str, first: int) -> Iterator[Part]:
        if symbol in self.phrases:
            yield from self._phrase(symbol, role, sentence, first)
            return
        # longest first, so that a word wins over one that it begins with
        for word in sorted(self.words[symbol], key=len, reverse=True):
            end = first + len(word)
            if sentence.startswith(word, first) and not (self.spaced and sentence[end : end + 1].strip()):
                yield Part(symbol, role, first, end, ())


def _as_tree(whole: Part, phrases: Mapping[str, object]) -> Derivation:
    nodes: list[Node] = []
    roles: list[str | None] = []
    waiting: list[tuple[Part, int, str | None]] = [(whole, -1, None)]
    while waiting:
        part, parent, role = waiting.pop()
        role = part.role or role
        nodes.append(Node(part.symbol, part.first, part.end, parent))
        roles.append(role)
        waiting += [(inner, len(nodes) - 1, role) for inner in part.inside[::-1]]
    return Derivation(Tree(tuple(nodes)), tuple(roles), tuple(node.kind in phrases for node in nodes))
