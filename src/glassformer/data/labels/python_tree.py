"""What Python's parser says of a file: its tree over the characters, its docstrings, and what each name is for.

Parts without a place of their own (arguments as a whole, operators, comprehension clauses) are left out of the tree;
what they hold hangs on what they stand in. An f-string is a leaf: before Python 3.12 the places inside it are wrong.
"""

import ast
from collections.abc import Sequence

from glassformer.data.labels.python_tokens import Lexeme, Spans, line_starts
from glassformer.data.labels.tree import Node, Tree

_LEAVES = ("JoinedStr", "TemplateStr")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Places:
    """Where the parser's lines and bytes stand in a text, in characters."""

    def __init__(self, code: str) -> None:
        self.lines, self.starts = code.split("\n"), line_starts(code)

    def span(self, node: ast.AST) -> tuple[int, int] | None:
        """The first character of a node and the one behind its last; None if it has no place."""
        if getattr(node, "end_lineno", None) is None:
            return None
        told: ast.expr = node  # type: ignore[assignment]
        assert told.end_lineno is not None and told.end_col_offset is not None
        return self._at(told.lineno, told.col_offset), self._at(told.end_lineno, told.end_col_offset)

    def _at(self, line: int, byte: int) -> int:
        text = self.lines[line - 1]
        return self.starts[line - 1] + (byte if text.isascii() else len(text.encode()[:byte].decode()))


def tree_of(module: ast.Module, code: str) -> Tree:
    """Return the parser's tree over the characters of a file."""
    places, nodes = Places(code), [Node("Module", 0, len(code), -1)]
    waiting: list[tuple[ast.AST, int]] = [(child, 0) for child in ast.iter_child_nodes(module)][::-1]
    while waiting:
        node, parent = waiting.pop()
        if (span := places.span(node)) is not None:
            nodes.append(Node(type(node).__name__, *span, parent))
            parent = len(nodes) - 1
        if type(node).__name__ not in _LEAVES:
            waiting += [(child, parent) for child in ast.iter_child_nodes(node)][::-1]
    return Tree(tuple(nodes))


def docstrings(module: ast.Module, code: str) -> Spans:
    """Return the spans of docstrings: of the file, of classes, of functions."""
    places = Places(code)
    found: list[tuple[int, int]] = []
    for node in ast.walk(module):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            expression = node.body[0]
            assert isinstance(expression, ast.Expr), "get_docstring said so"
            span = places.span(expression.value)
            assert span is not None, "expressions have places"
            found.append(span)
    return found


def parts(tree: Tree, code: str) -> tuple[list[str | None], list[str | None]]:
    """Return the type of the deepest node over each character, and of the node that one stands in."""
    kinds = [tree.nodes[place].kind for place in tree.deepest]
    above = [tree.nodes[place].parent for place in tree.deepest]
    return [*kinds], [None if place < 0 else tree.nodes[place].kind for place in above]


def names(module: ast.Module, code: str, tokens: Sequence[Lexeme]) -> list[str | None]:
    """Return what the name that each character is of is for; None for what is no name, and in f-strings.

    It is a `definition` (assigned, a parameter, what `def`, `class`, `import` and `as` bind), a `use`, an `attribute`,
    an `argument` given by its name, `import` (a module's path), or `other` (`global`, patterns, words that are keywords
    at times).
    """
    places = Places(code)
    begins, ends, imports = dict[int, str](), dict[int, str](), list[tuple[int, int]]()
    for node in ast.walk(module):
        span = places.span(node)
        if span is None:
            continue
        if (role := _begun_by(node)) is not None:
            begins[span[0]] = role
        if isinstance(node, ast.Attribute):
            ends[span[1]] = "attribute"
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(span)
    found: list[str | None] = [None] * len(code)
    before = ""
    within = _within(imports, len(code))
    for token in tokens:
        if token.kind == "name":
            role = begins.get(token.first) or ends.get(token.end)
            if before in ("def", "class", "as"):
                role = "definition"
            role = role or ("import" if within[token.first] else "other")
            found[token.first : token.end] = [role] * (token.end - token.first)
        if token.kind in ("name", "keyword", "operator"):
            before = token.text
    return found


def _begun_by(node: ast.AST) -> str | None:
    """Return what the name is for with which a node begins, if that follows from the node."""
    if isinstance(node, ast.Name):
        return "definition" if isinstance(node.ctx, ast.Store) else "use"
    if isinstance(node, ast.arg):
        return "definition"
    if isinstance(node, ast.keyword) and node.arg is not None:
        return "argument"
    if isinstance(node, ast.alias) and node.name != "*":
        return "import" if node.asname else "definition"
    return None


def _within(spans: Spans, size: int) -> list[bool]:
    found = [False] * size
    for first, end in spans:
        found[first:end] = [True] * (end - first)
    return found
