"""The English of Python files: docstrings, comments and help texts, by paragraph.

Every machine with Python has megabytes of it, and none of it is code.
"""

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from inspect import cleandoc

# of the words of a paragraph, how many are made of letters alone, and how many are among the commonest of English
LEAST_WORDS, LETTERS, COMMON = 6, 0.8, 0.2
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*$")
_COMMON = {
    *("a", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can", "each", "for", "from", "has"),
    *("have", "if", "in", "into", "is", "it", "its", "may", "more", "must", "no", "not", "of", "on", "one", "only"),
    *("or", "other", "should", "so", "some", "such", "than", "that", "the", "their", "them", "then", "there"),
    *("these", "they", "this", "to", "used", "was", "we", "when", "where", "which", "will", "with", "would", "you"),
}
# doctests, directives, lists, tables, rules, fields
_MARKUP = re.compile(r"\s*(>>>|\.\.|:|[-*+|=~^#]|\d+[.)]|@|\*{0,2}\w+(, ?\*{0,2}\w+)* ?:( |$))")
_ROLE = re.compile(r":[\w:+-]+:`[~!]?([^`<]+?)(?: ?<[^`>]*>)?`")
_QUOTED = re.compile(r"``(.+?)``")


def paragraphs(code: str) -> Iterator[str]:
    """Yield the paragraphs of English in a Python file, in its order, each on one line.

    They come from strings of several lines, docstrings of one, and comments that have a line of their own. Examples,
    lists, tables and descriptions of single parameters are left out, and what reads like code or another language.

    Args:
        code: The file's text; one that is no Python has none.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the code that is read: its escapes, its comparisons
            texts = [*_strings(ast.parse(code)), *_comments(code)]
    # nested too deeply, which Python before 3.12 calls a lack of memory
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return
    for _, text in sorted(texts):
        for paragraph in re.split(r"\n\s*\n", text):
            if not any(map(_MARKUP.match, paragraph.split("\n"))):
                plain = " ".join(_QUOTED.sub(r"\1", _ROLE.sub(r"\1", paragraph)).split())
                if is_english(plain):
                    yield plain


def is_english(text: str) -> bool:
    """Whether a text is a sentence or more of English, by its words."""
    words = text.split()
    bare = [word.strip(".,;:!?()\"'") for word in words]
    return (
        len(words) >= LEAST_WORDS
        and sum(bool(_WORD.match(word)) for word in bare) >= LETTERS * len(words)
        and sum(word.lower() in _COMMON for word in bare) >= COMMON * len(words)
    )


def distinct(texts: Iterable[Iterable[str]]) -> Iterator[list[str]]:
    """Yield the paragraphs of each text, without those that any text before it had."""
    seen = set[str]()
    for text in texts:
        new = [paragraph for paragraph in dict.fromkeys(text) if paragraph not in seen]
        seen.update(new)
        yield new


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings and other strings of several lines, each with the line where it stands."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = {id(node.body[0].value) for node in ast.walk(tree)
             if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ("\n" in node.value or id(node) in first):
            yield node.lineno, cleandoc(node.value)


def _comments(code: str) -> Iterator[tuple[int, str]]:
    """Yield comments that have lines of their own, those on lines that follow each other as one."""
    block, start = list[str](), 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        alone = token.type == tokenize.COMMENT and token.line.strip() == token.string
        if alone and not token.string.startswith("#!"):
            line = token.start[0]
            if block and line != start + len(block):
                yield start, "\n".join(block)
                block = []
            start = start if block else line
            block.append(token.string.lstrip("#:!").removeprefix(" "))
    if block:
        yield start, "\n".join(block)
