"""Python with answer keys: what every token of a file is, from the standard library's `tokenize` and `ast` alone.

kind        name, keyword, number, string, comment, operator, newline, indent, space
text        code, string, docstring, comment
literal     int, float, complex, str, bytes, f-string, bool, None: the type of a literal, by its spelling
name        definition, use, attribute, argument, import, other: what a name is for
brackets    how many brackets are open around it
block       in how many blocks it stands
node        the parser's name of the smallest part that holds it; `parent`, of the part that one stands in

Surface, syntax and, by the type of a literal, meaning: the answers do not depend on who reads.
"""

import ast
import tokenize
import warnings
from collections.abc import Iterable
from pathlib import Path

from glassformer.data.labels import python_tokens, python_tree
from glassformer.data.labels.labelled import Class, LabelledDocument, LabelledText, by_token
from glassformer.data.labels.tree import Tree
from glassformer.data.text.sources import Document
from glassformer.data.tokenizer import Tokenizer
from glassformer.errors import DataError


def python_labels(code: str | Path | Iterable[str | Path | Document], tokenizer: Tokenizer) -> LabelledText:
    """Python as tokens with classes: kind, string or comment or code, names, literals, depths, parts of the tree.

    A token has the class of its first character that is no white space; a byte-level BPE has tokens such as `):` that
    hold several, which `straddles` marks.

    Args:
        code: The text of a file, a file, or several of either; documents of `read_source` too.
        tokenizer: Splits the text; nothing is put around it.

    Returns:
        A document for each text, with its classes by property, its tree, and the tree's phrases.

    Raises:
        DataError: A text is no Python of this version, with the line and the column where; or no file is there.
        TextError: The tokenizer does not know its words.

    Example:
        >>> from glassformer.data import bytes_tokenizer
        >>> found = python_labels("x = 1  # one", bytes_tokenizer())
        >>> found[0].classes["kind"][:5]
        ('name', 'space', 'operator', 'space', 'number')
        >>> found.describe("text").counts
        {'code': 7, 'comment': 5}
    """
    several = [code] if isinstance(code, str | Path) else code
    return LabelledText(_labelled(one, place, tokenizer) for place, one in enumerate(map(_document, several)))


def _document(code: str | Path | Document) -> Document:
    if isinstance(code, Document):
        return code
    if isinstance(code, str):
        return Document("", code)
    try:
        return Document(str(code), code.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f'cannot read "{code}": {error}.') from error


def _labelled(document: Document, place: int, tokenizer: Tokenizer) -> LabelledDocument:
    code, name = document.text, f'"{document.name}"' if document.name else f"text {place}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the code that is read: its escapes, its comparisons
            characters, tree = characters_of(code)
    except SyntaxError as error:
        raise _no_python(name, error.msg, error.lineno, error.offset) from error
    except tokenize.TokenError as error:
        words, (line, column) = error.args
        raise _no_python(name, words, line, column) from error
    # bytes of zero; nested too deeply, which Python before 3.12 calls a lack of memory
    except (ValueError, RecursionError, MemoryError) as error:
        raise _no_python(name, str(error) or "nested too deeply", None, None) from error
    return by_token(code, tokenizer, characters, tree)


def _no_python(name: str, why: str, line: int | None, column: int | None) -> DataError:
    where = "" if line is None else f" at line {line}" + ("" if column is None else f", column {column}")
    return DataError(f"{name} is no Python{where}: {why}. Labels are of files that this Python can parse.")


def characters_of(code: str) -> tuple[dict[str, list[Class]], Tree]:
    """Return the classes of each character of a file, by property, and its tree.

    Raises:
        SyntaxError: It is no Python. `tokenize.TokenError`, `ValueError`, `RecursionError` and `MemoryError` alike.
    """
    if "\r" in code.replace("\r\n", ""):
        raise ValueError("a line ends in a carriage return alone")
    module = ast.parse(code)
    tokens = python_tokens.lexemes(code)
    tree = python_tree.tree_of(module, code)
    node, parent = python_tree.parts(tree, code)
    return {
        "kind": [*python_tokens.kinds(code, tokens)],
        "text": [*python_tokens.texts(code, tokens, python_tree.docstrings(module, code))],
        "literal": python_tokens.literals(code, tokens),
        "name": python_tree.names(module, code, tokens),
        "brackets": [*python_tokens.bracket_depths(code, tokens)],
        "block": [*python_tokens.block_depths(code, tokens)],
        "node": node,
        "parent": parent,
    }, tree
