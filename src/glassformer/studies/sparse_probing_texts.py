"""Python of the standard library of whose tokens it is known what they are: what sparse probing is asked about.

    docstring, comment      stretches of either against stretches of code, of the same file
    licence                 of comments that speak of rights, against other comments
    package                 of files of `asyncio`, against files of `email`
    pair 0, pair 1, …       a token behind one that often stands before it, against the same token behind others

Each row of tokens is of a file of its own. Of each property there are as many examples that have it as examples that
have it not.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from glassformer.data.labels import LabelledDocument, python_labels
from glassformer.data.text.sources import Document, python_stdlib
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError

CONTEXTS = ("docstring", "comment", "licence", "package")
WITHIN = CONTEXTS[:2]  # that are compared file by file
PACKAGES = ("asyncio/", "email/")
LENGTH, STRETCH, MOST = 256, 8, 1000  # tokens of a row, and of a stretch; examples of either kind
HOLDING = 8  # rows in which a pair has to stand
COMMENTS = re.compile(r"(?m)(?:^[ \t]*#.*(?:\n|\Z))+")
RIGHTS = re.compile(r"(?i)licen[sc]e|copyright|warrant|permission")


class Examples(NamedTuple):
    """Stretches of tokens that have a property, and as many that have not.

    Args:
        rows: Row that each stands in.
        firsts: Its first token, counted through all rows.
        labels: Whether it has the property, 1 or 0.
        size: How many tokens each has.
    """

    rows: Int[Tensor, " example"]
    firsts: Int[Tensor, " example"]
    labels: Int[Tensor, " example"]
    size: int


class Texts(NamedTuple):
    """Rows of tokens, each of a file, and examples of each property in them."""

    rows: list[list[int]]
    examples: dict[str, Examples]


class Row(NamedTuple):
    """Tokens of a file, one behind the other.

    Args:
        name: Of the file.
        ids: Of the tokens.
        kinds: What each stands in: docstring, comment, string or code.
        rights: Whether each stands in a comment that speaks of rights.
    """

    name: str
    ids: tuple[int, ...]
    kinds: tuple[str | None, ...]
    rights: tuple[bool, ...]


def drawn(tokenizer: Tokenizer, files: int, pairs: int, seed: int) -> Texts:
    """Return rows of some files, with examples.

    Args:
        tokenizer: Of the model that reads them.
        files: How many of any kind, how many that speak of rights, and how many of each package.
        pairs: How many pairs of tokens.
        seed: Of the draw.
    """
    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    rows = list(rows_of(files, tokenizer, random))
    assert tokenizer.bos is not None, "shipped models begin texts with a token of their own"
    begin = tokenizer.bos
    told = {name: (labels, STRETCH) for name, labels in contexts(rows)}
    told |= {name: (labels, 1) for name, labels in pairs_of(rows, pairs, tokenizer)}
    examples = {
        name: balanced(stretches([[-1, *one] for one in labels], size), name in WITHIN, generator)
        for name, (labels, size) in told.items()
    }
    return Texts([[begin, *row.ids] for row in rows], examples)


def rows_of(n: int, tokenizer: Tokenizer, random: Random) -> Iterator[Row]:
    """Yield a row of each of some files: of any, of those that speak of rights, and of both packages."""
    files = [file for file in python_stdlib() if file.text.strip()]
    random.shuffle(files)
    groups = [files, [file for file in files if any(rights_of(file.text))]]
    groups += [[file for file in files if file.name.startswith(package)] for package in PACKAGES]
    for file in {file.name: file for group in groups for file in group[:n]}.values():
        try:
            (document,) = python_labels([file], tokenizer)
        except DataError:
            # of another Python, or wrong on purpose
            continue
        if found := row_of(file, document, random):
            yield found


def row_of(file: Document, document: LabelledDocument, random: Random) -> Row | None:
    """Return tokens around one that is drawn, of English; where there are rights, every other time of those."""
    kinds, spans = document.classes["text"], list(rights_of(file.text))
    rights = [any(first <= word[0] < end for first, end in spans) for word in document.words]
    places = [i for i, is_so in enumerate(rights) if is_so] if random.random() < 0.5 else []
    places = places or [i for i, kind in enumerate(kinds) if kind in ("docstring", "comment")]
    if not places:
        return None
    first = max(0, random.choice(places) - random.randrange(LENGTH))
    here = slice(first, first + LENGTH)
    return Row(file.name, document.ids[here], kinds[here], tuple(rights[here]))


def rights_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield where comments stand that speak of rights, by their first character and the one behind their last."""
    yield from (found.span() for found in COMMENTS.finditer(text) if RIGHTS.search(found[0]))


def contexts(rows: Sequence[Row]) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield the contexts by name, with what they say of each token of each row: 1, 0, or nothing, -1."""
    for kind in WITHIN:
        told = {kind: 1, "code": 0}
        yield kind, [[told.get(one or "", -1) for one in row.kinds] for row in rows]
    comments = [[int(own) if kind == "comment" else -1 for kind, own in zip(row.kinds, row.rights)] for row in rows]
    yield "licence", comments
    of_file = [next((1 - i for i, one in enumerate(PACKAGES) if row.name.startswith(one)), -1) for row in rows]
    yield "package", [[one] * len(row.ids) for one, row in zip(of_file, rows)]


def pairs_of(rows: Sequence[Row], n: int, tokenizer: Tokenizer) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield the pairs that have most examples of the rarer kind, each with a last token of its own, no white space."""
    together, last, holding = Counter[tuple[int, int]](), Counter[int](), Counter[tuple[int, int]]()
    for row in rows:
        found = [pair for pair in pairwise(row.ids) if all(tokenizer.token(id).strip() for id in pair)]
        together.update(found)
        holding.update(set(found))
        last.update(row.ids[1:])
    examples = {pair: min(count, last[pair[1]] - count) for pair, count in together.items() if holding[pair] >= HOLDING}
    chosen: dict[int, int] = {}
    for before, token in sorted(examples, key=lambda pair: (-examples[pair], pair)):
        chosen.setdefault(token, before)
    for i, (token, before) in enumerate(list(chosen.items())[:n]):
        labels = [[-1, *(int(a == before) if b == token else -1 for a, b in pairwise(row.ids))] for row in rows]
        yield f"pair {i}", labels


def stretches(labels: Sequence[Sequence[int]], size: int) -> Examples:
    """Return all stretches of tokens of one label, side by side."""
    found, start = list[tuple[int, int, int]](), 0
    for row, told in enumerate(labels):
        i = 0
        while i + size <= len(told):
            is_one = told[i] >= 0 and all(one == told[i] for one in told[i : i + size])
            if is_one:
                found.append((row, start + i, told[i]))
            i += size if is_one else 1
        start += len(told)
    rows, firsts, kinds = torch.tensor(found, dtype=torch.long).view(-1, 3).unbind(-1)
    return Examples(rows, firsts, kinds, size)


def balanced(examples: Examples, within: bool, random: torch.Generator) -> Examples:
    """Return as many examples that have a property as that have not, drawn at random; if so, in each row."""
    kept = torch.randperm(len(examples.labels), generator=random)
    if within:
        rows = examples.rows[kept]
        kept = torch.cat([_evened(kept[rows == row], examples.labels) for row in rows.unique()])
        kept = kept[torch.randperm(len(kept), generator=random)]
    kept = _evened(kept, examples.labels).sort().values
    return Examples(examples.rows[kept], examples.firsts[kept], examples.labels[kept], examples.size)


def _evened(places: Tensor, labels: Tensor) -> Tensor:
    """Return the first of some examples, as many of either label."""
    has, has_not = (places[labels[places] == one] for one in (1, 0))
    most = min(len(has), len(has_not), MOST)
    return torch.cat((has[:most], has_not[:most]))
