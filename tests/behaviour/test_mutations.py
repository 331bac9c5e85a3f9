"""Wrong edits of a source as data: what is drawn runs otherwise, is made where it was drawn, and is found again."""

import ast
from pathlib import Path

import pytest

import mutations

SOURCE = '''
class Sum:
    """Sums."""

    def upto(self, n, start=0):
        """Sum what is below n."""
        if n < 0:
            raise ValueError(f"{n + 1} is below 0")
        total = start
        for number in range(n):
            total += number
        return total if self else -1
'''


def drawn(root: Path, source: str = SOURCE) -> list[mutations.Mutant]:
    file = root / "src" / "sums.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(source, encoding="utf-8")
    mutations.functions.cache_clear()
    (place,) = mutations.functions(file)
    return [
        mutations.Mutant("src/sums.py", 0, place.name, place.digest, path, kind, ast.unparse(node), after)
        for path, node, kind, after in mutations.edits(place.node)
    ]


def test_each_edit_changes_one_thing_that_runs_and_no_text(tmp_path: Path) -> None:
    expected = {
        ("n < 0", "not (n < 0)"), ("n < 0", "n <= 0"), ("0", "1"), ("0", "-1"), ("total += number", "pass"),
        ("total if self else -1", "-1 if self else total"), ("-1", "0"), ("-1", "-2"),
    }  # fmt: skip
    assert {(mutant.before, mutant.after) for mutant in drawn(tmp_path)} == expected


def test_a_mutant_is_made_where_it_was_drawn_and_its_probe_changes_nothing(tmp_path: Path) -> None:
    for mutant in drawn(tmp_path):
        _, place = mutations.placed(mutant, tmp_path)
        assert mutations.runs_otherwise(mutant, place)
        reached = set[int]()
        names = {mutations.PROBE: reached.add}
        exec(compile(mutations.probed(mutant, place, 5), "sums.py", "exec"), names)
        assert names["Sum"]().upto(4) == 6  # pyright: ignore[reportCallIssue]
        # only for a false `self` is the last value reached
        assert reached == (set() if mutant.before == "-1" else {5})


def test_a_mutant_is_found_in_another_file_and_where_something_else_has_changed(tmp_path: Path) -> None:
    mutant, *_ = drawn(tmp_path)
    file, moved = tmp_path / "src" / "sums.py", tmp_path / "src" / "moved.py"
    moved.write_text("import math\n" + SOURCE.replace("Sum what is below n.", "The sum."), encoding="utf-8")
    file.write_text(
        SOURCE.replace("        total = start", "        # nothing yet\n        n += 0\n        total = start"),
        encoding="utf-8",
    )
    for expected in (moved, file):
        mutations.functions.cache_clear()
        now, place = mutations.placed(mutant, tmp_path)
        assert (place.file, place.name) == (expected, "Sum.upto")
        assert "if not n < 0" in ast.unparse(mutations.mutated(now, place))
        moved.unlink(missing_ok=True)
    file.write_text(SOURCE.replace("n < 0", "n < 1"), encoding="utf-8")
    mutations.functions.cache_clear()
    with pytest.raises(mutations.CannotPlace, match=r"Sum\.upto of src/sums\.py"):
        mutations.placed(mutant, tmp_path)
