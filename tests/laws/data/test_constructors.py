"""Constructors of a file: those that take over their arguments, as the file has them, and the lines before them."""

import ast
from textwrap import dedent

from hypothesis import given, strategies as st

from glassformer.data import read_source
from glassformer.data.text.constructors import constructors

WORDS = ["name", "value", "left", "right", "size", "mode", "level"]
names = st.lists(st.sampled_from(WORDS), min_size=2, max_size=5, unique=True)


def a_class(taken: list[str], otherwise: int) -> str:
    lines = [*(f"self.{name} = {name}" for name in taken), *(f"self.made_{i} = make({i})" for i in range(otherwise))]
    body = "\n        ".join(lines)
    return f"class Thing(Base):\n    def __init__(self, {', '.join(taken)}):\n        {body}\n"


@given(st.lists(st.tuples(names, st.integers(0, 12)), min_size=1, max_size=4))
def test_a_class_counts_if_a_third_of_its_constructor_takes_over(drawn):
    code = "\n".join(f"import os\n\n{a_class(*one)}\n    def other(self):\n        return 1\n" for one in drawn)
    parts = []
    for taken, otherwise in drawn:
        if 2 * len(taken) >= otherwise:
            parts.append("\n".join(f"self.{name} = {name}" for name in taken) + f"\n\n{a_class(taken, otherwise)}")
    assert constructors(code) == "\n".join(parts)
    ast.parse(constructors(code))


def test_one_argument_is_no_list_of_them_and_other_text_has_none():
    assert constructors(a_class(["name"], 0)) == constructors("no Python at all") == constructors("") == ""


def test_a_source_behind_constructors_holds_those_of_its_files(tmp_path):
    (tmp_path / "with.py").write_text(a_class(["name", "value"], 0))
    (tmp_path / "without.py").write_text("x = 1\n")
    (found,) = read_source(f"constructors:{tmp_path}")
    assert found.text == dedent("""\
        self.name = name
        self.value = value

        class Thing(Base):
            def __init__(self, name, value):
                self.name = name
                self.value = value
        """)
