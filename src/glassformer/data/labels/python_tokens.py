"""What Python's own tokenizer says of each character of a file: kind, text or code, literal, depth of brackets, block.

From Python 3.12 on an f-string is several tokens, before it is one; here it is one string everywhere.
"""

import io
import keyword
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

KINDS = {
    tokenize.NAME: "name", tokenize.NUMBER: "number", tokenize.STRING: "string", tokenize.OP: "operator",
    tokenize.COMMENT: "comment", tokenize.NEWLINE: "newline", tokenize.NL: "newline",
}  # fmt: skip
CONSTANTS = {"True": "bool", "False": "bool", "None": "None"}
PREFIXES = {"b": "bytes", "f": "f-string", "t": "t-string"}
Spans = Sequence[tuple[int, int]]


class Lexeme(NamedTuple):
    """A token of Python: its kind, its first character in the file, the one behind its last, and its text."""

    kind: str
    first: int
    end: int
    text: str


def line_starts(code: str) -> list[int]:
    """Return where each line begins, as Python counts lines."""
    return [0, *(place.end() for place in re.finditer("\n", code))]


def lexemes(code: str) -> list[Lexeme]:
    """Return the tokens of a file in order, those of no characters left out; blocks that begin and end are kept.

    Raises:
        SyntaxError: It is no Python. `tokenize.TokenError` alike.
    """
    return [*_whole_strings(_raw(code), code)]


def _raw(code: str) -> Iterator[tuple[str, Lexeme]]:
    starts = line_starts(code)
    for found in tokenize.generate_tokens(io.StringIO(code, newline="\n").readline):
        first, end = (starts[min(row, len(starts)) - 1] + column for row, column in (found.start, found.end))
        kind = KINDS.get(found.type, tokenize.tok_name[found.type].lower())
        if kind == "name" and keyword.iskeyword(found.string):
            kind = "keyword"
        yield tokenize.tok_name[found.type], Lexeme(kind, min(first, len(code)), min(end, len(code)), found.string)


def _whole_strings(tokens: Iterable[tuple[str, Lexeme]], code: str) -> Iterator[Lexeme]:
    depth, begun = 0, 0
    for name, token in tokens:
        if name in ("FSTRING_START", "TSTRING_START"):
            begun = begun if depth else token.first
            depth += 1
        elif name in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
            if not depth:
                yield Lexeme("string", begun, token.end, code[begun : token.end])
        elif not depth and (token.first < token.end or token.kind in ("indent", "dedent")):
            yield token


def kinds(code: str, tokens: Sequence[Lexeme]) -> list[str]:
    """Return the kind of each character; white space is `indent` where it begins a line, else `space`."""
    found = ["space"] * len(code)
    for begun in re.finditer(r"(?m)^[ \t\f]+", code):
        found[begun.start() : begun.end()] = ["indent"] * len(begun[0])
    for token in tokens:
        if token.kind not in ("indent", "dedent"):
            found[token.first : token.end] = [token.kind] * (token.end - token.first)
    return found


def texts(code: str, tokens: Sequence[Lexeme], docstrings: Spans) -> list[str]:
    """Return whether each character is of a docstring, another string, a comment, or of code."""
    found = ["code"] * len(code)
    for token in tokens:
        if token.kind in ("string", "comment"):
            found[token.first : token.end] = [token.kind] * (token.end - token.first)
    for first, end in docstrings:
        found[first:end] = ["docstring"] * (end - first)
    return found


def literals(code: str, tokens: Sequence[Lexeme]) -> list[str | None]:
    """Return the type of the literal that each character is of, None outside of any."""
    found: list[str | None] = [None] * len(code)
    for token in tokens:
        found[token.first : token.end] = [literal(token)] * (token.end - token.first)
    return found


def literal(token: Lexeme) -> str | None:
    """Return the type of a literal by its spelling; None for what is none."""
    text = token.text.lower()
    if token.kind == "string":
        prefix = text[: min(text.index(quote) for quote in "'\"" if quote in text)]
        return next((name for letter, name in PREFIXES.items() if letter in prefix), "str")
    if token.kind == "number":
        if text.endswith("j"):
            return "complex"
        decimal = not text.startswith(("0x", "0b", "0o"))
        return "float" if decimal and ("." in text or "e" in text) else "int"
    return CONSTANTS.get(token.text) if token.kind == "keyword" else None


def bracket_depths(code: str, tokens: Sequence[Lexeme]) -> list[str]:
    """Return how many brackets are open around each character; a bracket stands outside of itself."""
    found, depth, done = ["0"] * len(code), 0, 0
    for token in tokens:
        closes = token.kind == "operator" and token.text in ")]}"
        if closes:
            found[done : token.first] = [str(depth)] * (token.first - done)
            depth, done = depth - 1, token.first
        elif token.kind == "operator" and token.text in "([{":
            found[done : token.end] = [str(depth)] * (token.end - done)
            depth, done = depth + 1, token.end
    return found


def block_depths(code: str, tokens: Sequence[Lexeme]) -> list[str]:
    """Return in how many blocks each character stands.

    Lines of comments, and empty ones, have the depth of the statement before them.
    """
    starts, depth = line_starts(code), 0
    by_line: dict[int, int] = {}
    lines = _line_of(code)
    for token in tokens:
        depth += {"indent": 1, "dedent": -1}.get(token.kind, 0)
        if token.kind not in ("indent", "dedent"):
            for line in range(lines[token.first], lines[token.end - 1] + 1):
                by_line.setdefault(line, depth)
    ends = [*starts[1:], len(code)]
    found, last = ["0"] * len(code), 0
    for line, (first, end) in enumerate(zip(starts, ends)):
        last = by_line.get(line, last)
        found[first:end] = [str(last)] * (end - first)
    return found


def _line_of(code: str) -> list[int]:
    found: list[int] = []
    for number, line in enumerate(code.split("\n")):
        found += [number] * (len(line) + 1)
    return found
