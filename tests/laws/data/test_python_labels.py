"""Labels of Python: each against another way to the same answer, slow and plain."""

import ast
import bisect
import inspect
import io
import keyword
import tokenize
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.data import Tokenizer, bytes_tokenizer, labels, train_bpe
from glassformer.data.labels import LabelledDocument, python_labels
from glassformer.data.labels.python_code import characters_of
from glassformer.data.labels.tree import Node, Tree
from glassformer.data.text.sources import Document
from glassformer.errors import DataError

SAMPLE = '''"""Über things."""
import os.path as path, sys
from a.b import c as d, e

ünder = 'ä' "b"  # naïve = 1
class Thing(Base, key=None):
    """What
    it is."""

    size: int = 0x1e  # sixteen
    def method(self, other=1.5, *rest, flag=True, **more) -> str:
        # a remark
        with open(self.name) as file, lock:
            for x, (y, z) in zip(*rest):
                yield {x: [y, (z, 2j)], "k": b"v"}[x]
        return f"{other:>{self.size}} of {x!r}" + r"raw"

    @property
    def other(self):
        try:
            pass
        except (ValueError, OSError) as error:
            global count
            count += 1e3; del error
        if not (a := self.b.c).d:
            x = lambda q: q
        elif y:
            return ...

        return [i for i in
            range(10) if i]
'''
BETWEEN = ("space", "newline", "indent", "comment")
CODES = (SAMPLE, inspect.getsource(bisect), "", "x", "\n\n# only a remark")


@pytest.fixture(scope="module")
def tokenizers() -> list[Tokenizer]:
    return [bytes_tokenizer(), train_bpe(CODES, 400)]


@pytest.fixture(scope="module")
def found(tokenizers: list[Tokenizer]) -> list[LabelledDocument]:
    return [document for tokenizer in tokenizers for document in python_labels(CODES, tokenizer)]


def told_by(document: LabelledDocument) -> list[int]:
    """Return, for each token, its first character that is no white space, by looking at one after the other."""
    places = []
    for first, end in document.spans:
        visible = [i for i in range(first, end) if not document.text[i].isspace()]
        places.append(visible[0] if visible else first)
    return places


def raw_tokens(code: str) -> list[tuple[int, int, tokenize.TokenInfo]]:
    """Return Python's tokens with places counted line by line, in characters."""
    lines = code.split("\n")

    def place(row: int, column: int) -> int:
        return sum(len(line) + 1 for line in lines[: row - 1]) + column

    read = tokenize.generate_tokens(io.StringIO(code).readline)
    return [(place(*one.start), place(*one.end), one) for one in read]


def test_tokens_and_their_characters_are_those_of_the_text(tokenizers, found):
    for tokenizer, documents in zip(tokenizers, (found[: len(CODES)], found[len(CODES) :])):
        for document, code in zip(documents, CODES, strict=True):
            assert document.text == code and tokenizer.decode(document.ids) == code
            assert list(document.ids) == tokenizer.encode(code)
            assert all(len(told) == len(document.ids) for told in document.classes.values())
            if code.isascii():
                before = [len(tokenizer.decode(document.ids[:i])) for i in range(0, len(document.ids), 97)]
                assert before == [first for first, _ in document.spans[::97]]


def test_kinds_are_those_of_the_token_that_is_found_by_tokenizing_again(found):
    called = {"NAME": "name", "NUMBER": "number", "OP": "operator", "COMMENT": "comment", "STRING": "string"}
    for document in found:
        tokens = raw_tokens(document.text)
        for place, kind in list(zip(told_by(document), document.classes["kind"]))[::3]:
            over = [one for first, end, one in tokens if first <= place < end]
            names = {tokenize.tok_name[one.type] for one in over}
            if not over:
                assert kind in ("space", "indent", "string") and (kind == "string" or document.text[place] in " \\")
            elif kind not in ("string", "newline", "indent"):
                (one,) = over
                expected = "keyword" if keyword.iskeyword(one.string) else called[tokenize.tok_name[one.type]]
                assert kind == expected or expected in ("name", "operator"), (one, kind)
            else:
                assert names & {"STRING", "NL", "NEWLINE", "INDENT"} or kind == "string"


def test_strings_comments_and_docstrings_are_where_the_parser_has_them(found):
    for document in found:
        expected = ["code"] * len(document.text)
        for first, end, one in raw_tokens(document.text):
            if one.type == tokenize.COMMENT:
                expected[first:end] = ["comment"] * (end - first)
        module = ast.parse(document.text)
        documented = set()
        for node in ast.walk(module):
            body = getattr(node, "body", None)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and body and isinstance(body[0], ast.Expr):
                documented.add(body[0].value)
        for node in ast.walk(module):
            text = isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
            )
            if text and "".join(expected[slice(*span(document.text, node))]) != "":
                first, end = span(document.text, node)
                inside = "docstring" if node in documented and isinstance(node, ast.Constant) else "string"
                for i in range(first, end):
                    expected[i] = inside if expected[i] != "docstring" else expected[i]
        for place, text, kind in zip(told_by(document), document.classes["text"], document.classes["kind"]):
            # two strings that are one literal may have other things between them
            assert text == expected[place] or (expected[place] == "string" and kind in BETWEEN)


def span(code: str, node: Any) -> tuple[int, int]:
    lines = code.split("\n")

    def place(row: int, byte: int) -> int:
        return sum(len(line) + 1 for line in lines[: row - 1]) + len(lines[row - 1].encode()[:byte].decode())

    return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)


def test_literals_have_the_type_of_the_value_that_the_parser_makes_of_them(found):
    seen = set()
    for document in found:
        by_place = dict(zip(told_by(document), document.classes["literal"]))
        for node in ast.walk(ast.parse(document.text)):
            if isinstance(node, ast.Constant) and node.value is not ... and inside_no_f_string(document.text, node):
                value = "None" if node.value is None else type(node.value).__name__
                first, _ = span(document.text, node)
                if first in by_place:
                    assert by_place[first] == value, (node.value, by_place[first])
                    seen.add(value)
    assert seen == {"str", "bytes", "int", "float", "complex", "bool", "None"}


@cache
def f_strings(code: str) -> list[tuple[int, int]]:
    return [span(code, one) for one in ast.walk(ast.parse(code)) if isinstance(one, ast.JoinedStr)]


def inside_no_f_string(code: str, node: ast.AST) -> bool:
    first, _ = span(code, node)
    return not any(a <= first < b for a, b in f_strings(code))


def test_names_are_what_the_parser_does_with_them(tokenizers):
    (document,) = python_labels(SAMPLE, tokenizers[0])
    roles = {
        text: document.classes["name"][SAMPLE.encode().index(text.encode()) + shift]
        for text, shift in {
            "os.path": 0, "path as path": 8, ", sys": 2, "a.b import": 0, "c as": 0, "as d": 3, ", e\n": 2, "ünder": 0,
            "Thing(": 0, "Base": 0, "key=": 0, "size:": 0, ": int": 2, "method": 0, "other=": 0, "rest, flag": 0,
            ".name": 1, "as file": 3, "lock": 0, "x, (y": 0, "error:": 0, "except": 0, "a := ": 0, "b.c": 0, "c).d": 0,
            "q: q": 0, "q\n": 0, "i for": 0, "i in": 0,
        }.items()
    }  # fmt: skip
    definitions = {", sys", "as d", ", e\n", "ünder", "Thing(", "size:", "method", "other=", "rest, flag", "as file"}
    definitions |= {"x, (y", "error:", "a := ", "q: q", "i in", "path as path"}
    uses = {"Base", ": int", "lock", "q\n", "i for"}
    expected = dict.fromkeys(definitions, "definition") | dict.fromkeys(uses, "use")
    expected |= dict.fromkeys((".name", "b.c", "c).d"), "attribute") | {"key=": "argument", "except": None}
    assert roles == expected | dict.fromkeys(("os.path", "a.b import", "c as"), "import")


def test_every_name_that_is_loaded_is_a_use_and_every_one_that_is_stored_a_definition(found):
    for document in found:
        by_place = dict(zip(told_by(document), document.classes["name"]))
        for node in ast.walk(ast.parse(document.text)):
            if isinstance(node, ast.Name) and inside_no_f_string(document.text, node):
                role = by_place.get(span(document.text, node)[0], "within a token")
                assert role in ("within a token", "definition" if isinstance(node.ctx, ast.Store) else "use")


def test_depth_of_brackets_is_that_of_counting_them_where_text_is_code(found):
    for document in found:
        depth, expected = 0, []
        code = dict(enumerate(characters_of(document.text)[0]["kind"]))
        for i, character in enumerate(document.text):
            is_code = code.get(i) == "operator"
            depth -= is_code and character in ")]}"
            expected.append(depth)
            depth += is_code and character in "([{"
        assert [int(d) for d in document.classes["brackets"]] == [expected[i] for i in told_by(document)]


def test_a_statement_stands_in_as_many_blocks_as_the_parser_nests_it(found):
    for document in found:
        by_place = dict(zip(told_by(document), document.classes["block"]))
        for node, depth in nested(ast.parse(document.text).body, 0):
            assert by_place.get(span(document.text, node)[0], str(depth)) == str(depth), (ast.dump(node), depth)


def nested(statements: list[ast.stmt], depth: int) -> Iterator[tuple[ast.stmt, int]]:
    for node in statements:
        yield node, depth
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, [])
            chained = name == "orelse" and len(inner) == 1 and isinstance(inner[0], ast.If)
            yield from nested(inner if isinstance(inner, list) else [], depth + (not chained))
        for handler in getattr(node, "handlers", []):
            yield from nested(handler.body, depth + 1)


def test_the_node_of_a_token_is_the_smallest_part_of_the_parsers_tree_around_it(found):
    for document in found:
        parts = [*placed(ast.parse(document.text), "Module", document.text)]
        told = list(zip(told_by(document), document.classes["node"], document.classes["parent"]))
        for place, node, parent in told[::7]:
            around = [
                (end - first, -i, name, above)
                for i, (first, end, name, above) in enumerate(parts)
                if first <= place < end
            ]
            assert (node, parent) == (min(around)[2:] if around else ("Module", None))


def placed(node: ast.AST, parent: str, code: str) -> Iterator[tuple[int, int, str, str]]:
    name = parent
    if getattr(node, "end_lineno", None) is not None:
        name = type(node).__name__
        yield (*span(code, node), name, parent)
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from placed(child, name, code)


def test_constituents_have_parts_and_are_the_innermost_over_their_tokens():
    (document,) = python_labels("x = f(1)\ng(x)\n", bytes_tokenizer())
    told = [
        (p.kind, document.text[document.spans[p.first][0] : document.spans[p.end - 1][1]])
        for p in document.constituents
    ]
    # names and numbers have no parts, the module is all there is, and the statement `g(x)` is its call
    assert told == [("Assign", "x = f(1)"), ("Call", "f(1)"), ("Call", "g(x)")]
    assert {*document.constituents} < {*document.phrases} and not document.cut(1).constituents


def test_phrases_are_the_source_of_the_nodes_they_are_named_after(tokenizers, found):
    (document,) = python_labels(SAMPLE, tokenizers[1])
    expected = {
        (type(node).__name__, ast.get_source_segment(SAMPLE, node))
        for node in ast.walk(ast.parse(SAMPLE))
        if getattr(node, "end_lineno", None) is not None
    }
    told = {(p.kind, tokenizers[1].decode(document.ids[p.first : p.end]).strip()) for p in document.phrases}
    assert told - expected == {("Module", SAMPLE.strip())} and len(told) > 60
    (whole,) = python_labels(SAMPLE, tokenizers[0])
    assert expected - {(p.kind, SAMPLE.encode()[p.first : p.end].decode()) for p in whole.phrases} <= {
        one for one in expected if one[0] in ("FormattedValue", "Constant", "Attribute", "Name", "JoinedStr")
    }, "of bytes every node is a phrase, but for what stands in f-strings"


def test_distances_are_the_steps_of_the_shortest_way_through_the_tree(found):
    for document in found[:1]:
        tree = document.tree
        assert tree is not None
        edges = {i: {node.parent} - {-1} for i, node in enumerate(tree.nodes)}
        for i, node in enumerate(tree.nodes):
            if node.parent >= 0:
                edges[node.parent].add(i)
        first = 200
        some = document.nodes[first : first + 40]
        expected = torch.tensor([[steps(edges, one)[other] for other in some] for one in some])
        assert document.distances(first, first + 40).equal(expected)
        assert [steps(edges, 0)[node] for node in document.nodes[:300]] == list(document.depths[:300])


def steps(edges: dict, start: int) -> dict:
    found, waiting = {start: 0}, deque([start])
    while waiting:
        one = waiting.popleft()
        for other in edges[one]:
            if other not in found:
                found[other] = found[one] + 1
                waiting.append(other)
    return found


def test_codes_of_edges_turn_distances_into_squared_lengths():
    tree = Tree((Node("a", 0, 6, -1), Node("b", 0, 3, 0), Node("c", 3, 6, 0), Node("d", 0, 2, 1), Node("e", 4, 5, 2)))
    codes = torch.zeros(5, 5)
    for place in range(5):
        codes[place, [one for one in tree.path(place) if one]] = 1
    squared = (codes[:, None] - codes[None]).square().sum(-1)
    assert tree.distances(range(5)).equal(squared.long())
    assert tree.distances([]).shape == (0, 0)


def test_a_token_over_two_classes_has_that_of_its_first_visible_character_and_says_so(found):
    for document in found:
        kinds = characters_of(document.text)[0]["kind"]
        for i, place in enumerate(told_by(document)):
            first, end = document.spans[i]
            visible = {kinds[j] for j in range(first, end) if not document.text[j].isspace()}
            assert document.classes["kind"][i] == kinds[place]
            if visible and not any(document.text[j].isspace() for j in range(*document.words[i])):
                assert document.straddles["kind"][i] is (len(visible) > 1)


def test_properties_are_counted_with_the_share_of_the_commonest(tokenizers):
    found = python_labels(["x = 1", "y = 'a'"], tokenizers[0])
    kinds = found.describe("kind")
    assert kinds.counts == {"space": 4, "string": 3, "name": 2, "operator": 2, "number": 1}
    assert kinds.majority == 4 / 12
    assert [one.name for one in found.properties] == [
        "kind", "text", "literal", "name", "brackets", "block", "node", "parent",
    ]  # fmt: skip
    column = found.column("literal")
    assert column.classes == ("int", "str")
    assert column.document.tolist() == [0, 1, 1, 1] and column.token.tolist() == [4, 4, 5, 6]
    assert column.label.tolist() == [0, 1, 1, 1]
    with pytest.raises(DataError, match=r'no property "kinds"\. Nearest: "kind"'):
        found.column("kinds")


def test_only_whole_tokens_are_kept_if_asked():
    tokenizer = train_bpe(["f('a')"] * 50, 300)
    found = python_labels("f('a')", tokenizer)
    texts = tokenizer.tokens(found[0].ids)
    kept = found.column("kind", straddling=False)
    assert texts == ["f", "('", "a", "')"] and found[0].classes["kind"] == ("name", "operator", "string", "string")
    assert kept.token.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = (1", r"text 0 is no Python at line 1, column 5: .*never closed"),
        ("def f():\n    x = = 1", r"text 0 is no Python at line 2, column 9: invalid syntax"),
        ("  x\n y", r"text 0 is no Python at line 1, column 2: unexpected indent"),
        ("x = '''a", "text 0 is no Python at line 1"),
        ("a\0b", "is no Python"),
        ("a = 1\rb = 2", "a line ends in a carriage return alone"),
        ("(" * 5000 + ")" * 5000, "is no Python"),
        (["x = 1", "das ist keins"], "text 1 is no Python at line 1"),
        ([Document("notes.txt", "das ist keins")], '"notes.txt" is no Python at line 1'),
        (Path("/nowhere/at/all.py"), 'cannot read "/nowhere/at/all.py"'),
    ],
)
def test_what_is_no_python_is_refused_with_its_place(code, message):
    with pytest.raises(DataError, match=message):
        python_labels(code, bytes_tokenizer())


def test_files_are_read_and_windows_lines_are_lines(tmp_path):
    (tmp_path / "a.py").write_bytes(b"if x:\r\n    y = 1\r\n")
    (found,) = python_labels(tmp_path / "a.py", bytes_tokenizer())
    assert found.classes["block"][found.text.index("y")] == "1"
    assert labels.python_labels([tmp_path / "a.py"], bytes_tokenizer())[0].ids == found.ids
