"""The English of Python files: what is taken, what is left, and each paragraph once."""

from pathlib import Path

import pytest

from glassformer.data.text.prose import distinct, is_english, paragraphs
from glassformer.data.text.sources import Document, read_source
from glassformer.errors import DataError
from one_pass import in_one_pass

CODE = '''\
#!/usr/bin/env python3
# the first line of a comment that goes on
# and is one paragraph with the second of them
import os  # beside code, which a comment of its own is not

def area(width, height):
    """Return the area of a rectangle with these sides, as :class:`~shapes.Area`.

    It is what the ``width`` and the height have as a product.

    >>> area(2, 3)  # the answer to this is not in the text
    6

    width : the length of one of the sides, and not of the other
    height: the same for the side that is left
    """
    # x = width * height; return x if x > 0 else None
    return width * height

TOPICS = {"area": "The area is a number.\\n\\nA rectangle has one, and it is the product of its two sides."}
NAME = "a string on one line that is no text of a file"
'''
ENGLISH = [
    "the first line of a comment that goes on and is one paragraph with the second of them",
    "Return the area of a rectangle with these sides, as shapes.Area.",
    "It is what the width and the height have as a product.",
    "A rectangle has one, and it is the product of its two sides.",
]


def test_paragraphs_come_from_docstrings_comments_and_long_strings_in_order():
    assert list(paragraphs(CODE)) == ENGLISH


@in_one_pass
@pytest.mark.parametrize(
    "text", ["def f(:\n    pass", '"""The end of this text is missing', "a\0b", "(" * 4000, "-" * 200_000 + "1"]
)
def test_what_is_no_python_has_no_paragraphs(text: str):
    assert list(paragraphs(text)) == []


@in_one_pass
@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("The lamp is on the table in the kitchen.", True),
        ("Return the width.", False),
        ("x = self.width * self.height if self.width > 0 else None", False),
        ("Der Hund schläft unter dem Tisch in der Küche", False),
        ("width height depth colour weight size shape form", False),
    ],
)
def test_sentences_of_english_are_told_by_their_words(text: str, english: bool):
    assert is_english(text) == english


def test_a_paragraph_that_comes_again_is_left_out():
    assert list(distinct([["a", "b", "a"], [], ["b", "c"]])) == [["a", "b"], [], ["c"]]


def test_prose_before_a_source_reads_its_english_and_splits_by_its_files(tmp_path: Path):
    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "b.py").write_text("# the first line of a comment that is new in this file\n" + CODE)
    (tmp_path / "c.py").write_text("pass\n")
    code, found = (list(read_source(prefix + str(tmp_path))) for prefix in ("", "prose:"))
    assert found[0].text.split("\n\n") == ENGLISH
    assert found[1].text == "the first line of a comment that is new in this file"
    assert [d.hash() for d in found] == [d.hash() for d in code[:2]]


@pytest.mark.full
def test_the_standard_library_has_its_help_topics():
    found = {d.name: d.text for d in read_source("prose:python-stdlib")}
    assert "Called when" in found["pydoc_data/topics.py"]
    code = {d.name: d.hash() for d in read_source("python-stdlib")}
    assert {name: Document(name, text, key=name).hash() for name, text in found.items()} == {n: code[n] for n in found}


def test_a_source_without_english_is_refused(tmp_path: Path):
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(DataError, match="no docstrings or comments in English, or no Python"):
        list(read_source(f"prose:{tmp_path}"))
